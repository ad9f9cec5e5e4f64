"""Disks and shared memory of a simulated machine.

A file is a list of records. What was written outlives the death of processes (page cache); what was synced outlives the machine.
Of the rest, a power cut leaves any prefix: records are written in order, and a torn record fails its checksum and ends the file.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from shardbroker.cluster.inbound import Keep, Placed
from shardbroker.cluster.messages import Records, Route
from shardbroker.cluster.outbound import SpoolEntry, SpoolFull
from shardbroker.cluster.rlog import RouteKey

__all__ = ["File", "MemoryInlet", "MemoryRecords", "MemoryRing", "MemoryRoutes", "MemorySpool", "Record", "place", "place_rest"]

RECORD_BYTES = 40
RELEASED_KEPT = 30
"""Entries of a spool that may be back after a power cut: segments are removed as a whole."""


class File:
    """An append-only file."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.synced = 0

    def append(self, record: Any) -> None:
        self.records.append(record)

    def sync(self, up_to: int | None = None) -> None:
        self.synced = max(self.synced, len(self.records) if up_to is None else min(up_to, len(self.records)))

    def power_cut(self, rng: Random) -> None:
        del self.records[rng.randint(self.synced, len(self.records)) :]
        self.synced = len(self.records)


class Record(NamedTuple):
    """A message in a stream."""

    position: int
    qos: int
    body: bytes


class MemoryRecords(NamedTuple):
    """Records of one stream."""

    records: tuple[Record, ...]

    @property
    def end(self) -> int:
        return self.records[-1].position

    @property
    def size(self) -> int:
        return sum(len(record.body) + RECORD_BYTES for record in self.records)

    def counts(self) -> dict[int, int]:
        return dict(Counter(record.qos for record in self.records))

    def behind(self, position: int) -> "MemoryRecords | None":
        return _records(record for record in self.records if record.position > position)

    def kept(self) -> "MemoryRecords | None":
        return _records(record for record in self.records if record.qos)


def _records(records: Iterable[Record]) -> MemoryRecords | None:
    found = tuple(records)
    return MemoryRecords(found) if found else None


class MemoryRing:
    """A ring from a worker to a peer: both ends."""

    def __init__(self, lane: int, identity: int, capacity: int) -> None:
        self.lane, self.identity, self.capacity = lane, identity, capacity
        self.head = self.released = self.secured = 0
        self._records: list[Record] = []
        self._ends: list[int] = []

    def has_room(self, size: int) -> bool:
        return self.head - self.released + size + RECORD_BYTES <= self.capacity

    def put(self, qos: int, body: bytes) -> int:
        self.head += RECORD_BYTES + len(body)
        self._records.append(Record(self.head, qos, body))
        self._ends.append(self.head)
        return self.head

    def records(self, after: int, most_bytes: int) -> MemoryRecords | None:
        start = bisect_right(self._ends, after)
        end, size = start, 0
        while end < len(self._records) and (size < most_bytes or end == start):
            size += len(self._records[end].body)
            end += 1
        return _records(self._records[start:end])

    def release(self, position: int) -> None:
        assert self.released <= position <= self.head, f"ring: released {self.released} -> {position}, head {self.head}"
        self.released = position
        count = bisect_right(self._ends, position)
        del self._records[:count], self._ends[:count]

    def secure(self, position: int) -> None:
        # A new link process begins with what it knows.
        self.secured = max(self.secured, position)


class MemorySpool:
    """The spool for one peer."""

    def __init__(self, syncs: bool) -> None:
        self._entries: list[SpoolEntry] = []
        self._old: deque[SpoolEntry] = deque(maxlen=RELEASED_KEPT)
        self._syncs = syncs
        self.head = 0
        self.synced = 0
        self.bytes = 0
        self.is_full = False

    @property
    def first(self) -> int:
        return self._entries[0].sequence if self._entries else self.head

    def append(self, lane: int, identity: int, records: Records) -> None:
        if self.is_full:
            raise SpoolFull
        self._entries.append(SpoolEntry(self.head, lane, identity, records))
        self.head += 1
        self.bytes += records.size
        if not self._syncs:
            self.synced = self.head

    def read(self, first: int, most_bytes: int) -> list[SpoolEntry]:
        start = max(0, first - self.first)
        end, size = start, 0
        while end < len(self._entries) and (size < most_bytes or end == start):
            size += self._entries[end].records.size
            end += 1
        return self._entries[start:end]

    def release(self, first: int) -> None:
        count = min(first - self.first, len(self._entries))
        assert count >= 0, "spool: released backwards"
        for entry in self._entries[:count]:
            self.bytes -= entry.records.size
            self._old.append(entry)
        del self._entries[:count]

    def streams(self) -> Iterable[tuple[int, int]]:
        return dict.fromkeys((entry.lane, entry.identity) for entry in [*self._old, *self._entries])

    def clear(self) -> None:
        self._entries.clear()
        self._old.clear()
        self.bytes = 0

    def reopened(self, rng: Random, power_cut: bool) -> "MemorySpool":
        """Returns the spool as the next process finds it."""
        entries = list(self._entries)
        if power_cut:
            lost = rng.randint(0, max(0, self.head - max(self.synced, self.first)))
            entries = entries[: len(entries) - lost]
        back = rng.randint(0, len(self._old)) if power_cut else 0
        again = MemorySpool(self._syncs)
        for entry in [*list(self._old)[len(self._old) - back :], *entries]:
            again.append(entry.lane, entry.identity, entry.records)
        again.synced = again.head
        again._old.extendleft(reversed(list(self._old)[: len(self._old) - back]))
        return again


