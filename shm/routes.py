"""The route table: topic filters -> destinations, in an LMDB environment on tmpfs that every worker reads without a lock.

    db "exact"     filter                          -> destinations      (LMDB dupsort: one value per destination)
    db "wild"      filter, levels joined by NUL    -> destinations
    db "wildlong"  prefix NUL 0xFF digest          -> destinations      wildcard filters longer than a key
    db "long"      digest                          -> references u32 | the filter or group name itself

    value          kind 0: 00 | destination u32                        a plain route
                   kind 1: 01 | destination u32 | session key u64 | group name        a member of a shared group
                   kind 2: see remote_routes.py                                       members of a shared group on another node

    destination    see destinations.pxd                                               integers are big endian

Routes of other nodes are in an environment of their own (remote_routes.py); a Search covers both. With a log, the same transactions
note what the changes mean to other nodes (route_log.py).

Exact filters take one look-up. For wildcards the levels of the topic are walked as a path through the ordered keys. At each prefix
only the continuations `+`, `#` and the topic's own level are sought, and only where a key with that prefix exists, so the cost
follows the prefixes that match. With enough filters these may be 2^levels: a Search visits them in steps. A filter longer than an
LMDB key is stored under its longest prefix of whole levels that fits and a digest, and compared in full. NUL cannot occur in a
filter [MQTT-4.7.3-2], 0xFF not in UTF-8.

Invariants: a text in "long" has as many references as there are values whose key or group name is its digest, and is removed with
the last of them; every change is one transaction, so readers see all of it or nothing.
"""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from shardbroker.mqtt.topics import matches
from shm.destinations import DestinationKind, destination_kind, destination_number
from shm.keys import KEY_MAX, LONG_MARK, digest_of, levels_key_of
from shm.route_log import LOG_ENTRIES, RouteLog

__all__ = [
    "FilterRoutes",
    "Group",
    "Match",
    "RouteChange",
    "RouteDatabase",
    "RouteTable",
    "RouteTableFull",
    "Search",
]

GROUP_MAX = KEY_MAX - 16
"""Longest group name stored in the value itself, bytes; the fields before it take 13."""
REFERENCES = 4
"""Size of the reference count before a long text, bytes."""
MAP_BYTES = 16 << 30
"""Virtual size of the environment; tmpfs holds only what is used."""
READERS = 1024
"""Reader slots: one per process and thread with an open read transaction."""
PURGE_BATCH = 2000
"""Routes visited, and at most removed, in one transaction: other writers wait for some 10 ms at worst."""
VALUES_A_VISIT = 8
"""Values of a filter that take as long as a seek, about 2 µs."""
PAGE_VISITS = 10_000
"""Routes visited in one call of page(): some 5 ms."""
NODE_MEMBERS_MAX = 10_000
"""Members of a shared group on another node that a Match lists: 1 MB. Of a larger group the list has evenly spaced indexes."""

DATABASES = 6
"""Named databases of an environment: four of routes, and those of the log or of the nodes."""
MEMBER, NODE_GROUP = 1, 2
"""Kinds of values that belong to shared groups."""
NODE_GROUP_END = 7
"""Bytes behind the group name in a value of kind 2: NUL, count u32, generation u16."""

_ONE = (1).to_bytes(8, sys.byteorder)
_Place = tuple[bytes, bytes]
"""A key and one of its values."""


class RouteTableFull(Exception):
    """The map, or the tmpfs below it, has no room for the change; nothing of the batch was stored."""


class RouteChange(NamedTuple):
    """A route to add or to remove. With `group`, the membership of session `member` in a shared group."""

    add: bool
    filter: bytes
    destination: int
    group: bytes = b""
    member: int = 0


class Group(NamedTuple):
    """A shared group that a topic matches: members are (destination, session key), in the same order for all readers.

    Members on another node are (destination of the node, index of the member there). Nodes are ordered by number, so that with the
    same members the order is the same on all nodes.
    """

    name: bytes
    filter: bytes
    members: tuple[tuple[int, int], ...]


class FilterRoutes(NamedTuple):
    """Destinations of one filter: (destination, shared group or b"", members of the group there)."""

    filter: bytes
    routes: list[tuple[int, bytes, int]]


