"""The route table: topic filters -> destinations, in an LMDB environment on tmpfs that every worker reads without a lock.

    db "exact"     filter                          -> destinations      (LMDB dupsort: one value per destination)
    db "wild"      filter, levels joined by NUL    -> destinations
    db "wildlong"  prefix NUL 0xFF digest          -> destinations      wildcard filters longer than a key
    db "long"      digest                          -> references u32 | the filter or group name itself

    value          kind 0: 00 | destination u32                        a plain route
                   kind 1: 01 | destination u32 | session key u64 | group name        a member of a shared group

    destination    see destinations.pxd                                               integers are big endian

Exact filters take one look-up. For wildcards the levels of the topic are walked as a path through the ordered keys. At each prefix
only the continuations `+`, `#` and the topic's own level are sought, and only where a key with that prefix exists, so the cost
follows the prefixes that match. With enough filters these may be 2^levels: a Search visits them in steps. A filter longer than an
LMDB key is stored under its longest prefix of whole levels that fits and a digest, and compared in full. NUL cannot occur in a
filter [MQTT-4.7.3-2], 0xFF not in UTF-8.

Invariants: a text in "long" has as many references as there are values whose key or group name is its digest, and is removed with
the last of them; every change is one transaction, so readers see all of it or nothing.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from shardbroker.mqtt.topics import matches
from shm.keys import KEY_MAX, LONG_MARK, digest_of, levels_key_of

__all__ = [
    "FilterRoutes",
    "Group",
    "Match",
    "RouteChange",
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
    """A shared group that a topic matches: members are (destination, session key), in the same order for all readers."""

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


def _has_wildcard(filter: bytes) -> bool:
    return b"+" in filter or b"#" in filter


class RouteTable:
    """One process's handle on the route table at `path`; opened after the fork, never carried across one."""

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES, readers: int = READERS) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # No syncs: the page cache outlives every process, and the file is on tmpfs anyway. No writable map: with it, a full tmpfs
        # would be SIGBUS instead of an error.
        self._env = lmdb.open(str(path), map_size=map_bytes, max_dbs=4, max_readers=readers, sync=False, metasync=False, mode=0o600)
        self._env.reader_check()
        self._exact: Any = self._env.open_db(b"exact", dupsort=True)
        self._wild: Any = self._env.open_db(b"wild", dupsort=True)
        self._wild_long: Any = self._env.open_db(b"wildlong", dupsort=True)
        self._long: Any = self._env.open_db(b"long")
        self._routes = (self._exact, self._wild, self._wild_long)

    def close(self) -> None:
        """Closes the table; no other method may be called afterwards."""
        self._env.close()

    def reader_check(self) -> int:
        """Frees the reader slots of processes killed during a read, so that old pages are reused; returns how many."""
        return int(self._env.reader_check())

    # --- writing ------------------------------------------------------------------------------------------------

    def update(self, changes: Iterable[tuple[bool, bytes, int, bytes, int]]) -> None:
        """Applies all changes (each a RouteChange) in one transaction, in order.

        Adding an existing route and removing a missing one are no errors. Raises RouteTableFull, even for a removal: LMDB copies
        the pages that it changes.
        """
        exact: list[_Place] = []
        wild: list[_Place] = []
        try:
            with self._env.begin(write=True) as txn:
                for change in changes:
                    add, filter, to, group, _ = change
                    if group or len(filter) > KEY_MAX:
                        self._change(txn, change)
                    elif add:
                        if _has_wildcard(filter):
                            wild.append((filter.replace(b"/", b"\0"), b"\0" + to.to_bytes(4, "big")))
                        else:
                            exact.append((filter, b"\0" + to.to_bytes(4, "big")))
                    else:
                        # Removals usually precede adds. Adds are gathered, since a cursor stores many of them at a third of the
                        # cost.
                        self._add_all(txn, exact, wild)
                        if _has_wildcard(filter):
                            txn.delete(filter.replace(b"/", b"\0"), b"\0" + to.to_bytes(4, "big"), db=self._wild)
                        else:
                            txn.delete(filter, b"\0" + to.to_bytes(4, "big"), db=self._exact)
                self._add_all(txn, exact, wild)
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise RouteTableFull(f"route table {self._env.path()} is full: {error}") from error

    def _add_all(self, txn: lmdb.Transaction, exact: list[_Place], wild: list[_Place]) -> None:
        """Stores the gathered adds and clears the lists."""
        for db, places in ((self._exact, exact), (self._wild, wild)):
            if places:
                with txn.cursor(db) as cursor:
                    cursor.putmulti(places, dupdata=False)
                places.clear()

    def _change(self, txn: lmdb.Transaction, change: tuple[bool, bytes, int, bytes, int]) -> None:
        """Applies one change of any kind: of a group, or with a filter longer than a key."""
        add, filter, to, group, member = change
        db, key, long_filter = self._key(filter)
        value, long_group = _value(to, group, member)
        if not add:
            self._remove(txn, db, key, value)
        elif txn.put(key, value, db=db, dupdata=False):
            for text in (long_filter, long_group):
                if text:
                    self._hold(txn, text)

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
            found = _resume(cursor, after)
            for _ in range(PURGE_BATCH):
                if not found:
                    return doomed, None
                key, value = _item(cursor)
                if value[1:5] == needle:
                    doomed.append((key, value))
                found = cursor.next()
            return doomed, _item(cursor) if found else None

    def _remove_all(self, db: Any, places: list[_Place]) -> int:
        try:
            with self._env.begin(write=True) as txn:
                return sum(self._remove(txn, db, key, value) for key, value in places)
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise RouteTableFull(f"route table {self._env.path()} is full: {error}") from error

    def _key(self, filter: bytes) -> tuple[Any, bytes, bytes]:
        """Returns database and key of a filter, and the filter itself if the key has its digest."""
        if not _has_wildcard(filter):
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
        if value[13:14] == LONG_MARK:
            self._let_go(txn, value[14:])
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

    # --- matching -----------------------------------------------------------------------------------------------

    def match(self, topic: bytes) -> Match:
        """Returns all that a publish to this topic leads to, in one snapshot. The topic is valid and has no wildcard."""
        found = self.search(topic).step(sys.maxsize)
        assert found is not None
        return found

    def search(self, topic: bytes) -> "Search":
        """Returns the same search in steps of bounded size."""
        return Search(self, topic)

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

    def _text(self, txn: lmdb.Transaction, digest: bytes) -> bytes:
        """Returns the long text with this digest; empty, which no filter or group name is, if the digest is unknown."""
        return (_get(txn, digest, self._long) or b"")[REFERENCES:]

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
                            _, mark, digest = key.partition(LONG_MARK)
                            filter = self._text(txn, digest) if mark else key.replace(b"\0", b"/")
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
        _, mark, digest = key.partition(LONG_MARK)
        filter = self._text(txn, digest) if mark else key.replace(b"\0", b"/")
        members: dict[tuple[int, bytes], int] = {}
        for value in values:
            group = value[13:]
            if group.startswith(LONG_MARK):
                group = self._text(txn, group[1:])
            place = int.from_bytes(value[1:5], "big"), group
            members[place] = members.get(place, 0) + 1
        return FilterRoutes(filter, [(to, group, count) for (to, group), count in members.items()])

    def count(self) -> int:
        """Returns the number of routes in the table: one per filter and destination, or group member."""
        with self._env.begin() as txn:
            return sum(int(txn.stat(db)["entries"]) for db in self._routes)


