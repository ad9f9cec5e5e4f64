"""Routes between nodes: each node owns its routes and streams their log to every peer.

    receiver                                 sender (owner of the routes)
    ROUTES_FROM(log, position)  ->                                        what the receiver has of the peer's log
                                <-  RESUME(log, position, head)           the log continues there, or
                                <-  BEGIN(log, position), PART..., END(parts, head)     a dump, beside which the log grows
    PART_ACK                    ->
                                <-  ENTRIES(log, first, ...)              each position of the log once, in order
    ACK(position)               ->

    state of the receiver       BOOTSTRAP (dump) -> LOCAL_REPLAY (up to `head`) -> NORMAL

A log belongs to an incarnation of its node: `log_id` is that incarnation, and positions of another one mean nothing. A dump is
read in batches while routes change, so it is no state that ever existed; entries are idempotent (a route or its absence), and the
log since the dump began brings the table to the state at `head`. Rows that the receiver had stay until the dump is complete and
those that it did not renew are removed, so a table never lacks a route that both dumps have.

The log keeps a bounded number of entries. A receiver whose position has left it gets a dump again, also in the middle of a dump.

Invariants: a receiver stores positions in order without gaps; it acknowledges what is stored; the mark (log id, position) of a
table is stored with the rows, and is absent while a dump is incomplete.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from itertools import islice
from typing import Protocol

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    POSITION_MAX,
    Message,
    Route,
    RouteAck,
    RouteEntries,
    RoutePartAck,
    RoutesBegin,
    RoutesEnd,
    RoutesFrom,
    RoutesPart,
    RoutesResume,
)
from shardbroker.cluster.outputs import SubackDue
from shardbroker.cluster.view import RouteState

__all__ = [
    "BATCH_ROUTES",
    "LOG_ENTRIES",
    "DumpSlots",
    "MemoryRouteLog",
    "RouteReceiver",
    "RouteSender",
    "RouteSource",
    "RouteStore",
    "SubackWait",
    "order_of",
]

LOG_ENTRIES = 1_000_000
"""Entries kept of a log: 100 s of the storm that follows the loss of a large node, at 10,000 changes/s; 60 MB."""
BATCH_ROUTES = 2_000
"""Routes of a batch: 5 ms of the one process that writes remote routes."""
BATCH_BYTES = 1 << 20
"""Bytes of the filters and group names in a batch; one that crosses the limit is the last of its batch."""
WINDOW_BATCHES = 8
"""Batches on their way to a peer: 16,000 routes, which is more than 1,000,000 routes/s at 10 ms round trip."""
DUMPS_AT_A_TIME = 4
"""Dumps that a node sends at the same time: after a restart of all nodes each of 22 peers wants one."""
TEXT_MAX = 65_535
"""Bytes of a filter or a group name: the length field of MQTT strings."""
MEMBERS_MAX = 10_000_000
"""Members of a shared group on one node; more than a node has sessions."""
FLAGS_MAX = 0xFF
ROUTES_MAX = 64_000_000
"""Routes of one peer: 3.3 GB of tmpfs at 52 B. A peer that sends more is faulty, and its link ends before memory does."""
ACK_STALL_MS = 10_000
"""Without an acknowledgement of routes for so long, a link ends: otherwise a peer could hold a place for dumps for ever."""
SUBACKS_MAX = 100_000
"""SUBACKs that wait at the same time; beyond it the oldest is sent, and counted as late."""

ORDER_BYTES = 511
"""Bytes of a place in a dump: what a key of LMDB takes."""

RouteKey = tuple[bytes, bytes]
"""Filter and group name."""


def order_of(key: RouteKey) -> bytes:
    """Returns the place of a route in a dump, which is in the order of these bytes: by filter and group, the longest ones last.

    No two routes share a place. NUL is in no filter and 0xFF in no UTF-8 text.
    """
    text = b"\0".join(key)
    return text if len(text) <= ORDER_BYTES else b"\xff" + blake2b(text, digest_size=16).digest()


class RouteSource(Protocol):
    """Routes of this node and their log; both in one LMDB environment, so that a route and its entry are one transaction."""

    @property
    def first(self) -> int:
        """Returns the position of the oldest entry kept; head + 1 if there is no entry."""

    @property
    def head(self) -> int:
        """Returns the position of the newest entry; 0 if there never was one."""

    def entries(self, first: int, most: int) -> Sequence[Route]:
        """Returns at most `most` entries from position `first` on; none if that one was removed since the caller read `first`."""

    def rows(self, after: RouteKey | None, most: int) -> Sequence[Route]:
        """Returns at most `most` routes behind a key, in the order of order_of(); fewer only at the end."""


class RouteStore(Protocol):
    """Routes of all peers, in an environment of its own. Each method is one transaction."""

    def mark(self, node_id: int) -> tuple[int, int] | None:
        """Returns log id and position up to which the rows of a node are complete, or None."""

    def begin(self, node_id: int) -> int:
        """Removes the mark and returns the generation of the dump that begins; rows of older ones stay."""

    def put(self, node_id: int, generation: int, routes: Sequence[Route], mark: tuple[int, int] | None) -> None:
        """Stores routes, removes those with members 0, and sets the mark if there is one."""

    def sweep(self, node_id: int, generation: int, most: int) -> bool:
        """Removes at most `most` rows older than a generation; returns True if there are no more."""

    def complete(self, node_id: int, mark: tuple[int, int]) -> None:
        """Sets the mark: all rows of the node are of this dump and of the log behind it."""

    def count(self, node_id: int) -> int:
        """Returns the number of rows of a node."""


class MemoryRouteLog:
    """A RouteSource in memory; the link process has one in LMDB."""

    def __init__(self, keep: int = LOG_ENTRIES) -> None:
        self.head = 0
        self.routes: dict[RouteKey, Route] = {}
        self._keys: list[tuple[bytes, RouteKey]] = []
        self._entries: deque[Route] = deque(maxlen=keep)

    @property
    def first(self) -> int:
        return self.head - len(self._entries) + 1

    def update(self, changes: Iterable[Route]) -> int:
        """Applies changes that change something, and returns the position of the last entry."""
        for route in changes:
            key = route.filter, route.group
            known = self.routes.get(key)
            if route == known or (not route.members and known is None):
                continue
            if not route.members:
                del self.routes[key]
                del self._keys[bisect_right(self._keys, (order_of(key), key)) - 1]
            else:
                if known is None:
                    insort(self._keys, (order_of(key), key))
                self.routes[key] = route
            self._entries.append(route)
            self.head += 1
        return self.head

    def entries(self, first: int, most: int) -> list[Route]:
        start = first - self.first
        return list(islice(self._entries, start, start + most))

    def rows(self, after: RouteKey | None, most: int) -> list[Route]:
        start = 0 if after is None else bisect_right(self._keys, (order_of(after), after))
        return [self.routes[key] for _, key in self._keys[start : start + most]]


def _cut(routes: Sequence[Route]) -> tuple[Route, ...]:
    """Returns as many of the routes as fit a batch, at least one."""
    size = 0
    for number, route in enumerate(routes):
        size += len(route.filter) + len(route.group)
        if size >= BATCH_BYTES:
            return tuple(routes[: number + 1])
    return tuple(routes)


def _checked(routes: Sequence[Route], least_members: int) -> None:
    """Raises PeerFault if a batch, or a field of one of its routes, is out of range."""
    if not 0 < len(routes) <= BATCH_ROUTES:
        raise PeerFault(ByeReason.LIMIT, f"batch of routes: must have 1 to {BATCH_ROUTES}, got {len(routes)}")
    texts = b"".join([text for route in routes for text in route[:2]])
    if b"\0" in texts or b"\xff" in texts:
        raise PeerFault(ByeReason.PROTOCOL_ERROR, "filter and group of a route: must be UTF-8 without NUL")
    for route in routes:
        if not 0 < len(route.filter) <= TEXT_MAX or len(route.group) > TEXT_MAX:
            sizes = f"{len(route.filter)} and {len(route.group)}"
            raise PeerFault(ByeReason.LIMIT, f"filter and group of a route: must have 1 to {TEXT_MAX} bytes, got {sizes}")
        if not least_members <= route.members <= MEMBERS_MAX:
            text = f"members of a route: must be {least_members} to {MEMBERS_MAX}, got {route.members}"
            raise PeerFault(ByeReason.PROTOCOL_ERROR, text)
        if not 0 <= route.flags <= FLAGS_MAX:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"flags of a route: must be 0 to {FLAGS_MAX}, got {route.flags}")


@dataclass
class DumpSlots:
    """Places for dumps that are sent at the same time."""

    most: int = DUMPS_AT_A_TIME
    taken: set[int] = field(default_factory=set)

    def take(self, node_id: int) -> bool:
        """Returns whether a peer has, or now gets, a place."""
        if node_id not in self.taken and len(self.taken) >= self.most:
            return False
        self.taken.add(node_id)
        return True

    def give_back(self, node_id: int) -> None:
        self.taken.discard(node_id)


class _Phase(Enum):
    ASKED = "waits for ROUTES_FROM"
    WAITING = "waits for a place for its dump"
    DUMP = "dump"
    LOG = "log"


class RouteSender:
    """This node's routes to one peer, on one connection."""

    def __init__(self, source: RouteSource, log_id: int, node_id: int, slots: DumpSlots, now_ms: int) -> None:
        self._source, self._log_id, self._node_id, self._slots = source, log_id, node_id, slots
        self._phase = _Phase.ASKED
        self._after: RouteKey | None = None
        self._parts_sent = self._parts_acked = 0
        self._sent = 0
        """Position of the last entry sent."""
        self._target = 0
        self._moved_ms = now_ms
        self.acked = 0
        """Position up to which the peer has stored the log. It does not fall when a dump begins: old rows serve meanwhile."""
        self.bootstraps = 0

    @property
    def is_complete(self) -> bool:
        """Returns whether the peer has the routes as of the head that it was given when the log was resumed or the dump ended."""
        return self._phase == _Phase.LOG and self.acked >= self._target

    @property
    def lag(self) -> int:
        """Returns the number of entries that the peer has not stored."""
        return self._source.head - self.acked

    def receive(self, message: RoutesFrom | RoutePartAck | RouteAck, now_ms: int) -> list[Message]:
        """Takes a message of the peer and returns the answers. Raises PeerFault."""
        match message:
            case RoutesFrom():
                if self._phase != _Phase.ASKED:
                    raise PeerFault(ByeReason.PROTOCOL_ERROR, "ROUTES_FROM: must be sent once, at the start of a connection")
                return self._start(message, now_ms)
            case RoutePartAck(parts):
                if not self._parts_acked < parts <= self._parts_sent:
                    text = f"ROUTE_PART_ACK: must be {self._parts_acked + 1} to {self._parts_sent}, got {parts}"
                    raise PeerFault(ByeReason.PROTOCOL_ERROR, text)
                self._parts_acked = parts
            case RouteAck(position):
                if not self.acked <= position <= self._sent:
                    raise PeerFault(ByeReason.PROTOCOL_ERROR, f"ROUTE_ACK: must be {self.acked} to {self._sent}, got {position}")
                self.acked = position
        self._moved_ms = now_ms
        return self.pump(now_ms)

    def _start(self, asked: RoutesFrom, now_ms: int) -> list[Message]:
        source = self._source
        self._moved_ms = now_ms
        if self._holds(asked.log_id, asked.position):
            self._phase, self._sent, self.acked, self._target = _Phase.LOG, asked.position, asked.position, source.head
            return [RoutesResume(self._log_id, asked.position, source.head), *self.pump(now_ms)]
        self._phase = _Phase.WAITING
        return self.pump(now_ms)

    def _holds(self, log_id: int, position: int) -> bool:
        """Returns whether the log can be continued behind a position."""
        return log_id == self._log_id and self._source.first - 1 <= position <= self._source.head

    def _overrun(self, position: int) -> bool:
        return position < self._source.first - 1

    def pump(self, now_ms: int) -> list[Message]:
        """Returns what the window allows to send. Raises PeerFault if the peer does not acknowledge."""
        out: list[Message] = []
        if self._phase == _Phase.WAITING and self._slots.take(self._node_id):
            self._phase, self._after, self._sent = _Phase.DUMP, None, self._source.head
            self.bootstraps += 1
            self._moved_ms = now_ms
            out.append(RoutesBegin(self._log_id, self._sent))
        if self._phase == _Phase.DUMP:
            self._dump(out)
        if self._phase == _Phase.LOG:
            self._log(out)
        is_waiting = self._phase == _Phase.ASKED or self._parts_sent > self._parts_acked or self._sent > self.acked
        if self._phase == _Phase.WAITING or not is_waiting:
            self._moved_ms = now_ms
        elif now_ms - self._moved_ms >= ACK_STALL_MS:
            raise PeerFault(ByeReason.STALLED, f"routes: no acknowledgement for {now_ms - self._moved_ms} ms")
        return out

    def _dump(self, out: list[Message]) -> None:
        while self._phase == _Phase.DUMP and self._parts_sent - self._parts_acked < WINDOW_BATCHES:
            if self._overrun(self._sent):
                # The changes since the dump began are lost: it begins again, on the same place.
                self._after, self._sent = None, self._source.head
                self.bootstraps += 1
                out.append(RoutesBegin(self._log_id, self._sent))
            found = self._source.rows(self._after, BATCH_ROUTES)
            if rows := _cut(found):
                self._parts_sent += 1
                self._after = rows[-1].filter, rows[-1].group
                out.append(RoutesPart(self._parts_sent, rows))
            if len(found) < BATCH_ROUTES and len(rows) == len(found):
                self._phase, self._target = _Phase.LOG, self._source.head
                self._slots.give_back(self._node_id)
                out.append(RoutesEnd(self._parts_sent, self._target))

    def _log(self, out: list[Message]) -> None:
        source = self._source
        while self._sent < source.head and self._sent - self.acked < WINDOW_BATCHES * BATCH_ROUTES:
            if self._overrun(self._sent):
                self._phase = _Phase.WAITING
                return
            entries = _cut(source.entries(self._sent + 1, BATCH_ROUTES))
            if not entries:
                continue  # overrun meanwhile
            out.append(RouteEntries(self._log_id, self._sent + 1, entries))
            self._sent += len(entries)

    def close(self) -> None:
        """Gives back the place of the dump; the connection has ended."""
        self._slots.give_back(self._node_id)


