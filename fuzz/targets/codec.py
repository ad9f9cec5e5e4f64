"""mqtt/codec.pyx through a connection of the core: bytes fed whole and one by one have the same answers and the same end.

The core parses PUBLISH and its acknowledgements by the hot parsers, and the rest by packets.pyx.
"""

from collections.abc import Iterable

from fuzz.engine import exact, pieces
from fuzz.fuzz_codec import CONNECTS, CORPUS
from shardbroker.config import load
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from tests.sim.simulator import MemoryRoutes

MAX_LEN = 400
NOW_MS = 1_700_000_000_000
RENEW_AFTER = 2000
"""Inputs per shard: its sessions and topics take memory, and both feeds find the same ones."""
_SETTINGS = load(None, {}, ["mqtt.max_packet_size=64KB", "mqtt.max_inflight=100"]).settings


class _Core:
    def __init__(self) -> None:
        routes = MemoryRoutes()
        self.router = SansIoRouter(_SETTINGS, routes, 0, NOW_MS, seed=1)
        routes.shards = [self.router]

    def answers(self, parts: list[bytes]) -> tuple[bytes, bool]:
        """Returns the output of a connection that receives these pieces, and whether it was closed."""
        channel: SansIoChannel = self.router.connect("fuzz", b"fuzz")
        for part in parts:
            channel.receive(part)
        output = channel.take_output()
        self.router.advance(NOW_MS)
        output += channel.take_output()
        closing = bool(channel.is_closing)
        if not closing:
            self.router.cut(channel)
        self.router.advance(NOW_MS)
        return output, closing


_cores: list[_Core] = []
_left = 0


def seeds() -> Iterable[bytes]:
    yield from (bytes([0]) + packet for packet in CORPUS)
    yield from (bytes([number]) + packet for packet in CORPUS for number in (1, 2))


def check(data: bytes) -> None:
    global _left
    if not _left:
        _cores[:] = [_Core(), _Core()]
        _left = RENEW_AFTER
    _left -= 1
    first = (b"", CONNECTS[4], CONNECTS[5])[data[0] % 3] if data else b""
    whole, single = _cores
    got = whole.answers([first, exact(data[1:])])
    wanted = single.answers([first, *pieces(data[1:], 1)])
    assert got == wanted, f"whole: {got}, byte by byte: {wanted}"
