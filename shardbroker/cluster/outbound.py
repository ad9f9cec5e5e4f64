"""Messages to a peer: streams of records with positions, which are sent again until they are covered. inbound.py takes them once.

    publisher's worker ──ring (lane)──> Outbound ═ DATA ═> Inbound ──ring──> subscriber's worker (StreamPositions)
                                        │   ^ <═ ACK(memory, disk) ═            journals a message together with its position
                                        v   │
                                        spool

A stream is what one ring carries; its identity is that of the ring, a random number, so a new ring is a new stream and positions
of another ring mean nothing. The position of a record is that behind its last byte in the ring. A record is kept until the peer's
position covers it: at level `process` the position in memory (rings survive the death of processes), at level `machine` that on
its disk. After any interruption sending continues at the acknowledged position, and the worker that takes a record drops what its
journal covers already, so a resend is harmless.

    state of a peer   LIVE -> PARKED (connection lost, `grace_ms`) -> SPOOLING -> DRAINING -> LIVE

The spool extends the rings: a record is moved from the ring's tail to the spool's head, under its identity and position, so a
stream continues from the spool into the ring without a mark between them. Rings of a broker that was killed are moved there first.
QoS 0 is never spooled: it is dropped and counted. Above `spool_bytes` the oldest records are dropped and counted by QoS.

Invariants, for each stream: released, moved, memory and disk never fall; `sent` returns to the position of the peer with each
connection; what the spool has of a stream lies before what its ring has; the records of a stream are sent in the order of their
positions, and ranges of one connection follow each other without a gap.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    POSITION_MAX,
    STREAMS_MAX,
    Data,
    DataAck,
    Message,
    Records,
    Resume,
    StreamOffer,
    Streams,
)

__all__ = ["LaneRing", "Level", "Outbound", "OutboundSettings", "PeerState", "Spool", "SpoolEntry", "SpoolFull"]

DATA_BYTES = 256 << 10
"""Bytes of the records in one message, and in one entry of the spool; a record that crosses the limit is the last one."""
PUMP_BYTES = 1 << 20
"""Bytes that one call sends, as one `sendmsg`."""
SPOOL_WINDOW_BYTES = 1 << 20
"""Bytes of the spool on their way: at 10 ms round trip 100 MB/s."""


class Level(Enum):
    """What an acknowledgement to a publisher outlives: a copy of the setting `durability.level`."""

    PROCESS = "process"
    MACHINE = "machine"


class PeerState(Enum):
    """State of the streams to a peer."""

    LIVE = "live"
    PARKED = "parked"
    SPOOLING = "spooling"
    DRAINING = "draining"


class LaneRing(Protocol):
    """The reading end of a ring from a worker to a peer."""

    lane: int
    identity: int
    capacity: int

    @property
    def head(self) -> int:
        """Returns the position behind the last committed record."""

    @property
    def released(self) -> int:
        """Returns the position before which the room has been given back."""

    def records(self, after: int, most_bytes: int) -> Records | None:
        """Returns records behind a position, at least one if there is one, else None."""

    def release(self, position: int) -> None:
        """Gives the room before a position back to the worker."""

    def secure(self, position: int) -> None:
        """Reports that records before a position outlive the machine: the worker may acknowledge them."""


class SpoolFull(Exception):
    """The disk takes no more; nothing was appended."""


class SpoolEntry(NamedTuple):
    """Records of one stream in the spool. Sequences are consecutive."""

    sequence: int
    lane: int
    identity: int
    records: Records


class Spool(Protocol):
    """Records for one peer on disk, in segments; what was appended outlives the process, and what is synced the machine."""

    @property
    def first(self) -> int:
        """Returns the sequence of the oldest entry; head if it is empty."""

    @property
    def head(self) -> int:
        """Returns the sequence of the next entry."""

    @property
    def synced(self) -> int:
        """Returns the sequence up to which (exclusive) entries are synced. What a spool has when it is opened, is synced first."""

    @property
    def bytes(self) -> int:
        """Returns the size of the entries."""

    def append(self, lane: int, identity: int, records: Records) -> None:
        """Appends an entry. Raises SpoolFull."""

    def read(self, first: int, most_bytes: int) -> Sequence[SpoolEntry]:
        """Returns entries from a sequence on, at least one if there is one."""

    def release(self, first: int) -> None:
        """Removes the entries before a sequence. That outlives the process; after a power cut some of them may be back."""

    def clear(self) -> None:
        """Removes all entries, for ever."""

    def streams(self) -> Iterable[tuple[int, int]]:
        """Returns lane and identity of all streams with entries, or with released ones that may be back after a power cut;
        oldest first."""


@dataclass(frozen=True)
class OutboundSettings:
    """Limits of the streams to a peer."""

    level: Level = Level.PROCESS
    grace_ms: int = 250
    """`cluster.link.grace`: a link may be dead so long before its spool begins."""
    stall_ms: int = 5_000
    """`cluster.link.stall`: without progress for so long, a link counts as dead."""
    spool_bytes: int = 1 << 30
    """`cluster.spool.bytes`: the oldest records beyond it are dropped."""


@dataclass
class _SendStream:
    """One stream to a peer."""

    lane: int
    identity: int
    ring: LaneRing | None
    released: int
    """Position up to which the peer has the records, or they were dropped."""
    moved: int
    """Position up to which records are in the spool, or need not be there."""
    sent: int = 0
    memory: int = 0
    disk: int = 0
    secured: int = 0
    index: int | None = None
    offered: int = 0
    """Position at which the stream was offered to the peer."""
    is_resumed: bool = False
    """The peer has answered the offer."""
    spooled: int = 0
    """Entries in the spool."""

    @property
    def head(self) -> int:
        return self.moved if self.ring is None else max(self.ring.head, self.moved)


class Outbound:
    """The streams to one peer."""

    def __init__(self, spool: Spool, settings: OutboundSettings, now_ms: int) -> None:
        self.settings = settings
        self.state = PeerState.PARKED
        self.dropped: Counter[int] = Counter()
        """Records dropped by QoS: QoS 0 for an unreachable peer, QoS 1 and 2 above the limit of the spool."""
        self.resent = 0
        self.spool_failing = False
        """The disk takes no more of the spool: an alarm; records stay in their rings, and publishers are held."""
        self._spool = spool
        self._streams: dict[int, _SendStream] = {}
        self._left_over: list[_SendStream] = []
        """Streams of a killed broker whose rings have not been moved to the spool."""
        self._by_index: dict[int, _SendStream] = {}
        self._next_index = 0
        self._connected = False
        self._resumed = False
        self._since_ms = now_ms
        self._moved_ms = now_ms
        """Time of the last progress."""
        self._cursor = spool.first
        """Next entry of the spool to send."""
        self._in_flight: deque[tuple[int, int, int, int]] = deque()
        """Entries of the spool before the cursor: sequence, identity, position, size."""
        self._in_flight_bytes = 0
        self._unsynced: deque[tuple[int, int, int]] = deque()
        """Entries of the spool that are not synced: sequence, identity, position."""
        for lane, identity in spool.streams():
            self._streams[identity] = _SendStream(lane, identity, None, 0, 0)
        for entry in self._entries_of_spool():
            stream = self._streams[entry.identity]
            stream.moved = entry.records.end
            stream.spooled += 1
        # Workers of an earlier link process may wait for these.
        self._unsynced.extend((spool.head - 1, stream.identity, stream.moved) for stream in self._streams.values())

    def _entries_of_spool(self) -> Iterable[SpoolEntry]:
        first = self._spool.first
        while entries := self._spool.read(first, PUMP_BYTES):
            yield from entries
            first = entries[-1].sequence + 1

    # --- rings ---------------------------------------------------------------------------------------------------------

    def add_ring(self, ring: LaneRing, is_left_over: bool = False) -> list[Message]:
        """Takes a ring; those that a killed broker left are added first, oldest first. Raises ValueError for one too many."""
        if len(self._streams) >= STREAMS_MAX:
            raise ValueError(f"streams to a peer: must be at most {STREAMS_MAX}")
        stream = self._streams.get(ring.identity)
        if stream is None:
            stream = _SendStream(ring.lane, ring.identity, ring, ring.released, ring.released)
            self._streams[ring.identity] = stream
        else:
            # A ring of which the spool has the beginning.
            stream.ring = ring
            stream.moved = max(stream.moved, ring.released)
        stream.sent = stream.released
        if is_left_over:
            self._left_over.append(stream)
            self._move_left_over()
        if not self._connected:
            return []
        return [Streams((self._offer(stream),), False)]

    def _offer(self, stream: _SendStream) -> StreamOffer:
        stream.index = self._next_index
        self._next_index += 1
        self._by_index[stream.index] = stream
        stream.offered, stream.is_resumed = stream.released, False
        return StreamOffer(stream.index, stream.lane, stream.identity, stream.offered)

    @property
    def takes_qos0(self) -> bool:
        """Returns whether QoS 0 for the peer is put into the ring; otherwise the worker drops and counts it."""
        return self.state in (PeerState.LIVE, PeerState.DRAINING)

    @property
    def has_left_over(self) -> bool:
        """Returns whether a ring of a killed broker has records that are not in the spool yet."""
        return bool(self._left_over)

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing is kept for the peer."""
        rings = all(stream.ring is None or stream.ring.head == stream.ring.released for stream in self._streams.values())
        return rings and self._spool.first == self._spool.head

    def drop_all(self) -> Counter[int]:
        """Drops everything that is kept for the peer, which is gone; returns the numbers by QoS."""
        dropped: Counter[int] = Counter()
        for entry in self._entries_of_spool():
            dropped.update(entry.records.counts())
            self._streams[entry.identity].spooled -= 1
            self._streams[entry.identity].released = max(self._streams[entry.identity].released, entry.records.end)
        self._spool.clear()
        for stream in self._streams.values():
            if stream.ring is not None:
                while records := stream.ring.records(max(stream.moved, stream.released), PUMP_BYTES):
                    dropped.update(records.counts())
                    stream.moved = stream.released = records.end
                stream.ring.release(stream.head)
                stream.ring.secure(stream.head)
        self._cursor = self._spool.head
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._unsynced.clear()
        self.dropped += dropped
        return dropped

    # --- connection ----------------------------------------------------------------------------------------------------

    def connected(self, now_ms: int) -> list[Message]:
        """Takes a proved connection into use and returns what is sent first."""
        self._connected, self._resumed = True, False
        self._moved_ms = now_ms
        self._by_index.clear()
        self._next_index = 0
        self._forget_streams()
        return [Streams(tuple(self._offer(stream) for stream in self._streams.values()), True)]

    def _forget_streams(self) -> None:
        """Removes streams without a ring of which everything is released, and nothing may be back after a power cut: once a stream
        is not offered, the peer forgets its position."""
        kept = {identity for _, identity in self._spool.streams()}
        for identity in [identity for identity, stream in self._streams.items() if stream.ring is None]:
            if identity not in kept:
                del self._streams[identity]

    def disconnected(self, now_ms: int) -> None:
        """Takes the end of the connection."""
        self._connected = self._resumed = False
        self.state = PeerState.PARKED if self.state in (PeerState.LIVE, PeerState.DRAINING) else self.state
        self._since_ms = now_ms

    def stalled(self, now_ms: int) -> bool:
        """Returns whether the peer has made no progress for too long; its connection is then to be closed."""
        streams = self._streams.values()
        waits = not self._resumed or self._in_flight or any(stream.sent > stream.released for stream in streams)
        if not self._connected or not waits:
            self._moved_ms = now_ms
        return now_ms - self._moved_ms >= self.settings.stall_ms

    def receive(self, message: Resume | DataAck, now_ms: int) -> None:
        """Takes a message of the peer. Raises PeerFault."""
        match message:
            case Resume(positions):
                for index, position in positions:
                    self._resume(self._stream("RESUME", index), position)
                if not self._resumed:
                    self._begin(now_ms)
            case DataAck(positions):
                for index, memory, disk in positions:
                    self._acknowledge(self._stream("ACK", index), memory, disk)
                self._settle()
        self._moved_ms = now_ms

    def _stream(self, what: str, index: int) -> _SendStream:
        stream = self._by_index.get(index)
        if stream is None:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{what} stream: must be that of an offered stream, got {index}")
        return stream

    def _resume(self, stream: _SendStream, position: int) -> None:
        # Without its ring the end of a stream is unknown: a power cut may have taken what the peer has already.
        most = POSITION_MAX if stream.ring is None else stream.head
        if stream.is_resumed or not stream.offered <= position <= most:
            text = f"RESUME position: must be {stream.offered} to {most}, once, got {position}"
            raise PeerFault(ByeReason.PROTOCOL_ERROR, text)
        self.resent += stream.sent > position
        stream.sent, stream.is_resumed = position, True

    def _begin(self, now_ms: int) -> None:
        """Begins to send: the spool first."""
        if missing := sum(not stream.is_resumed for stream in self._by_index.values()):
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"RESUME: must have a position for each stream, {missing} are missing")
        self._resumed = True
        self._cursor = self._spool.first
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self.state = PeerState.DRAINING
        self._since_ms = now_ms

    def _acknowledge(self, stream: _SendStream, memory: int, disk: int) -> None:
        if not disk <= memory <= stream.sent:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"ACK: must be disk <= memory <= {stream.sent}, got {disk} and {memory}")
        # A restarted link of the peer begins with positions below those of its predecessor: they add nothing.
        stream.memory, stream.disk = max(stream.memory, memory), max(stream.disk, disk)
        covered = stream.disk if self.settings.level == Level.MACHINE else stream.memory
        stream.released = max(stream.released, covered)
        self._secure(stream, stream.disk)

    def _secure(self, stream: _SendStream, position: int) -> None:
        if stream.ring is not None and position > stream.secured:
            stream.secured = position
            stream.ring.secure(position)

    def _settle(self) -> None:
        """Gives back what is released, in the rings and in the spool."""
        for stream in self._streams.values():
            if stream.ring is not None and max(stream.released, stream.moved) > stream.ring.released:
                stream.ring.release(max(stream.released, stream.moved))
        first = self._spool.first
        while self._in_flight:
            sequence, identity, position, size = self._in_flight[0]
            stream = self._streams[identity]
            if position > stream.released:
                break
            self._in_flight.popleft()
            self._in_flight_bytes -= size
            stream.spooled -= 1
            first = sequence + 1
        if first > self._spool.first:
            self._spool.release(first)

    # --- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Does what is due by the clock: the spool begins, or takes more; to be called every pass."""
        self._move_left_over()
        if self.state == PeerState.PARKED and (now_ms - self._since_ms >= self.settings.grace_ms or self._is_half_full()):
            self.state = PeerState.SPOOLING
        if self.state == PeerState.SPOOLING or (self.state == PeerState.DRAINING and self._is_half_full()):
            self._move_rings()
        while self._unsynced and self._unsynced[0][0] < self._spool.synced:
            _, identity, position = self._unsynced.popleft()
            if (stream := self._streams.get(identity)) is not None:
                self._secure(stream, position)
        self._bound_spool()

    def _is_half_full(self) -> bool:
        rings = [stream.ring for stream in self._streams.values() if stream.ring is not None]
        return any(2 * (ring.head - ring.released) >= ring.capacity for ring in rings)

    def _move_left_over(self) -> None:
        while self._left_over and self._move(self._left_over[0]):
            self._left_over.pop(0).ring = None

    def _move_rings(self) -> None:
        for stream in self._streams.values():
            if self._left_over or not self._move(stream):
                return

    def _move(self, stream: _SendStream) -> bool:
        """Moves what a ring has to the spool; returns False if the disk takes no more."""
        ring = stream.ring
        if ring is None:
            return True
        while records := ring.records(max(stream.moved, stream.released), DATA_BYTES):
            if kept := records.kept():
                try:
                    self._spool.append(stream.lane, stream.identity, kept)
                except SpoolFull:
                    self.spool_failing = True
                    return False
                self.spool_failing = False
                stream.spooled += 1
                # The entry covers QoS 0 behind its records too.
                self._unsynced.append((self._spool.head - 1, stream.identity, records.end))
            self.dropped[0] += records.counts().get(0, 0)
            stream.moved = records.end
        if stream.moved > ring.released:
            ring.release(stream.moved)
        return True

    def _bound_spool(self) -> None:
        while self._spool.bytes > self.settings.spool_bytes:
            for entry in self._spool.read(self._spool.first, 1):
                stream = self._streams[entry.identity]
                self.dropped.update(entry.records.counts())
                stream.spooled -= 1
                # The next range that is sent covers the gap.
                stream.released = max(stream.released, entry.records.end)
                if self._in_flight and self._in_flight[0][0] == entry.sequence:
                    self._in_flight_bytes -= self._in_flight.popleft()[3]
                self._cursor = max(self._cursor, entry.sequence + 1)
                self._spool.release(entry.sequence + 1)

    # --- sending -------------------------------------------------------------------------------------------------------

    def pump(self) -> list[Data]:
        """Returns what is to be sent next; to be called while the connection takes more."""
        out: list[Data] = []
        if not self._resumed or self._left_over:
            return out
        most_bytes = self._pump_spool(out, PUMP_BYTES)
        if self._cursor < self._spool.head:
            return out
        self.state = PeerState.LIVE
        for stream in self._streams.values():
            if stream.ring is None or not stream.is_resumed:
                continue
            while most_bytes > 0:
                after = max(stream.sent, stream.moved, stream.released)
                if not (records := stream.ring.records(after, min(most_bytes, DATA_BYTES))):
                    break
                most_bytes -= records.size
                out.append(self._data(stream, records))
        return out

    def _pump_spool(self, out: list[Data], most_bytes: int) -> int:
        """Adds what the window allows of the spool; returns how many bytes are left."""
        while most_bytes > 0 and self._cursor < self._spool.head and self._in_flight_bytes < SPOOL_WINDOW_BYTES:
            for sequence, _, identity, records in self._spool.read(self._cursor, min(most_bytes, DATA_BYTES)):
                stream = self._streams[identity]
                most_bytes -= records.size
                self._in_flight.append((sequence, identity, records.end, records.size))
                self._in_flight_bytes += records.size
                if unsent := records.behind(stream.sent):
                    out.append(self._data(stream, unsent))
                self._cursor = sequence + 1
        self._settle()
        return most_bytes

    def _data(self, stream: _SendStream, records: Records) -> Data:
        assert stream.index is not None
        data = Data(stream.index, stream.sent, records.end, records)
        stream.sent = data.end
        return data
