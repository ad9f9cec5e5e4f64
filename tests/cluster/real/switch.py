"""A switch between network namespaces, in a process of its own: IPv4 packets of TUN devices with delay, loss, cuts and resets.

    kernel of node 1 ── TUN ──┐                ┌── TUN ── kernel of node 2
                              ├── this process ┤
    kernel of node 3 ── TUN ──┘                └── ...

Unlike tc netem it needs no module of the kernel, its loss is the same for a seed, and it knows of each TCP connection between nodes
for which link process it is: by the preface, which is the first thing that the dialling side sends.

    python -m tests.cluster.real.switch DESCRIPTOR...     one per node, in the order of node numbers

Each line of the standard input is a command in JSON, which is answered by a line once it is in effect. The process ends with its
input.
"""

import heapq
import json
import os
import select
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from struct import pack, unpack_from
from typing import Any

from shardbroker.link.frames import PREFACE_BYTES, channel_of

__all__ = ["LINK_PORT", "PACKET_BYTES"]

LINK_PORT = 5370
PACKET_BYTES = 1500
"""MTU of the devices."""
BATCH = 64
"""Packets taken from one device before the others get their turn."""
TCP = 6
FIN, SYN, RST, ACK = 1, 2, 4, 16

Flow = tuple[int, int, int]
"""Number of the dialling node, its port, number of the other node."""


@dataclass
class Way:
    """One direction between two nodes."""

    delay_s: float = 0.0
    loss: float = 0.0
    cut: set[int] = field(default_factory=set)
    """Channels whose packets are dropped; EVERYTHING drops also what belongs to none."""
    passed: int = 0
    dropped: int = 0


EVERYTHING = -1


@dataclass(frozen=True)
class Segment:
    """A TCP packet."""

    flow: Flow
    flags: int
    sequence: int
    ack: int
    payload: bytes


