"""Fuzzes the codec: random and mutated packets end in a packet or in MqttError, and in nothing else.

    python fuzz/fuzz_codec.py --seconds 60 [--seed N] [--engine atheris|random]

The engine `random` mutates valid packets of all types and versions by a seeded generator; `atheris` lets libFuzzer choose the
bytes. Every input goes through the object codec, through the hot parsers, and, in pieces, through a connection of the core.
Exit code 1 and the input in hex on a finding.
"""

import argparse
import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shardbroker.config import load
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    decode,
)
from shardbroker.worker.sansio import SansIoRouter
from tests.sim.simulator import MemoryRoutes

VERSIONS = (3, 4, 5)
MEMORY_GROWTH = 256 << 20
"""Bytes that the process may grow by: inputs are small, so more is a leak or a reservation of an announced length."""
SECONDS_PER_INPUT = 1.0

WILL = Will(b"will/topic", b"gone", 1, True, {0x18: 5, 0x02: 60, 0x26: [(b"k", b"v")]})
SEEDS = [
    *(Connect(v, b"client-1", True, 30, b"user", b"secret", WILL if v == 5 else Will(b"w", b"x", 2)) for v in VERSIONS),
    Connect(5, b"", True, 0, properties={0x11: 100, 0x21: 10, 0x22: 5, 0x27: 1000, 0x17: 0, 0x26: [(b"a", b"b")]}),
    Connack(True, 0, {0x12: b"assigned", 0x1F: b"why"}),
    Publish(b"a/b/c", b"payload" * 5, 0),
    Publish(
        b"a/b/c",
        b"payload",
        1,
        True,
        False,
        77,
        {0x01: 1, 0x02: 30, 0x03: b"text/plain", 0x08: b"r/1", 0x09: b"\0\xff"},
    ),
    Publish("ü/漢/😀".encode(), b"x", 2, False, True, 65535, {0x23: 3, 0x26: [(b"k", b"v"), (b"k", b"w")]}),
    Puback(1, 0x10),
    Pubrec(2, 0x80, {0x1F: b"no"}),
    Pubrel(3),
    Pubcomp(4, 0x92),
    Subscribe(5, [(b"a/+/#", 2), (b"$share/g/t", 1), (b"+", 0)], {0x0B: 300}),
    Suback(5, b"\0\1\x80"),
    Unsubscribe(6, [b"a/+/#", b"b"]),
    Unsuback(6, b"\0\x11"),
    Pingreq(),
    Disconnect(0x04, {0x11: 5}),
    Auth(0x18, {0x15: b"SCRAM", 0x16: b"data"}),
]
CORPUS = [packet.encode(version) for packet in SEEDS for version in VERSIONS]
CONNECTS = {4: Connect(4, b"fuzz").encode(4), 5: Connect(5, b"fuzz").encode(5)}


class Target:
    """Feeds one input after the other to all parsers of client bytes."""

    def __init__(self) -> None:
        self._settings = load(None, {}, ["mqtt.max_packet_size=64KB"]).settings
        self._renew()

    def _renew(self) -> None:
        self._router = SansIoRouter(self._settings, MemoryRoutes(), 0, 1_700_000_000_000)
        self._since = 0

    def __call__(self, data: bytes) -> None:
        for version in VERSIONS:
            offset = 0
            try:
                while (found := decode(data, offset, version)) is not None:
                    packet, offset = found
                    again, _ = decode(packet.encode(version), 0, version)
                    if again != packet:
                        raise AssertionError(f"{packet} was encoded as {again}")
            except MqttError:
                pass
        for first in (b"", CONNECTS[4], CONNECTS[5]):
            self._feed(first, data)
        self._since += 1
        if self._since == 2000:
            self._renew()

    def _feed(self, first: bytes, data: bytes) -> None:
        channel = self._router.connect("fuzz")
        channel.receive(first)
        cut = len(data) // 3
        for piece in (data[:cut], data[cut : cut + 1], data[cut + 1 :]):
            channel.receive(piece)
        self._router.advance(1_700_000_000_000)
        channel.take_output()
        if not channel.is_closing:
            self._router.cut(channel)


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Returns a valid packet with one to five random changes, a few packets joined together, or noise."""
    kind = rng.random()
    if kind < 0.05:
        return rng.randbytes(rng.randint(0, 60))
    if kind < 0.2:
        data += rng.choice(CORPUS)
    changed = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(changed) + 1)
        act = rng.randrange(5)
        if act == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif act == 1 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif act == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
        elif act == 3:
            del changed[at : at + rng.randint(1, 8)]
        else:
            changed[at:at] = rng.choice((b"\0\0", b"\xff\xff", b"\x80\x80", b"\xed\xa0\x80", b"\xc3\x28", b"#", b"/+"))
    return bytes(changed)


def check(target: Target, data: bytes) -> None:
    started = time.monotonic()
    try:
        target(data)
    except BaseException:
        print(f"input: {data.hex()}", file=sys.stderr, flush=True)
        raise
    if time.monotonic() - started > SECONDS_PER_INPUT:
        raise AssertionError(f"took over {SECONDS_PER_INPUT} s: {data.hex()}")


def run_random(seconds: float, seed: int) -> int:
    rng = random.Random(seed)
    target = Target()
    for data in CORPUS:
        check(target, data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        for _ in range(100):
            check(target, mutate(rng, rng.choice(CORPUS)))
        count += 100
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if grown > MEMORY_GROWTH:
        raise AssertionError(f"memory has grown by {grown} bytes")
    return count


def run_atheris(seconds: float) -> None:
    import atheris

    target = Target()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}", "-max_len=4096"], lambda data: check(target, data))
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the codec and the connection state machine.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--engine", choices=("random", "atheris"), default="random")
    arguments = parser.parse_args()
    if arguments.engine == "atheris":
        run_atheris(arguments.seconds)
        return
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    print(f"{run_random(arguments.seconds, seed)} inputs in {arguments.seconds:g} s, no finding", flush=True)


if __name__ == "__main__":
    main()
