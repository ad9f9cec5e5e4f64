"""Messages from a peer: ranges of its streams go to the rings of workers, and positions back to the peer; outbound.py has the rest.

A range of DATA starts where the one before ended; anything else ends the connection. The driver checks its records and puts them
into rings (Inlets). They are acknowledged in memory once all are in rings, and on disk once the journals of all workers that got
them have their positions. What a full ring does not take waits in the overflow, and the connection is not read above its limit.

A worker drops records that its journal covers already (StreamPositions), so a link process may be killed and started at any time.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    StreamAck,
    StreamOffer,
    StreamResume,
    Streams,
)

__all__ = ["Inbound", "Inlets", "Keep", "Placed", "Rest", "StreamPositions"]

KEEP_BYTES = 100
"""Bytes of a Keep besides its identities."""
LANES_MAX = 4_096
OVERFLOW_BYTES = 4 << 20
"""Bytes that wait for a full worker before a connection is not read any more."""


class Keep(NamedTuple):
    """Positions of a node's streams that a worker keeps; those of other streams are over."""

    identities: tuple[int, ...]

    @property
    def size(self) -> int:
        """Returns its bytes in the overflow."""
        return KEEP_BYTES + 8 * len(self.identities)


class Rest(Protocol):
    """What the full ring of a worker did not take: records, or a Keep."""

    @property
    def size(self) -> int:
        """Returns its bytes in the overflow."""


class Placed(NamedTuple):
    """What has become of the records of a range."""

    ends: Mapping[int, int]        # worker to the position in its ring behind the last record put there
    rests: Mapping[int, Rest]      # worker to what its ring did not take


class Inlets(Protocol):
    """Rings from a link process to the workers of its node."""

    def put(self, origin: int, identity: int, start: int, end: int, records: Records, full: Collection[int]) -> Placed:
        """Puts the records of a range of a node's stream into the rings of the workers that take them, except for `full` workers.
        Raises PeerFault for records that are malformed or not in the range."""

    def put_rest(self, worker: int, origin: int, identity: int, rest: Rest) -> tuple[int, Rest | None]:
        """Puts a rest, or a Keep, into the ring of a worker. Returns the position behind it, 0 if nothing was put, and what the
        ring did not take."""

    def secured(self, worker: int) -> int:
        """Returns the position in the ring of a worker up to which its disk has everything."""

    def workers(self) -> Sequence[int]:
        """Returns all workers."""


@dataclass
class _Mark:
    """The end of a received range, and what its records wait for."""

    end: int
    waiting: int = 0
    """Workers in whose rings not all records of the range are."""
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
        self._overflow: dict[int, deque[tuple[int, Rest, _Mark]]] = {}
        """Only workers for which something waits."""
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

    @property
    def is_full(self) -> bool:
        """Returns whether something waits for full workers."""
        return bool(self._overflow)

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
            self._wait(worker, 0, Keep(identities), _Mark(0))
        self.pump()

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
        if not start < end <= POSITION_MAX:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"DATA end: must be {start + 1} to {POSITION_MAX}, got {end}")
        ends, rests = self._inlets.put(self.node_id, stream.identity, start, end, records, self._overflow.keys())
        mark = _Mark(end, 0, dict(ends))
        stream.received = end
        stream.put.append(mark)
        for worker, rest in rests.items():
            self._wait(worker, stream.identity, rest, mark)
        return []

    def _wait(self, worker: int, identity: int, rest: Rest, mark: _Mark) -> None:
        mark.waiting += 1
        self._overflow.setdefault(worker, deque()).append((identity, rest, mark))
        self._overflow_bytes += rest.size

    def pump(self) -> None:
        """Puts what waits into the rings of workers that have room again."""
        if not self._overflow:
            return
        for worker, waiting in self._overflow.items():
            while waiting:
                identity, rest, mark = waiting[0]
                position, left = self._inlets.put_rest(worker, self.node_id, identity, rest)
                if position:
                    mark.needs[worker] = position
                self._overflow_bytes -= rest.size
                if left is not None:
                    self._overflow_bytes += left.size
                    waiting[0] = identity, left, mark
                    break
                waiting.popleft()
                mark.waiting -= 1
        self._overflow = {worker: waiting for worker, waiting in self._overflow.items() if waiting}

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
