"""Messages of sessions in link-0: from workers to nodes, and from nodes to the workers of their partitions.

    worker ── sessions ──> link-0 ── frame ──> link-0 of the peer ── sessions ──> worker of the peer
    worker ── sessions ──> link-0 ── sessions ──> another worker of this node, for exclusive subscriptions

A message with a key belongs to the worker of the key's partition. REBUILD, SESSIONS and MOVED belong to a set of partitions, so
each worker with one of them gets its part. A worker answers a part of REBUILD by itself, and SESSIONS names the partitions that are
answered; so link-0 keeps nothing of a message, and the registrar repeats REBUILD for those that a worker has not answered.

A worker that is being started cannot say which sessions it has: WHO and TAKE for it are answered with STARTING, and asked again.
Its sessions would count as lost otherwise, and their clients get new ones without subscriptions.

What the worker has sent before it knew of the present connection of a peer is dropped: a peer that is connected again may be
another incarnation, to which older answers mean something else.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shardbroker.cluster.messages import Announce, Held, Moved, Rebuild, SessionMessage, Sessions, Starting, Take, Who
from shardbroker.cluster.registry import BITMAP_BYTES
from shardbroker.cluster.session_view import SessionView
from shardbroker.link.frames import Frame, pack_frame
from shardbroker.link.session_channel import Budget, FromWorker, Packed, Room, WorkerEnd, encode_view
from shardbroker.link.session_codec import encode_session

__all__ = ["PeerQueue", "SessionDispatcher", "SessionSplit"]


class SessionSplit:
    """Assignment of messages to the workers of this node. `owners`: worker of each partition."""

    def __init__(self, owners: Sequence[int]) -> None:
        self._owners = owners
        self._masks: dict[int, int] = {}
        """Worker to its partitions, bit by bit."""
        for partition, worker in enumerate(owners):
            self._masks[worker] = self._masks.get(worker, 0) | 1 << partition

    def parts(self, message: SessionMessage) -> list[tuple[int, SessionMessage]]:
        """Returns the workers that get a message, and what each of them gets: the message itself if it is the only one."""
        match message:
            case Rebuild() | Moved():
                shares = self._shares(message.partitions)
                if len(shares) == 1:
                    return [(shares[0][0], message)]
                return [(worker, message._replace(partitions=bits)) for worker, bits in shares]
            case Sessions():
                return self._sessions(message)
            case Announce(held):
                return [(self._owners[held.key.partition], message)]
        return [(self._owners[message.key.partition], message)]

    def _shares(self, partitions: bytes) -> list[tuple[int, bytes]]:
        """Returns the workers with partitions in a bitmap, and the bitmap of each."""
        bits = int.from_bytes(partitions, "little")
        return [(worker, (bits & mask).to_bytes(BITMAP_BYTES, "little")) for worker, mask in self._masks.items() if bits & mask]

    def _sessions(self, message: Sessions) -> list[tuple[int, SessionMessage]]:
        shares, owners = self._shares(message.partitions), self._owners
        if len(shares) == 1 and all(owners[held.key.partition] == shares[0][0] for held in message.held):
            return [(shares[0][0], message)]
        # Parts stay numbered without a gap, so each worker gets one even if nothing in it is its own.
        held: dict[int, list[Held]] = {worker: [] for worker, _ in shares}
        for one in message.held:
            held.get(owners[one.key.partition], []).append(one)
        return [(worker, message._replace(partitions=bits, held=tuple(held[worker]))) for worker, bits in shares]


class PeerQueue:
    """Messages of sessions that wait for the connection of a peer."""

    def __init__(self, budget: Budget) -> None:
        self._room = Room(budget)
        self._queue: deque[Packed] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Returns whether the connection is to be ended."""
        return self._room.is_full

    @property
    def dropped(self) -> int:
        """Returns the number of messages that have found no room."""
        return self._room.dropped

    def put(self, message: Packed) -> bool:
        """Queues a message. Returns False if there is no room for it."""
        if not self._room.has(message.type, len(message.body)):
            return False
        self._queue.append(message)
        self._room.take(len(message.body))
        return True

    def next_frame(self) -> bytes:
        """Removes the first message; returns its frame."""
        one = self._queue.popleft()
        self._room.leave(len(one.body))
        return pack_frame(one.type, one.body, stamp=one.stamp)

    def close(self) -> None:
        """Takes the end of the connection."""
        self._queue.clear()
        self._room.clear()