class MemoryInlet:
    """The ring from the link to one worker of its node."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.head = self.taken = self.secured = 0
        self.items: deque[tuple[int, int, int, Record | Keep]] = deque()

    def put(self, origin: int, identity: int, item: Record | Keep) -> int | None:
        size = RECORD_BYTES + (len(item.body) if isinstance(item, Record) else 0)
        if self.head - self.taken + size > self.capacity:
            return None
        self.head += size
        self.items.append((self.head, origin, identity, item))
        return self.head


def place(
    put: Callable[[int, Record], int | None],
    workers_of: Callable[[Record], Sequence[int]],
    records: Iterable[Record],
    full: Collection[int],
) -> Placed:
    """Puts records into the inlets of their workers, as the driver does."""
    ends: dict[int, int] = {}
    rests: dict[int, list[Record]] = {}
    for record in records:
        for worker in workers_of(record):
            position = None if worker in full or worker in rests else put(worker, record)
            if position is None:
                rests.setdefault(worker, []).append(record)
            else:
                ends[worker] = position
    return Placed(ends, {worker: MemoryRecords(tuple(rest)) for worker, rest in rests.items()})


def place_rest(put: Callable[[Record | Keep], int | None], rest: Any) -> tuple[int, Any]:
    """Puts what an inlet did not take before, as the driver does."""
    end = 0
    items = [rest] if isinstance(rest, Keep) else rest.records
    for number, item in enumerate(items):
        position = put(item)
        if position is None:
            return end, rest if isinstance(rest, Keep) else MemoryRecords(items[number:])
        end = position
    return end, None


class MemoryRoutes:
    """Remote routes of a node, as a RouteStore."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[RouteKey, tuple[int, Route]]] = {}
        self.by_filter: dict[bytes, set[int]] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._generation = 0

    def mark(self, node_id: int) -> tuple[int, int] | None:
        return self._marks.get(node_id)

    def begin(self, node_id: int) -> int:
        self._marks.pop(node_id, None)
        self._generation += 1
        return self._generation

    def put(self, node_id: int, generation: int, routes: Sequence[Route], mark: tuple[int, int] | None) -> None:
        rows = self.rows.setdefault(node_id, {})
        for route in routes:
            key = route.filter, route.group
            if route.members:
                rows[key] = generation, route
                self.by_filter.setdefault(route.filter, set()).add(node_id)
            elif key in rows:
                self._remove(node_id, key)
        if mark is not None:
            self.complete(node_id, mark)

    def _remove(self, node_id: int, key: RouteKey) -> None:
        del self.rows[node_id][key]
        self.by_filter[key[0]].discard(node_id)

    def sweep(self, node_id: int, generation: int, most: int) -> bool:
        old = [key for key, (of, _) in self.rows.get(node_id, {}).items() if of < generation]
        for key in old[:most]:
            self._remove(node_id, key)
        return len(old) <= most

    def complete(self, node_id: int, mark: tuple[int, int]) -> None:
        known = self._marks.get(node_id)
        assert known is None or known[0] != mark[0] or mark[1] >= known[1], f"route log of node {node_id}: {known} -> {mark}"
        self._marks[node_id] = mark

    def count(self, node_id: int) -> int:
        return len(self.rows.get(node_id, ()))

    def routes_of(self, node_id: int) -> dict[RouteKey, Route]:
        return {key: route for key, (_, route) in self.rows.get(node_id, {}).items()}