class RouteReceiver:
    """A peer's routes, on one connection."""

    def __init__(self, store: RouteStore, node_id: int, log_id: int) -> None:
        self._store, self._node_id, self._log_id = store, node_id, log_id
        self.state = RouteState.DISCONNECTED
        self.position = 0
        self._target = 0
        self._generation = 0
        self._parts = 0
        self._last = b""
        self._sweeps = False
        """The dump is complete, and rows of older ones are being removed."""

    def start(self) -> list[Message]:
        """Returns what this side sends first."""
        log_id, position = self._store.mark(self._node_id) or (0, 0)
        self.position = position if log_id == self._log_id else 0
        return [RoutesFrom(log_id, position)]

    def receive(self, message: RoutesResume | RoutesBegin | RoutesPart | RoutesEnd | RouteEntries) -> list[Message]:
        """Takes a message of the peer and returns the answers. Raises PeerFault."""
        match message:
            case RoutesResume(log_id, position, head):
                return self._resume(log_id, position, head)
            case RoutesBegin(log_id, position):
                self._check_log(log_id)
                self._check_position("ROUTES_BEGIN", position, self.position)
                self._generation = self._store.begin(self._node_id)
                self.state, self.position, self._last, self._sweeps = RouteState.BOOTSTRAP, position, b"", False
                return []
            case RoutesPart(number, rows):
                return self._part(number, rows)
            case RoutesEnd(parts, head):
                self._check_state("ROUTES_END", RouteState.BOOTSTRAP)
                self._check_position("ROUTES_END", head, self.position)
                if parts != self._parts:
                    raise PeerFault(ByeReason.PROTOCOL_ERROR, f"ROUTES_END parts: must be {self._parts}, got {parts}")
                self.state, self._target, self._sweeps = RouteState.LOCAL_REPLAY, head, True
                return self.work()
            case RouteEntries(log_id, first, entries):
                return self._entries(log_id, first, entries)

    def _resume(self, log_id: int, position: int, head: int) -> list[Message]:
        self._check_state("ROUTES_RESUME", RouteState.DISCONNECTED)
        self._check_log(log_id)
        self._check_position("ROUTES_RESUME", head, position)
        if self._store.mark(self._node_id) != (log_id, position):
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"ROUTES_RESUME position: must be that of ROUTES_FROM, got {position}")
        self._generation = 0
        self.state, self._target = RouteState.LOCAL_REPLAY, head
        self._arrive()
        return []

    def _part(self, number: int, rows: Sequence[Route]) -> list[Message]:
        self._check_state("ROUTES_PART", RouteState.BOOTSTRAP)
        _checked(rows, 1)
        if number != self._parts + 1:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"ROUTES_PART number: must be {self._parts + 1}, got {number}")
        for route in rows:
            place = order_of((route.filter, route.group))
            if place <= self._last:
                raise PeerFault(ByeReason.PROTOCOL_ERROR, "ROUTES_PART: must be in the order of filters and groups")
            self._last = place
        self._check_room(len(rows))
        self._store.put(self._node_id, self._generation, rows, None)
        self._parts = number
        return [RoutePartAck(number)]

    def _entries(self, log_id: int, first: int, entries: Sequence[Route]) -> list[Message]:
        if self.state not in (RouteState.LOCAL_REPLAY, RouteState.NORMAL):
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"ROUTE_LOG: not allowed in state {self.state.name}")
        self._check_log(log_id)
        _checked(entries, 0)
        if first != self.position + 1:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"ROUTE_LOG first: must be {self.position + 1}, got {first}")
        self._check_position("ROUTE_LOG", first + len(entries), first)
        self._check_room(len(entries))
        self.position += len(entries)
        self._store.put(self._node_id, self._generation, entries, None if self._sweeps else (self._log_id, self.position))
        self._arrive()
        return [] if self._sweeps else [RouteAck(self.position)]

    def work(self) -> list[Message]:
        """Removes a batch of rows that the dump did not renew; to be called while `has_work`."""
        if not self._sweeps or not self._store.sweep(self._node_id, self._generation, BATCH_ROUTES):
            return []
        self._sweeps = False
        self._store.complete(self._node_id, (self._log_id, self.position))
        self._arrive()
        return [RouteAck(self.position)]

    @property
    def has_work(self) -> bool:
        return self._sweeps

    def _arrive(self) -> None:
        if self.state == RouteState.LOCAL_REPLAY and not self._sweeps and self.position >= self._target:
            self.state = RouteState.NORMAL

    def _check_log(self, log_id: int) -> None:
        if log_id != self._log_id:
            text = f"route log: must be that of incarnation {self._log_id}, got {log_id}"
            raise PeerFault(ByeReason.PROTOCOL_ERROR, text)

    def _check_state(self, what: str, state: RouteState) -> None:
        if self.state != state:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{what}: not allowed in state {self.state.name}")

    def _check_position(self, what: str, position: int, least: int) -> None:
        if not least <= position <= POSITION_MAX:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{what} position: must be {least} to {POSITION_MAX}, got {position}")

    def _check_room(self, more: int) -> None:
        if self._store.count(self._node_id) + more > ROUTES_MAX:
            raise PeerFault(ByeReason.LIMIT, f"routes of node {self._node_id}: must be at most {ROUTES_MAX}")


