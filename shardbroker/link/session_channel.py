"""Sessions between link-0 and one worker: both ends of the channel `sessions`, without an event loop.

    kind u8 | type u8 | node u16 | part u32 | run u64 | view u64 | stamp u64 | body, at most 64 KB

    LOST     link-0 -> worker     what was sent before may be incomplete: begin a run
    HELLO    worker -> link-0     `run` begins: what waits for the worker is dropped, and a view follows
    VIEW     link-0 -> worker     number `view` of the run, CBOR: SessionView without its run
    MESSAGE  both                 part `part` (bit 31: the last one) of a message with a node: `type` and body are those of its
                                  frame, `stamp` is of the hybrid clock of its sender; to link-0 with the newest view of the worker
    PAUSE    worker -> link-0     it takes nothing for a while, since another process is about to replace it: `link/sessions.py`
    RESUME   worker -> link-0     it does again, in the same run: the worker itself, or the process that has replaced it
    WORKER   both                 the same of a message with another worker of this node, whose number is in place of `node`; only
                                  workers know what is in it

A run is a sequence of views and messages without a gap, and its number is chosen by the worker. Each end ignores what is not of
the run, so nothing that another process has left in the socket is taken, and the first thing of each run is a view. A run ends
when the worker or link-0 was started, and when one end has no room for a message that cannot be repeated. In between messages are
dropped: those that are large (BULK_FRAMES) above `BULK_BYTES`, all of them between two runs. The cores repeat what matters.

A socket takes some 200 KB at once, so larger messages are sent in parts, one after the other. A part that is missing ends its
message only.
"""

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

import cbor2

from shardbroker.cluster.clock import HybridClock
from shardbroker.cluster.messages import FRAME_BYTES_MAX, SessionMessage
from shardbroker.cluster.session_view import SessionView
from shardbroker.link.frames import FrameType
from shardbroker.link.session_codec import BULK_FRAMES, decode_session, encode_session

__all__ = [
    "BULK_BYTES",
    "QUEUE_BYTES",
    "TOTAL_BYTES",
    "Budget",
    "FromWorker",
    "Packed",
    "Room",
    "SessionChannel",
    "WorkerEnd",
    "encode_view",
]

BULK_BYTES = 72 << 20
"""Bytes that wait for one process or peer up to which a large message is taken: the largest session, 64 MB, and some more."""
QUEUE_BYTES = 80 << 20
"""Bytes that wait for one process or peer up to which any message is taken: 25,000 small ones above BULK_BYTES."""
TOTAL_BYTES = 256 << 20
"""Bytes that wait in one process for all others up to which a large message is taken."""
OVERHEAD = 300
"""Bytes of memory that a message takes in a queue beside its body."""
PART_BYTES = 64 << 10
"""Bytes of a packet's body: three fit into the socket, and no copy of a large message is needed."""
PACKETS_A_TURN = 64
"""Packets taken or sent in a row, 4 MB, before others get their turn."""
LOST, HELLO, VIEW, MESSAGE, WORKER, PAUSE, RESUME = 1, 2, 3, 4, 5, 6, 7
_HEAD = Struct("<BBHIQQQ")
_LAST_PART = 1 << 31


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Budget:
    """Bytes that wait in all queues of a process."""

    def __init__(self) -> None:
        self.used = 0


class Room:
    """The bounds of one queue of messages of sessions."""

    def __init__(self, budget: Budget) -> None:
        self.dropped = 0
        """Messages that have found no room, or that a full queue has lost."""
        self._budget = budget
        self._bytes = 0

    def has(self, kind: FrameType, size: int) -> bool:
        """Returns whether there is room for a message; a small one is always taken, until `is_full`."""
        total = self._budget.used + size
        if kind not in BULK_FRAMES or (self._bytes + size <= BULK_BYTES and total <= TOTAL_BYTES):
            return True
        self.dropped += 1
        return False

    @property
    def is_full(self) -> bool:
        """Returns whether the queue has to be given up."""
        return self._bytes > QUEUE_BYTES

    def take(self, size: int) -> None:
        """Takes a message with a body of a size."""
        self._bytes += size + OVERHEAD
        self._budget.used += size + OVERHEAD

    def leave(self, size: int) -> None:
        """Takes the end of a message with a body of a size."""
        self._bytes -= size + OVERHEAD
        self._budget.used -= size + OVERHEAD

    def clear(self) -> None:
        """Takes the end of all messages."""
        self._budget.used -= self._bytes
        self._bytes = 0


class Packed(NamedTuple):
    """A message of sessions with a node, as link-0 passes it on."""

    node_id: int
    type: FrameType
    body: bytes
    stamp: int


class FromWorker(NamedTuple):
    """A message between two workers of this node: the other one, and what it has sent or gets."""

    worker: int
    body: bytes


class _Packet(NamedTuple):
    kind: int
    type: int
    node_id: int
    part: int
    run: int
    view: int
    stamp: int
    body: bytes