def _value(to: int, group: bytes, member: int) -> tuple[bytes, bytes]:
    """Returns a route's value, and its group name if the value has its digest."""
    head = to.to_bytes(4, "big")
    if not group:
        return b"\0" + head, b""
    head = b"\1" + head + member.to_bytes(8, "big")
    if len(group) <= GROUP_MAX:
        return head + group, b""
    return head + LONG_MARK + digest_of(group), group


def _get(txn: lmdb.Transaction, key: bytes, db: Any) -> bytes | None:
    value: Any = txn.get(key, db=db)
    return value if value is None else bytes(value)


def _item(cursor: lmdb.Cursor) -> _Place:
    key, value = cursor.item()
    return bytes(key), bytes(value)


def _resume(cursor: lmdb.Cursor, after: _Place | None) -> bool:
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
    """The search for one topic, in steps, each with a read transaction of its own.

    It finds every filter that is in the table from its first step to its last. A filter added or removed meanwhile may be found or
    not.
    """

    def __init__(self, table: RouteTable, topic: bytes) -> None:
        self._table = table
        self._topic = topic
        self._found = _Collector()
        self._walks = [_Walk(topic, self._found), _LongWalk(topic, self._found)]
        self._begun = False
        self.visits = 0
        """Nodes visited by the last step."""

    def step(self, most: int) -> Match | None:
        """Visits at most `most` further nodes, give or take one with its values. None: the search is not complete."""
        table = self._table
        left = most
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
                        self.visits = most - left
                        return None
            self.visits = most - left
            return self._found.match(text)


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
