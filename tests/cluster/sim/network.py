"""A network of connections: delay and jitter, cuts in one or both directions, resets, bounded buffers.

Messages of one direction of a connection arrive in order; those of different connections overtake each other. A cut holds what is
under way, as TCP does, and what is sent meanwhile; after it everything arrives. A process that is killed resets its connections; a
machine without power does not, and its peers learn of it by silence, or by a reset once it runs again.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from shardbroker.cluster.messages import Data
from tests.cluster.sim.events import Events

__all__ = ["BUFFER_BYTES", "End", "Network"]

BUFFER_BYTES = 64 << 10
"""Bytes under way in one direction before a connection takes no more."""
CONNECT_TIMEOUT_US = 1_000_000
POLL_US = 20_000
"""How often a held direction is looked at again."""


class Host(Protocol):
    """What a node is to the network."""

    index: int
    runs: bool

    def accept(self, end: "End", channel: int) -> None: ...

    def deliver(self, end: "End", message: Any) -> None: ...

    def lost(self, end: "End") -> None: ...

    def reads(self, end: "End") -> bool: ...


class End:
    """One end of a connection, with what is under way to the other end."""

    def __init__(self, number: int, host: Host, channel: int) -> None:
        self.number, self.host, self.channel = number, host, channel
        self.peer: End
        self.is_open = True
        self.queue: deque[tuple[int, int, Any]] = deque()
        """Time of arrival, size and message."""
        self.bytes = 0
        self.is_moving = False
        self.last_us = 0


def size_of(message: Any) -> int:
    """Returns about the size of a message on the wire."""
    return 40 + (message.records.size if isinstance(message, Data) else 0)


class Network:
    """All connections of a simulation."""

    def __init__(self, events: Events, rng: Random, delay_us: int, jitter_us: int) -> None:
        self.events, self.rng = events, rng
        self.delay_us, self.jitter_us = delay_us, jitter_us
        self.cut: set[tuple[int, int]] = set()
        """Directions in which nothing arrives."""
        self.ends: dict[int, End] = {}
        self.messages = 0
        self._number = 0

    def _delay(self) -> int:
        return self.delay_us + self.rng.randint(0, self.jitter_us)

    def connect(self, host: Host, target: Host | None, channel: int, result: Callable[[End | None], None]) -> None:
        """Opens a connection; `result` is called with this side's end, or None."""
        if target is None:
            self.events.after(self._delay(), result, None)
            return
        if self._is_cut(host, target):
            self.events.after(CONNECT_TIMEOUT_US, result, None)
            return
        self.events.after(2 * self._delay(), self._connected, host, target, channel, result)

    def _is_cut(self, one: Host, other: Host) -> bool:
        return bool({(one.index, other.index), (other.index, one.index)} & self.cut)

    def _connected(self, host: Host, target: Host, channel: int, result: Callable[[End | None], None]) -> None:
        if not host.runs:
            return
        if not target.runs or self._is_cut(host, target):
            result(None)
            return
        self._number += 2
        near, far = End(self._number, host, channel), End(self._number + 1, target, channel)
        near.peer, far.peer = far, near
        self.ends[near.number], self.ends[far.number] = near, far
        target.accept(far, channel)
        result(near)

    def send(self, end: End, message: Any) -> None:
        """Sends a message from an end."""
        if not end.is_open:
            return
        # Never before what was sent earlier on this connection.
        end.last_us = max(end.last_us, self.events.now_us + self._delay())
        size = size_of(message)
        end.queue.append((end.last_us, size, message))
        end.bytes += size
        if not end.is_moving:
            end.is_moving = True
            self.events.after(end.last_us - self.events.now_us, self._move, end)

    def is_writable(self, end: End) -> bool:
        return end.is_open and end.bytes < BUFFER_BYTES

    def _move(self, end: End) -> None:
        """Delivers what has arrived at the other end."""
        end.is_moving = False
        while end.queue and end.is_open:
            due_us, size, message = end.queue[0]
            peer = end.peer
            held = (end.host.index, peer.host.index) in self.cut or not peer.host.runs or not peer.host.reads(peer)
            if held or due_us > self.events.now_us:
                end.is_moving = True
                self.events.after(POLL_US if held else due_us - self.events.now_us, self._move, end)
                return
            end.queue.popleft()
            end.bytes -= size
            self.messages += 1
            peer.host.deliver(peer, message)

    def close(self, end: End, last: Any = None) -> None:
        """Closes a connection from one end; the other end gets what is under way, then learns of it."""
        if not end.is_open:
            return
        if last is not None:
            self.send(end, last)
        end.host = _Closed(end.host.index)
        self.events.after(self._delay() + self.jitter_us, self._finish, end)

    def _finish(self, end: End) -> None:
        if end.queue and end.is_open and end.peer.host.runs:
            self.events.after(POLL_US, self._finish, end)
            return
        self.reset(end)

    def reset(self, end: End) -> None:
        """Ends a connection at once on both sides; what is under way is lost."""
        for one in (end, end.peer):
            if one.is_open:
                one.is_open = False
                self.ends.pop(one.number, None)
                if one.host.runs:
                    one.host.lost(one)

    def reset_host(self, host: Host, channel: int | None = None) -> None:
        """Resets all connections of a host, or those of one channel."""
        for end in [end for end in self.ends.values() if end.host is host and channel in (None, end.channel)]:
            self.reset(end)


class _Closed:
    """Takes the place of a host that has closed its end."""

    runs = True

    def __init__(self, index: int) -> None:
        self.index = index

    def accept(self, end: End, channel: int) -> None: ...

    def deliver(self, end: End, message: Any) -> None: ...

    def lost(self, end: End) -> None: ...

    def reads(self, end: End) -> bool:
        return True