class Match(NamedTuple):
    """The result for a topic: filters with plain routes, all their destinations, and shared groups."""

    filters: list[bytes]
    destinations: tuple[int, ...]
    groups: list[Group]


def has_wildcard(filter: bytes) -> bool:
    """Returns whether a filter has a wildcard; in a valid one `+` and `#` are nothing else."""
    return b"+" in filter or b"#" in filter


class RouteDatabase:
    """One process's handle on routes at `path`; opened after the fork, never carried across one."""

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES, readers: int = READERS) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # No syncs: the page cache outlives every process, and the file is on tmpfs anyway. No writable map: with it, a full tmpfs
        # would be SIGBUS instead of an error.
        self._env = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=DATABASES, max_readers=readers, sync=False, metasync=False, mode=0o600
        )
        self._env.reader_check()
        self._exact: Any = self._env.open_db(b"exact", dupsort=True)
        self._wild: Any = self._env.open_db(b"wild", dupsort=True)
        self._wild_long: Any = self._env.open_db(b"wildlong", dupsort=True)
        self._long: Any = self._env.open_db(b"long")
        self._routes = (self._exact, self._wild, self._wild_long)

    def close(self) -> None:
        """Closes the environment; no other method may be called afterwards."""
        self._env.close()

    def reader_check(self) -> int:
        """Frees the reader slots of processes killed during a read, so that old pages are reused; returns how many."""
        return int(self._env.reader_check())

    # --- keys and texts -----------------------------------------------------------------------------------------

    def _key(self, filter: bytes) -> tuple[Any, bytes, bytes]:
        """Returns database and key of a filter, and the filter itself if the key has its digest."""
        if not has_wildcard(filter):
            if len(filter) <= KEY_MAX:
                return self._exact, filter, b""
            return self._exact, LONG_MARK + digest_of(filter), filter
        key = filter.replace(b"/", b"\0")
        if len(key) <= KEY_MAX:
            return self._wild, key, b""
        return self._wild_long, levels_key_of(key, filter), filter

    def _remove(self, txn: lmdb.Transaction, db: Any, key: bytes, value: bytes) -> bool:
        """Removes one route and its references to long texts; returns whether the route existed."""
        if not txn.delete(key, value, db=db):
            return False
        _, mark, filter_digest = key.partition(LONG_MARK)
        if mark:
            self._let_go(txn, filter_digest)
        if (group := _group_of(value))[:1] == LONG_MARK:
            self._let_go(txn, group[1:])
        return True

    def _hold(self, txn: lmdb.Transaction, text: bytes) -> None:
        digest = digest_of(text)
        stored = _get(txn, digest, self._long)
        references = 1 if stored is None else int.from_bytes(stored[:REFERENCES], "big") + 1
        txn.put(digest, references.to_bytes(REFERENCES, "big") + text, db=self._long)

    def _let_go(self, txn: lmdb.Transaction, digest: bytes) -> None:
        stored = _get(txn, digest, self._long)
        if stored is None:
            return
        references = int.from_bytes(stored[:REFERENCES], "big") - 1
        if references:
            txn.put(digest, references.to_bytes(REFERENCES, "big") + stored[REFERENCES:], db=self._long)
        else:
            txn.delete(digest, db=self._long)

    def _text(self, txn: lmdb.Transaction, digest: bytes) -> bytes:
        """Returns the long text with this digest; empty, which no filter or group name is, if the digest is unknown."""
        return (_get(txn, digest, self._long) or b"")[REFERENCES:]

    def _filter_of(self, txn: lmdb.Transaction, key: bytes) -> bytes:
        """Returns the filter with this key."""
        _, mark, digest = key.partition(LONG_MARK)
        return self._text(txn, digest) if mark else key.replace(b"\0", b"/")

    def _group_name(self, txn: lmdb.Transaction, value: bytes) -> bytes:
        """Returns the group name of a value, b"" for a plain route."""
        group = _group_of(value)
        return self._text(txn, group[1:]) if group.startswith(LONG_MARK) else group

    # --- matching -----------------------------------------------------------------------------------------------

    def match(self, topic: bytes) -> Match:
        """Returns all that a publish to this topic leads to. The topic is valid and has no wildcard."""
        found = self.search(topic).step(sys.maxsize)
        assert found is not None
        return found

    def search(self, topic: bytes) -> "Search":
        """Returns the same search in steps of bounded size."""
        return Search((self,), topic)

    def _match_exact(self, txn: lmdb.Transaction, topic: bytes, found: "_Collector") -> None:
        key = topic
        if len(topic) > KEY_MAX:
            digest = digest_of(topic)
            if self._text(txn, digest) != topic:
                return
            key = LONG_MARK + digest
        with txn.cursor(self._exact) as cursor:
            if cursor.set_key(key):
                found.add(topic, cursor.iternext_dup())

    # --- inspection ---------------------------------------------------------------------------------------------------------------

    def filters(self, below: bytes = b"") -> Generator[bytes, None, None]:
        """Yields every filter with a route, exact ones first, in one snapshot. Consume it quickly: it holds a read transaction.

        `below`: only filters that start with these bytes, a few whole levels and a slash. Others are not visited, except for exact
        filters longer than a key.
        """
        with self._env.begin() as txn:
            for db, starts in ((self._exact, (below, LONG_MARK)), (self._wild, (below,)), (self._wild_long, (below,))):
                with txn.cursor(db) as cursor:
                    for start in starts if below else (b"",):
                        for key in _keys_from(cursor, start if db == self._exact else start.replace(b"/", b"\0")):
                            filter = self._filter_of(txn, key)
                            if filter.startswith(below):
                                yield filter

    def page(self, after: tuple[int, bytes] | None, limit: int) -> tuple[list[FilterRoutes], tuple[int, bytes] | None]:
        """Returns the next filters, at most `limit`, with their routes, and the next value of `after`, None at the end.

        A call visits at most PAGE_VISITS routes, or all of one filter.
        """
        found: list[FilterRoutes] = []
        number, start = after if after is not None else (0, b"")
        visits = PAGE_VISITS
        with self._env.begin() as txn:
            while number < len(self._routes):
                with txn.cursor(self._routes[number]) as cursor:
                    more = cursor.set_range(start) if start else cursor.first()
                    if more and start and bytes(cursor.key()) == start:
                        more = cursor.next_nodup()
                    while more:
                        if len(found) >= limit or visits <= 0:
                            return found, (number, start)
                        start = bytes(cursor.key())
                        values = [bytes(value) for value in cursor.iternext_dup()]
                        visits -= len(values)
                        found.append(self._filter_routes(txn, start, values))
                        more = cursor.set_key(start) and cursor.next_nodup()
                number, start = number + 1, b""
        return found, None

    def routes_of(self, filter: bytes) -> FilterRoutes | None:
        """Returns the routes of one filter, or None if it has no subscriber."""
        db, key, _ = self._key(filter)
        with self._env.begin() as txn, txn.cursor(db) as cursor:
            if not cursor.set_key(key):
                return None
            return self._filter_routes(txn, key, [bytes(value) for value in cursor.iternext_dup()])

    def _filter_routes(self, txn: lmdb.Transaction, key: bytes, values: list[bytes]) -> FilterRoutes:
        filter = self._filter_of(txn, key)
        members: dict[tuple[int, bytes], int] = {}
        for value in values:
            place = int.from_bytes(value[1:5], "big"), self._group_name(txn, value)
            members[place] = members.get(place, 0) + (_count_of(value) if value[0] == NODE_GROUP else 1)
        return FilterRoutes(filter, [(to, group, count) for (to, group), count in members.items()])