class _Outgoing(NamedTuple):
    """What waits for the socket."""

    kind: int
    type: int = 0
    node_id: int = 0
    run: int = 0
    view: int = 0
    stamp: int = 0
    body: bytes = b""


class _End:
    """One end: a bounded queue in front of the socket, and the parts of a message that is arriving."""

    def __init__(self, descriptor: int, budget: Budget) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._room = Room(budget)
        self._queue: deque[_Outgoing] = deque()
        self._part = 0
        """Next part of the first message in the queue."""
        self._arriving: list[_Packet] = []

    def fileno(self) -> int:
        """Returns the descriptor, for epoll: readable while there is something to receive."""
        return self._socket.fileno()

    def close(self) -> None:
        self._clear()
        self._socket.close()

    @property
    def waits(self) -> bool:
        """Returns whether something waits for the socket: `flush` is to be called once it is writable."""
        return bool(self._queue)

    def _clear(self) -> None:
        self._room.clear()
        self._part = 0
        self._queue.clear()
        self._arriving.clear()

    @property
    def dropped(self) -> int:
        """Returns the number of messages that were dropped for lack of room."""
        return self._room.dropped

    def _put(self, one: _Outgoing) -> bool:
        """Queues a packet. Returns False if the queue is too long, and the run is to end."""
        self._queue.append(one)
        self._room.take(len(one.body))
        if len(self._queue) == 1:
            self.flush()
        if not self._room.is_full:
            return True
        self._room.dropped += len(self._queue)
        return False

    def flush(self) -> bool:
        """Sends what the socket takes, within limits of a turn. Returns whether nothing is left."""
        for _ in range(PACKETS_A_TURN):
            if not self._queue:
                return True
            one, start = self._queue[0], self._part * PART_BYTES
            is_last = start + PART_BYTES >= len(one.body)
            part = self._part | (_LAST_PART if is_last else 0)
            head = _HEAD.pack(one.kind, one.type, one.node_id, part, one.run, one.view, one.stamp)
            try:
                self._socket.sendmsg([head, memoryview(one.body)[start : start + PART_BYTES]])
            except (BlockingIOError, InterruptedError):
                return False
            self._part += 1
            if is_last:
                self._queue.popleft()
                self._part = 0
                self._room.leave(len(one.body))
        return not self._queue

    def _packets(self) -> Iterator[_Packet]:
        """Yields packets that have arrived, within the limits of a turn."""
        for _ in range(PACKETS_A_TURN):
            try:
                data = self._socket.recv(_HEAD.size + PART_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            if len(data) < _HEAD.size:
                return  # the end of all processes that have the other end
            yield _Packet._make((*_HEAD.unpack_from(data), data[_HEAD.size :]))

    def _assembled(self, packet: _Packet) -> Packed | FromWorker | None:
        """Takes a part of a message; returns the message with its last one."""
        number = packet.part & ~_LAST_PART
        if number == 0:
            self._arriving.clear()
        first = self._arriving[0] if self._arriving else packet
        if number != len(self._arriving) or packet[:3] != first[:3] or number * PART_BYTES > FRAME_BYTES_MAX:
            self._arriving.clear()
            return None
        self._arriving.append(packet)
        if not packet.part & _LAST_PART:
            return None
        body = b"".join([one.body for one in self._arriving]) if number else packet.body
        self._arriving.clear()
        if packet.kind == WORKER:
            return FromWorker(packet.node_id, body)
        return Packed(packet.node_id, FrameType(packet.type), body, packet.stamp)


class SessionChannel(_End):
    """The end of a worker. `descriptor` is duplicated; `clock` is that of the worker's NodeSessions.

    Without `begins` nothing is sent before `take_image`: the run is that of the process that this one replaces.
    """

    def __init__(
        self, descriptor: int, clock: HybridClock, clock_ms: Callable[[], int] = _clock_ms, begins: bool = True
    ) -> None:
        super().__init__(descriptor, Budget())
        self._clock, self._clock_ms = clock, clock_ms
        self._run = 0
        self._view = 0
        """Number of the newest view of the run; 0: none has arrived."""
        if begins:
            self._begin()

    @property
    def is_ready(self) -> bool:
        """Returns whether a view has arrived and messages are taken."""
        return self._view > 0

    def _begin(self) -> None:
        """Begins a run. Until its first view nothing is sent or received."""
        self._clear()
        self._run = max(self._run + 1, time.monotonic_ns())
        self._view = 0
        self._put(_Outgoing(HELLO, run=self._run))

    def pause(self) -> None:
        """Has link-0 answer for this worker until `resume`."""
        self._put(_Outgoing(PAUSE, run=self._run))

    def resume(self) -> None:
        """Takes messages again."""
        self._put(_Outgoing(RESUME, run=self._run))

    def image(self) -> list[Any]:
        """Returns everything that is not in the socket as plain values: for the process that replaces the worker."""
        return [self._run, self._view, self._part, [list(one) for one in self._queue], [list(one) for one in self._arriving]]

    def take_image(self, image: list[Any]) -> None:
        """Continues the run of another process, which does not use the socket any more. Raises TypeError, ValueError."""
        self._run, self._view, self._part, queue, arriving = image
        for values in queue:
            one = _Outgoing(*values)
            self._queue.append(one)
            self._room.take(len(one.body))
        self._arriving = [_Packet(*values) for values in arriving]

    def send(self, node_id: int, message: SessionMessage) -> bool:
        """Sends a message to another node, or queues it. Returns False if it was dropped."""
        if not self._view:
            return False
        kind, body = encode_session(message)
        if not self._room.has(kind, len(body)):
            return False
        stamp = self._clock.now(self._clock_ms())
        if self._put(_Outgoing(MESSAGE, kind, node_id, self._run, self._view, stamp, body)):
            return True
        self._begin()
        return False

    def send_worker(self, worker: int, body: bytes) -> bool:
        """Sends a message to another worker of this node, or queues it. Returns False if it was dropped."""
        if not self._view:
            return False
        if self._put(_Outgoing(WORKER, 0, worker, self._run, 0, 0, body)):
            return True
        self._begin()
        return False

    def receive(self) -> list[SessionView | FromWorker | tuple[int, SessionMessage]]:
        """Returns views, messages with their node ids, and messages of workers, in order. An empty list does not mean that nothing
        is left: epoll reports it, level-triggered."""
        found: list[SessionView | FromWorker | tuple[int, SessionMessage]] = []
        for packet in self._packets():
            if packet.kind == LOST:
                self._begin()
            elif packet.run != self._run:
                continue
            elif packet.kind == VIEW:
                self._view = packet.view
                found.append(_decode_view(packet.run, packet.body))
            elif packet.kind in (MESSAGE, WORKER) and self._view and (one := self._assembled(packet)) is not None:
                if isinstance(one, FromWorker):
                    found.append(one)
                    continue
                self._clock.witness(one.stamp, self._clock_ms())
                found.append((one.node_id, decode_session(one.type, one.body)))
        return found


class WorkerEnd(_End):
    """The end of link-0 for one worker. A process that starts calls `lost` once."""

    def __init__(self, descriptor: int, budget: Budget) -> None:
        super().__init__(descriptor, budget)
        self._run = 0
        """0: the worker has not begun a run."""
        self._view = 0, b""
        """Number of the newest view, and its encoding."""
        self.is_paused = False
        """Whether another process is about to replace the worker. What is sent to it waits, and so does each node that asks it."""

    def lost(self) -> None:
        """Ends the run: the worker begins another one, unless it has no sessions that move."""
        self._clear()
        self._run, self.is_paused = 0, False
        self._put(_Outgoing(LOST))

    def set_view(self, number: int, encoded: bytes) -> None:
        """Takes the newest view, with a number that is larger than those before, and sends it in order with the messages."""
        self._view = number, encoded
        self._send_view()

    def _send_view(self) -> None:
        number, encoded = self._view
        if self._run and number and not self._put(_Outgoing(VIEW, run=self._run, view=number, body=encoded)):
            self.lost()

    def send(self, message: Packed) -> bool:
        """Sends a message of a node to the worker, or queues it. Returns False if it was dropped."""
        if not self._run or not self._room.has(message.type, len(message.body)):
            return False
        if self._put(_Outgoing(MESSAGE, message.type, message.node_id, self._run, 0, message.stamp, message.body)):
            return True
        self.lost()
        return False

    def send_from(self, worker: int, body: bytes) -> bool:
        """Sends a message of another worker to this one, or queues it. Returns False if it was dropped."""
        if not self._run:
            return False
        if self._put(_Outgoing(WORKER, 0, worker, self._run, 0, 0, body)):
            return True
        self.lost()
        return False

    def receive(self) -> list[tuple[int, Packed | FromWorker]]:
        """Returns messages to nodes in order, each with the number of the newest view that the worker had, and to workers."""
        found = []
        for packet in self._packets():
            if packet.kind == HELLO:
                self._clear()
                self._run, self.is_paused = packet.run, False
                self._send_view()
            elif packet.kind in (PAUSE, RESUME) and packet.run == self._run:
                self.is_paused = packet.kind == PAUSE
            elif packet.kind not in (MESSAGE, WORKER) or not self._run or packet.run != self._run:
                continue
            elif (one := self._assembled(packet)) is not None:
                found.append((packet.view, one))
        return found


def encode_view(view: SessionView) -> bytes:
    """Returns a view as the body of a packet."""
    members = [[*one] for one in view.members]
    return cbor2.dumps([view.epoch, members, view.digest, view.owners, sorted(view.linked), view.all_up, view.isolated])


def _decode_view(run: int, data: bytes) -> SessionView:
    epoch, members, digest, owners, linked, all_up, isolated = cbor2.loads(data)
    return SessionView(
        run, epoch, tuple((node, number) for node, number in members), digest, owners, frozenset(linked), all_up, isolated
    )