@dataclass
class SubackWait:
    """SUBACKs that wait until all peers that are up have the routes behind them."""

    limit_ms: int = 100
    """A SUBACK waits so long at most."""
    is_local: bool = False
    """`cluster.suback = local`: no SUBACK waits."""
    late: int = 0
    """Counter `suback.late`."""
    sent: int = 0
    """Position up to which SUBACKs were sent: a link rises to UP once the peer has the routes up to here."""
    _waiting: deque[tuple[int, int, int]] = field(default_factory=deque)

    def hold(self, ticket: int, position: int, now_ms: int) -> list[SubackDue]:
        """Takes a SUBACK whose routes end at a position of the log; returns those that are due at once."""
        if self.is_local:
            self.sent = max(self.sent, position)
            return [SubackDue(ticket, False)]
        self._waiting.append((position, now_ms + self.limit_ms, ticket))
        if len(self._waiting) <= SUBACKS_MAX:
            return []
        self.late += 1
        self.sent, _, oldest = self._waiting.popleft()
        return [SubackDue(oldest, True)]

    def release(self, acked: Iterable[int], now_ms: int) -> list[SubackDue]:
        """Returns the SUBACKs that are due, given the acknowledged positions of the peers that are up."""
        if not self._waiting:
            return []
        reached = min(acked, default=POSITION_MAX)
        due: list[SubackDue] = []
        # Positions and limits both grow along the queue.
        while self._waiting and (self._waiting[0][0] <= reached or self._waiting[0][1] <= now_ms):
            position, _, ticket = self._waiting.popleft()
            self.sent = max(self.sent, position)
            due.append(SubackDue(ticket, position > reached))
            self.late += position > reached
        return due

    def __len__(self) -> int:
        return len(self._waiting)