class SessionDispatcher:
    """The ends of the channel `sessions` of all workers.

    `owners`: worker of each partition. `to_connection`: sends a message on a connection; returns False if it was dropped.
    `is_starting`: whether a worker is not there, or not ready yet.
    """

    def __init__(
        self,
        descriptors: Iterable[int],
        owners: Sequence[int],
        budget: Budget,
        to_connection: Callable[[int, Packed], bool],
        is_starting: Callable[[int], bool],
    ) -> None:
        self._is_starting = is_starting
        self._split = SessionSplit(owners)
        self._ends = [WorkerEnd(descriptor, budget) for descriptor in descriptors]
        self._to_connection = to_connection
        self.view: SessionView | None = None
        self._number = 0
        """Number of the view."""
        self._connections: dict[int, tuple[int, int]] = {}
        """Node to its connection, and the number of the first view with it."""
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writers: set[int] = set()

    @property
    def dropped(self) -> int:
        """Returns the number of messages that were dropped for lack of room."""
        return self._dropped + sum(end.dropped for end in self._ends)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to serve the workers."""
        self._loop = loop
        for end in self._ends:
            end.lost()
            loop.add_reader(end.fileno(), partial(self._read, end))
            self._written(end)

    def follow(self, view: SessionView, connections: dict[int, int]) -> None:
        """Takes a change of the view, before anything is done that follows from it. `connections`: node to its connection."""
        self.view = view
        self._number += 1
        before = self._connections
        self._connections = {
            node: before[node] if node in before and before[node][0] == connection else (connection, self._number)
            for node, connection in connections.items()
        }
        encoded = encode_view(view)
        for end in self._ends:
            end.set_view(self._number, encoded)
            self._written(end)

    def arrived(self, node_id: int, message: SessionMessage, frame: Frame) -> None:
        """Takes a message of a node, and the frame with it."""
        for worker, part in self._split.parts(message):
            if isinstance(part, Who | Take) and (self._is_starting(worker) or self._ends[worker].is_paused):
                self._answer(node_id, Starting(part.number if isinstance(part, Who) else part.generation, part.key), frame.stamp)
                continue
            kind, body = (frame.type, frame.body) if part is message else encode_session(part)
            self._ends[worker].send(Packed(node_id, kind, body, frame.stamp))
            self._written(self._ends[worker])

    def _answer(self, node_id: int, message: SessionMessage, stamp: int) -> None:
        """Answers a node in place of a worker, with the stamp that the node has sent: this process has no clock of its own."""
        connection, _ = self._connections.get(node_id, (0, 0))
        if connection and not self._to_connection(connection, Packed(node_id, *encode_session(message), stamp)):
            self._dropped += 1

    def _read(self, end: WorkerEnd) -> None:
        for number, message in end.receive():
            if isinstance(message, FromWorker):
                self._to_worker(end, message)
                continue
            connection, first = self._connections.get(message.node_id, (0, 0))
            if connection and number >= first and not self._to_connection(connection, message):
                self._dropped += 1
        self._written(end)

    def _to_worker(self, end: WorkerEnd, message: FromWorker) -> None:
        """Passes on a message of a worker to another one."""
        if message.worker < len(self._ends):
            other = self._ends[message.worker]
            self._dropped += not other.send_from(self._ends.index(end), message.body)
            self._written(other)

    def _written(self, end: WorkerEnd) -> None:
        """Waits for the socket of a worker as long as something waits there."""
        descriptor = end.fileno()
        if self._loop is None or end.waits == (descriptor in self._writers):
            return
        if end.waits:
            self._writers.add(descriptor)
            self._loop.add_writer(descriptor, self._flush, end)
        else:
            self._writers.discard(descriptor)
            self._loop.remove_writer(descriptor)

    def _flush(self, end: WorkerEnd) -> None:
        end.flush()
        self._written(end)
