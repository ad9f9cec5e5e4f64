"""Messages from a peer: ranges of its streams go to the rings of workers, and positions back to the peer; outbound.py has the rest.

A range of DATA starts where the one before ended; anything else ends the connection. Its records are acknowledged in memory once
all are in rings, and on disk once the journals of all workers that got them have their positions. What a full ring does not take
waits in the overflow, and the connection is not read above its limit.

A worker drops records that its journal covers already (StreamPositions), so a link process may be killed and started at any time.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    POSITION_MAX,
    STREAMS_MAX,
    Data,
    DataAck,
    Message,
    Record,
    Resume,
    StreamAck,
    StreamOffer,
    StreamResume,
    Streams,
)

__all__ = ["Inbound", "Inlets", "Keep", "StreamPositions"]

RECORDS_MAX = 65_536
"""Records of a message: a record of 200 B is usual, and an empty one has 40 B in the ring."""
BODY_MAX = 268_435_456 + (64 << 10)
"""Bytes of a record: the largest MQTT packet, and the header of the record."""
RECORD_BYTES = 40
"""Bytes of a record besides its body."""
LANES_MAX = 4_096
OVERFLOW_BYTES = 4 << 20
"""Bytes that wait for a full worker before a connection is not read any more."""


class Keep(NamedTuple):
    """Positions of a node's streams that a worker keeps; those of other streams are over."""

    identities: tuple[int, ...]


class Inlets(Protocol):
    """Rings from a link process to the workers of its node."""

    def workers_of(self, record: Record) -> Sequence[int]:
        """Returns the workers that take a record."""

    def put(self, worker: int, origin: int, identity: int, item: Record | Keep) -> int | None:
        """Puts a record of a node's stream, or a Keep, into the ring of a worker; returns the position behind it, or None if the
        ring is full."""

    def secured(self, worker: int) -> int:
        """Returns the position in the ring of a worker up to which its disk has everything."""

    def workers(self) -> Sequence[int]:
        """Returns all workers."""


def _size(item: Record | Keep) -> int:
    """Returns the bytes that an item takes in the overflow."""
    return RECORD_BYTES + (len(item.body) if isinstance(item, Record) else 8 * len(item.identities))


@dataclass
class _Mark:
    """The end of a received range, and what its records wait for."""

    end: int
    waiting: int = 0
    """Records of the range that wait for room in a worker's ring."""
    needs: dict[int, int] = field(default_factory=dict)
    """Worker to the position in its ring behind the last record of the range."""


@dataclass
class _ReceiveStream:
    """One stream of a peer."""

    lane: int
    identity: int
    received: int
    memory: int
    disk: int
    told: tuple[int, int] | None = None
    """Positions last acknowledged on this connection."""
    put: deque[_Mark] = field(default_factory=deque)
    """Ranges that are not in memory."""
    kept: deque[_Mark] = field(default_factory=deque)
    """Ranges in memory that are not on disk."""