class Switch:
    def __init__(self, devices: list[int], seed: int = 1) -> None:
        self._devices = dict(enumerate(devices, 1))
        self._ways = {(source, target): Way() for source in self._devices for target in self._devices if source != target}
        self._rng = Random(seed)
        self._channels: dict[Flow, int] = {}
        self._ending: set[Flow] = set()
        self._resets: set[Flow] = set()
        self._delayed: list[tuple[float, int, int, bytes]] = []
        self._numbers = count()
        self._input = b""

    def run(self) -> None:
        epoll = select.epoll()
        epoll.register(0, select.EPOLLIN)
        nodes = {}
        for node, device in self._devices.items():
            os.set_blocking(device, False)
            epoll.register(device, select.EPOLLIN)
            nodes[device] = node
        while True:
            wait_s = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else -1
            for descriptor, _ in epoll.poll(wait_s):
                if descriptor == 0:
                    if not self._obey():
                        return
                    continue
                with suppress(BlockingIOError):
                    for _ in range(BATCH):
                        self._take(nodes[descriptor], os.read(descriptor, PACKET_BYTES))
            while self._delayed and self._delayed[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(self._delayed)
                self._deliver(target, packet)

    # --- packets -------------------------------------------------------------------------------------------------------

    def _take(self, source: int, packet: bytes) -> None:
        target = packet[19]
        way = self._ways.get((source, target))
        if packet[0] >> 4 != 4 or way is None:
            return
        segment = _segment(source, target, packet)
        channel = EVERYTHING
        if segment is not None:
            channel = self._channel(source, segment)
            if segment.flow in self._resets and not segment.flags & (SYN | RST):
                self._reset(source, target, packet, segment)
                return
        if EVERYTHING in way.cut or channel in way.cut or self._rng.random() < way.loss:
            way.dropped += 1
            return
        way.passed += 1
        if way.delay_s:
            heapq.heappush(self._delayed, (time.monotonic() + way.delay_s, next(self._numbers), target, packet))
        else:
            self._deliver(target, packet)

    def _channel(self, source: int, segment: Segment) -> int:
        """Returns the link process that a connection is for; EVERYTHING before its preface."""
        if source == segment.flow[0]:
            if segment.flags & SYN:
                self._channels.pop(segment.flow, None)
                self._resets.discard(segment.flow)
                self._ending.discard(segment.flow)
            elif segment.flow not in self._channels and len(segment.payload) >= PREFACE_BYTES:
                self._channels[segment.flow] = channel_of(segment.payload[:PREFACE_BYTES])
        if segment.flags & (FIN | RST):
            self._ending.add(segment.flow)
        return self._channels.get(segment.flow, EVERYTHING)

    def _reset(self, source: int, target: int, packet: bytes, segment: Segment) -> None:
        """Drops a packet, and sends a reset to both ends in its place, with the sequence number that each expects."""
        self._resets.discard(segment.flow)
        self._ending.add(segment.flow)  # more packets of it may be on the way
        ports = unpack_from("!HH", packet, (packet[0] & 15) * 4)
        own, other = packet[12:16], packet[16:20]
        self._deliver(target, _reset(own, other, *ports, segment.sequence, segment.ack))
        self._deliver(source, _reset(other, own, ports[1], ports[0], segment.ack, segment.sequence))

    def _deliver(self, target: int, packet: bytes) -> None:
        with suppress(OSError):  # a full queue drops it, as that of any device
            os.write(self._devices[target], packet)

    # --- commands ------------------------------------------------------------------------------------------------------

    def _obey(self) -> bool:
        data = os.read(0, 65536)
        self._input += data
        while b"\n" in self._input:
            line, _, self._input = self._input.partition(b"\n")
            command = json.loads(line)
            answer = getattr(self, f"_on_{command.pop('do')}")(**command)
            os.write(1, json.dumps(answer).encode() + b"\n")
        return bool(data)

    def _on_ways(self, ways: list[tuple[int, int]], **changes: Any) -> None:
        """Changes directions; a key that is missing stays as it is."""
        for source, target in ways:
            way = self._ways[source, target]
            for key, value in changes.items():
                setattr(way, key, {*value} if key == "cut" else value)

    def _on_reset(self, nodes: list[int], channel: int) -> int:
        """Resets the connections of a channel between two nodes with their next packets; returns how many there are."""
        found = {flow for flow, at in self._channels.items() if at == channel and {flow[0], flow[2]} == {*nodes}}
        self._resets |= found - self._ending
        return len(found - self._ending)

    def _on_counts(self) -> list[tuple[int, int, int, int]]:
        """Returns source, target, packets that have passed and that were dropped."""
        return [(*ends, way.passed, way.dropped) for ends, way in self._ways.items()]


def _segment(source: int, target: int, packet: bytes) -> Segment | None:
    """Returns the TCP packet of a connection between link processes, or None."""
    at = (packet[0] & 15) * 4
    if packet[9] != TCP or len(packet) < at + 20:
        return None
    source_port, target_port, sequence, ack, offset, flags = unpack_from("!HHIIBB", packet, at)
    if LINK_PORT not in (source_port, target_port):
        return None
    flow = (source, source_port, target) if target_port == LINK_PORT else (target, target_port, source)
    return Segment(flow, flags, sequence, ack, packet[at + (offset >> 4) * 4 : int.from_bytes(packet[2:4], "big")])


def _reset(source: bytes, target: bytes, source_port: int, target_port: int, sequence: int, ack: int) -> bytes:
    """Returns a packet that ends a TCP connection."""
    tcp = pack("!HHIIBBHHH", source_port, target_port, sequence, ack, 5 << 4, RST | ACK, 0, 0, 0)
    tcp = tcp[:16] + pack("!H", _checksum(source + target + pack("!BBH", 0, TCP, len(tcp)) + tcp)) + tcp[18:]
    ip = pack("!BBHHHBBH", 4 << 4 | 5, 0, 20 + len(tcp), 0, 0, 64, TCP, 0) + source + target
    return ip[:10] + pack("!H", _checksum(ip)) + ip[12:] + tcp


def _checksum(data: bytes) -> int:
    """Returns the checksum of the Internet protocols (RFC 1071)."""
    total = sum(unpack_from(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


if __name__ == "__main__":
    Switch([int(argument) for argument in sys.argv[1:]]).run()