class RouteTable(RouteDatabase):
    """The routes of this node's workers.

    log: create the log of a table that is new. A table that has a log keeps it, whichever process changes the table.
    remote: routes of other nodes, which search() and match() cover too. node: number of this node, for the order of members.
    bell: eventfd of the reader of the log, rung behind each transaction that changes the log.
    """

    def __init__(
        self, path: Path, *, map_bytes: int = MAP_BYTES, readers: int = READERS, log: bool = False, log_entries: int = LOG_ENTRIES,
        remote: RouteDatabase | None = None, node: int = 0, bell: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(path, map_bytes=map_bytes, readers=readers)
        self.log: RouteLog | None = None
        with suppress(lmdb.NotFoundError):
            self.log = RouteLog(self._env, create=log, keep=log_entries)
        self.remote = remote
        self.node = node
        self._bell = bell

    def search(self, topic: bytes) -> "Search":
        """Returns a search in this table and in that of other nodes, in steps of bounded size."""
        return Search((self,) if self.remote is None else (self, self.remote), topic, self.node)

    def count(self) -> int:
        """Returns the number of routes in the table: one per filter and destination, or group member."""
        with self._env.begin() as txn:
            return sum(int(txn.stat(db)["entries"]) for db in self._routes)

    # --- writing ------------------------------------------------------------------------------------------------

    def update(self, changes: Iterable[tuple[bool, bytes, int, bytes, int]]) -> int:
        """Applies all changes (each a RouteChange) in one transaction, in order.

        Adding an existing route and removing a missing one are no errors. Returns the position of the log up to which a peer needs
        it to have the routes added and not those removed; 0 without a log, or if peers need none of it. Raises RouteTableFull, even
        for a removal: LMDB copies the pages that it changes.
        """
        exact: list[_Place] = []
        wild: list[_Place] = []
        reached = 0
        try:
            with self._env.begin(write=True) as txn:
                if self.log is not None:
                    reached = self._update_logged(self.log, txn, changes)
                    changes = ()
                for change in changes:
                    add, filter, to, group, _ = change
                    if group or len(filter) > KEY_MAX:
                        self._change(txn, change)
                    elif add:
                        if has_wildcard(filter):
                            wild.append((filter.replace(b"/", b"\0"), b"\0" + to.to_bytes(4, "big")))
                        else:
                            exact.append((filter, b"\0" + to.to_bytes(4, "big")))
                    else:
                        # Removals usually precede adds. Adds are gathered, since a cursor stores many of them at a third of the
                        # cost.
                        self._add_all(txn, exact, wild)
                        if has_wildcard(filter):
                            txn.delete(filter.replace(b"/", b"\0"), b"\0" + to.to_bytes(4, "big"), db=self._wild)
                        else:
                            txn.delete(filter, b"\0" + to.to_bytes(4, "big"), db=self._exact)
                self._add_all(txn, exact, wild)
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise RouteTableFull(f"route table {self._env.path()} is full: {error}") from error
        self._ring(reached)
        return reached

    def _ring(self, reached: int) -> None:
        """Wakes the reader of the log; a counter of the eventfd that is full has it awake already."""
        if reached and self._bell >= 0:
            with suppress(BlockingIOError):
                os.write(self._bell, _ONE)

    def _update_logged(self, log: RouteLog, txn: lmdb.Transaction, changes: Iterable[tuple[bool, bytes, int, bytes, int]]) -> int:
        deltas: dict[tuple[bytes, bytes], int] = {}
        for change in changes:
            add, filter, to, group, _ = change
            changed = self._change(txn, change)
            if destination_kind(to) == DestinationKind.WORKER and (add or changed):
                deltas[filter, group] = deltas.get((filter, group), 0) + (changed if add else -changed)
        return log.append(txn, deltas)

    def _add_all(self, txn: lmdb.Transaction, exact: list[_Place], wild: list[_Place]) -> None:
        """Stores the gathered adds and clears the lists."""
        for db, places in ((self._exact, exact), (self._wild, wild)):
            if places:
                with txn.cursor(db) as cursor:
                    cursor.putmulti(places, dupdata=False)
                places.clear()

    def _change(self, txn: lmdb.Transaction, change: tuple[bool, bytes, int, bytes, int]) -> bool:
        """Applies one change of any kind: of a group, or with a filter longer than a key. Returns whether it changed the table."""
        add, filter, to, group, member = change
        db, key, long_filter = self._key(filter)
        value, long_group = _value(to, group, member)
        if not add:
            return self._remove(txn, db, key, value)
        if not txn.put(key, value, db=db, dupdata=False):
            return False
        for text in (long_filter, long_group):
            if text:
                self._hold(txn, text)
        return True

    def replace(self, destination: int, routes: Iterable[tuple[bool, bytes, int, bytes, int]]) -> int:
        """Makes `routes` (additions, all to `destination`) the only ones to it; returns the number of routes removed.

        Routes in both sets are present all the time. Raises RouteTableFull.
        """
        wanted = list(routes)
        self.update(wanted)
        kept = set()
        for _, filter, to, group, member in wanted:
            db, key, _ = self._key(filter)
            kept.add((id(db), key, _value(to, group, member)[0]))
        return self._purge(destination, kept)

    def purge(self, destination: int) -> int:
        """Removes every route to a destination and returns their number.

        It works in batches, found by reading: other writers wait for the removal of one batch, never for the search. Raises
        RouteTableFull; batches removed before stay removed.
        """
        return self._purge(destination, set())

    def _purge(self, destination: int, kept: set[tuple[int, bytes, bytes]]) -> int:
        removed = 0
        for db in self._routes:
            after: _Place | None = None
            while True:
                doomed, after = self._routes_to(db, destination.to_bytes(4, "big"), after)
                if kept:
                    doomed = [(key, value) for key, value in doomed if (id(db), key, value) not in kept]
                if doomed:
                    removed += self._remove_all(db, doomed)
                if after is None:
                    break
        return removed

    def _routes_to(self, db: Any, needle: bytes, after: _Place | None) -> tuple[list[_Place], _Place | None]:
        """Returns the routes to a destination among the next PURGE_BATCH, and the place to continue at (None: the end)."""
        doomed: list[_Place] = []
        with self._env.begin() as txn, txn.cursor(db) as cursor:
            found = resume_at(cursor, after)
            for _ in range(PURGE_BATCH):
                if not found:
                    return doomed, None
                key, value = item_at(cursor)
                if value[1:5] == needle:
                    doomed.append((key, value))
                found = cursor.next()
            return doomed, item_at(cursor) if found else None

    def _remove_all(self, db: Any, places: list[_Place]) -> int:
        try:
            with self._env.begin(write=True) as txn:
                if self.log is None:
                    return sum(self._remove(txn, db, key, value) for key, value in places)
                removed, reached = self._remove_logged(self.log, txn, db, places)
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise RouteTableFull(f"route table {self._env.path()} is full: {error}") from error
        self._ring(reached)
        return removed

    def _remove_logged(self, log: RouteLog, txn: lmdb.Transaction, db: Any, places: list[_Place]) -> tuple[int, int]:
        """Returns the number of routes removed, and the position as update() does."""
        removed = 0
        deltas: dict[tuple[bytes, bytes], int] = {}
        for key, value in places:
            filter, group = self._filter_of(txn, key), self._group_name(txn, value)
            if self._remove(txn, db, key, value):
                removed += 1
                if destination_kind(int.from_bytes(value[1:5], "big")) == DestinationKind.WORKER:
                    deltas[filter, group] = deltas.get((filter, group), 0) - 1
        return removed, log.append(txn, deltas)


def _value(to: int, group: bytes, member: int) -> tuple[bytes, bytes]:
    """Returns a route's value, and its group name if the value has its digest."""
    head = to.to_bytes(4, "big")
    if not group:
        return b"\0" + head, b""
    head = b"\1" + head + member.to_bytes(8, "big")
    if len(group) <= GROUP_MAX:
        return head + group, b""
    return head + LONG_MARK + digest_of(group), group


def _group_of(value: bytes) -> bytes:
    """Returns the group name of a value, or its mark and digest; b"" for a plain route."""
    return value[13:] if value[0] == MEMBER else value[5:-NODE_GROUP_END] if value[0] == NODE_GROUP else b""


def _count_of(value: bytes) -> int:
    """Returns the members of a group on another node."""
    return int.from_bytes(value[-NODE_GROUP_END + 1 : -2], "big")


def _get(txn: lmdb.Transaction, key: bytes, db: Any) -> bytes | None:
    value: Any = txn.get(key, db=db)
    return value if value is None else bytes(value)


def item_at(cursor: lmdb.Cursor) -> _Place:
    """Returns the row that a cursor is at."""
    key, value = cursor.item()
    return bytes(key), bytes(value)


def resume_at(cursor: lmdb.Cursor, after: _Place | None) -> bool:
    """Moves to the first route, or to the one in `after`, or to the one after it if it was removed meanwhile."""
    if after is None:
        return bool(cursor.first())
    if cursor.set_range_dup(*after):
        return True
    return bool(cursor.next_nodup() if cursor.set_key(after[0]) else cursor.set_range(after[0]))


def _keys_from(cursor: lmdb.Cursor, start: bytes) -> Iterator[bytes]:
    """Yields every key that starts with these bytes, once."""
    more = cursor.set_range(start) if start else cursor.first()
    while more and (key := bytes(cursor.key())).startswith(start):
        yield key
        more = cursor.next_nodup()


class Search:
    """The search for one topic, in steps, each with read transactions of its own.

    It finds every filter that is in a table from its first step to its last. A filter added or removed meanwhile may be found or
    not. Tables are searched one after the other, and no two of them are open at the same time.
    """

    def __init__(self, tables: Sequence[RouteDatabase], topic: bytes, node: int = 0) -> None:
        self._tables = tables
        self._topic = topic
        self._node = node
        self._at = 0
        self._part = _TableSearch(tables[0], topic)
        self._found: list[Match] = []
        self.visits = 0
        """Nodes visited by the last step."""

    def step(self, most: int) -> Match | None:
        """Visits at most `most` further nodes, give or take one with its values. None: the search is not complete."""
        left = most
        while True:
            found, left = self._part.step(left)
            self.visits = most - left
            if found is None:
                return None
            self._at += 1
            if len(self._tables) == 1:
                return found
            self._found.append(found)
            if self._at == len(self._tables):
                return _merge(self._found, self._node)
            self._part = _TableSearch(self._tables[self._at], self._topic)


class _TableSearch:
    """The part of a search that is in one table."""

    def __init__(self, table: RouteDatabase, topic: bytes) -> None:
        self._table = table
        self._topic = topic
        self._found = _Collector()
        self._walks = [_Walk(topic, self._found), _LongWalk(topic, self._found)]
        self._begun = False

    def step(self, left: int) -> tuple[Match | None, int]:
        """Returns the match, None if it is not complete, and the remaining visits."""
        table = self._table
        with table._env.begin() as txn:

            def text(digest: bytes) -> bytes:
                return table._text(txn, digest)

            if not self._begun:
                self._begun = True
                table._match_exact(txn, self._topic, self._found)
            for walk, db in zip(self._walks, (table._wild, table._wild_long), strict=True):
                if walk.todo and txn.stat(db)["entries"]:
                    with txn.cursor(db) as cursor:
                        left = walk.run(cursor, text, left)
                    if walk.todo:
                        return None, left
            return self._found.match(text), left


def _merge(found: list[Match], node: int) -> Match:
    """Returns one match of those of this node's table and of other nodes, whose filters have no subscriber here."""
    here, there = found
    if not there.destinations and not there.groups:
        return here
    groups = {(group.name, group.filter): group.members for group in here.groups}
    for name, filter, members in there.groups:
        before: list[tuple[int, int]] = []
        behind: list[tuple[int, int]] = []
        for destination, count in members:
            listed = min(count, NODE_MEMBERS_MAX)
            place = before if destination_number(destination) < node else behind
            place += [(destination, index * count // listed) for index in range(listed)]
        groups[name, filter] = (*before, *groups.get((name, filter), ()), *behind)
    return Match(
        here.filters,
        tuple(sorted({*here.destinations, *there.destinations})),
        [Group(name, filter, groups[name, filter]) for name, filter in sorted(groups)],
    )


class _Walk:
    """The search for one topic through the ordered keys of wildcard filters."""

    def __init__(self, topic: bytes, found: "_Collector") -> None:
        self.topic = topic
        self.words = topic.split(b"/")
        self.found = found
        self.todo = [(b"", 0)]
        """Prefixes to visit, with their depth. An explicit stack, since a key may have as many levels as bytes."""

    def run(self, cursor: Any, text: Callable[[bytes], bytes], left: int) -> int:
        """Collects matches until `left` nodes are visited; returns the remainder of `left`."""
        while self.todo and left > 0:
            prefix, depth = self.todo[-1]
            left = self.visit(cursor, text, prefix, depth, left - 1)
            if left <= 0 and not self.is_through():
                break
            self.todo.pop()
            # `a/#` matches `a` itself, so the walk covers one level beyond the last word.
            if depth < len(self.words):
                for level in self.levels(depth):
                    deeper = prefix + level + b"\0"
                    if len(deeper) <= KEY_MAX and cursor.set_range(deeper) and cursor.key().startswith(deeper):
                        self.todo.append((deeper, depth + 1))
        return left

    def is_through(self) -> bool:
        """Returns whether visit() has processed all of its prefix."""
        return True

    def levels(self, depth: int) -> tuple[bytes, ...]:
        """Returns the levels that a matching filter may have at this depth, `#` apart."""
        if depth == 0 and self.topic.startswith(b"$"):
            return (self.words[0],)  # [MQTT-4.7.2-1]
        return b"+", self.words[depth]

    def visit(self, cursor: Any, text: Callable[[bytes], bytes], prefix: bytes, depth: int, left: int) -> int:
        """Collects the filters that end right after `prefix` (whole levels, NUL at its end); returns the remaining visits."""
        if depth or not self.topic.startswith(b"$"):  # [MQTT-4.7.2-1]
            left -= self.take(cursor, prefix + b"#")
        if depth == len(self.words) - 1:
            for level in self.levels(depth):
                left -= self.take(cursor, prefix + level)
        return left

    def take(self, cursor: Any, key: bytes) -> int:
        if 0 < len(key) <= KEY_MAX and cursor.set_key(key):
            return self.found.add(key.replace(b"\0", b"/"), cursor.iternext_dup())
        return 0


class _LongWalk(_Walk):
    """The same search over prefixes of filters longer than a key; each candidate is compared in full, as one visit."""

    def __init__(self, topic: bytes, found: "_Collector") -> None:
        super().__init__(topic, found)
        self.behind = b""
        """The last key compared below the prefix on top of the stack, if the step ended before the others."""

    def is_through(self) -> bool:
        return not self.behind

    def visit(self, cursor: Any, text: Callable[[bytes], bytes], prefix: bytes, depth: int, left: int) -> int:
        here = prefix + LONG_MARK
        more = cursor.set_range(self.behind or here)
        if more and self.behind and cursor.key() == self.behind:
            more = cursor.next_nodup()
        self.behind = b""
        while more and cursor.key().startswith(here):
            key = bytes(cursor.key())
            filter = text(key[len(here) :])
            left -= 1
            if matches(filter, self.topic):
                left -= self.found.add(filter, cursor.iternext_dup())
                cursor.set_key(key)
            if left <= 0:
                self.behind = key
                return left
            more = cursor.next_nodup()
        return left


class _Collector:
    """Gathers the values of matching filters into a Match."""

    def __init__(self) -> None:
        self.filters: list[bytes] = []
        self.destinations: set[int] = set()
        self.members: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}

    def add(self, filter: bytes, values: Iterable[Any]) -> int:
        """Adds a filter's values; returns their cost in visits, beyond the one to the filter."""
        plain, count = False, 0
        for value in values:
            count += 1
            destination = int.from_bytes(value[1:5], "big")
            if value[0] == 0:
                plain = True
                self.destinations.add(destination)
            elif value[0] == NODE_GROUP:
                self.members.setdefault((_group_of(value), filter), []).append((destination, _count_of(value)))
            else:
                member = (destination, int.from_bytes(value[5:13], "big"))
                self.members.setdefault((value[13:], filter), []).append(member)
        if plain:
            self.filters.append(filter)
        return count // VALUES_A_VISIT

    def match(self, text: Callable[[bytes], bytes]) -> Match:
        groups = []
        for (name, filter), members in sorted(self.members.items()):
            full_name = text(name[1:]) if name.startswith(LONG_MARK) else name
            groups.append(Group(full_name, filter, tuple(members)))
        return Match(self.filters, tuple(sorted(self.destinations)), groups)