class Inbound:
    """The streams of one peer, for as long as the link process lives."""

    def __init__(self, node_id: int, inlets: Inlets) -> None:
        self.node_id = node_id
        self._inlets = inlets
        self._streams: dict[int, _ReceiveStream] = {}
        self._by_index: dict[int, _ReceiveStream] = {}
        self._overflow: dict[int, deque[tuple[int, Record | Keep, _Mark]]] = {}
        self._overflow_bytes = 0

    def connected(self) -> None:
        """Takes a new connection into use."""
        self._by_index.clear()

    @property
    def is_reading(self) -> bool:
        """Returns whether the connection is to be read: too much waits for full workers otherwise."""
        return self._overflow_bytes < OVERFLOW_BYTES

    @property
    def is_waiting(self) -> bool:
        """Returns whether records wait for rings or disks of workers, so that positions will move without a message."""
        return any(stream.put or stream.kept for stream in self._by_index.values())

    def receive(self, message: Streams | Data) -> list[Message]:
        """Takes a message of the peer and returns the answers. Raises PeerFault."""
        return self._offers(message) if isinstance(message, Streams) else self._data(message)

    def _offers(self, message: Streams) -> list[Message]:
        offers = message.offers
        kept = 0 if message.complete else len(self._streams)
        if kept + len(offers) > STREAMS_MAX:
            raise PeerFault(ByeReason.LIMIT, f"streams of a peer: must be at most {STREAMS_MAX}, got {kept + len(offers)}")
        if message.complete and self._by_index:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, "STREAMS: must be complete once, at the start of a connection")
        for offer in offers:
            if not (0 <= offer.lane < LANES_MAX and 0 < offer.identity <= POSITION_MAX and 0 <= offer.start <= POSITION_MAX):
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"STREAMS: lane, identity or start out of range in {tuple(offer)}")
            if offer.stream in self._by_index:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, f"STREAMS stream: must be new, got {offer.stream}")
            self._by_index[offer.stream] = self._offered(offer)
        if len({id(stream) for stream in self._by_index.values()}) < len(self._by_index):
            raise PeerFault(ByeReason.PROTOCOL_ERROR, "STREAMS identity: must differ between streams")
        if message.complete:
            self._keep(tuple(offer.identity for offer in offers))
        return [Resume(tuple(StreamResume(offer.stream, self._by_index[offer.stream].received) for offer in offers))]

    def _offered(self, offer: StreamOffer) -> _ReceiveStream:
        """Returns the stream of an offer. What the peer has before its start, it has released: an earlier link took it."""
        stream = self._streams.get(offer.identity)
        if stream is None:
            start = offer.start
            stream = self._streams[offer.identity] = _ReceiveStream(offer.lane, offer.identity, start, start, start)
        elif stream.received < offer.start:
            stream.received = offer.start
            stream.put.append(_Mark(offer.start))
        stream.told = None
        return stream

    def _keep(self, identities: tuple[int, ...]) -> None:
        """Ends all other streams. Workers learn of it behind what is still on its way to them: a record that was sent twice may
        be."""
        for identity in {*self._streams} - {*identities}:
            del self._streams[identity]
        for worker in self._inlets.workers():
            self._put(worker, 0, Keep(identities), _Mark(0))

    def forget(self) -> None:
        """Ends all streams; the peer is gone, or has another data directory."""
        self._by_index.clear()
        self._keep(())

    def _data(self, message: Data) -> list[Message]:
        index, start, end, records = message
        stream = self._by_index.get(index)
        if stream is None:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"DATA stream: must be that of an offered stream, got {index}")
        if start != stream.received:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"DATA start: must be {stream.received}, got {start}")
        if not start < end <= POSITION_MAX or len(records) > RECORDS_MAX:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"DATA: {len(records)} records from {start} to {end} are out of range")
        last = start
        for record in records:
            if not last < record.position <= end or record.qos not in (0, 1, 2) or len(record.body) > BODY_MAX:
                text = f"DATA record: position must be {last + 1} to {end} and QoS 0 to 2, got {record.position} and {record.qos}"
                raise PeerFault(ByeReason.PROTOCOL_ERROR, text)
            last = record.position
        mark = _Mark(end)
        stream.received = end
        stream.put.append(mark)
        for record in records:
            for worker in self._inlets.workers_of(record):
                self._put(worker, stream.identity, record, mark)
        return []

    def _put(self, worker: int, identity: int, item: Record | Keep, mark: _Mark) -> None:
        if not self._overflow.get(worker):
            position = self._inlets.put(worker, self.node_id, identity, item)
            if position is not None:
                mark.needs[worker] = position
                return
        mark.waiting += 1
        self._overflow.setdefault(worker, deque()).append((identity, item, mark))
        self._overflow_bytes += _size(item)

    def pump(self) -> None:
        """Puts what waits into the rings of workers that have room again."""
        for worker, waiting in self._overflow.items():
            while waiting:
                identity, item, mark = waiting[0]
                position = self._inlets.put(worker, self.node_id, identity, item)
                if position is None:
                    break
                waiting.popleft()
                mark.waiting -= 1
                mark.needs[worker] = position
                self._overflow_bytes -= _size(item)

    def acks(self) -> list[Message]:
        """Returns the positions that have moved since the last call, at most one message."""
        moved: list[StreamAck] = []
        for index, stream in self._by_index.items():
            self._advance(stream)
            if stream.told != (stream.memory, stream.disk):
                stream.told = stream.memory, stream.disk
                moved.append(StreamAck(index, stream.memory, stream.disk))
        return [DataAck(tuple(moved))] if moved else []

    def _advance(self, stream: _ReceiveStream) -> None:
        while stream.put and not stream.put[0].waiting:
            mark = stream.put.popleft()
            stream.memory = mark.end
            stream.kept.append(mark)
        while stream.kept and all(self._inlets.secured(worker) >= need for worker, need in stream.kept[0].needs.items()):
            stream.disk = stream.kept.popleft().end


class StreamPositions:
    """Positions of streams that a worker has dealt with. What changed is journaled in one block with the messages it covers."""

    def __init__(self, positions: dict[tuple[int, int], int] | None = None) -> None:
        self._positions = dict(positions or {})
        self._changed: dict[tuple[int, int], int | None] = {}

    def take(self, origin: int, identity: int, position: int) -> bool:
        """Returns whether a record of a node's stream is new, and notes its position."""
        key = origin, identity
        if position <= self._positions.get(key, 0):
            return False
        self._positions[key] = self._changed[key] = position
        return True

    def keep(self, origin: int, identities: Iterable[int]) -> None:
        """Forgets the streams of a node that are over, which are all but these."""
        kept = {*identities}
        for key in [key for key in self._positions if key[0] == origin and key[1] not in kept]:
            del self._positions[key]
            self._changed[key] = None

    def changed(self) -> dict[tuple[int, int], int | None]:
        """Returns what the next block of the journal has to contain: the position of each stream that moved, None for one that
        ended."""
        changed, self._changed = self._changed, {}
        return changed

    def snapshot(self) -> dict[tuple[int, int], int]:
        """Returns all positions, for the first block of a journal."""
        return dict(self._positions)
