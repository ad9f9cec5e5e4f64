"""The route table: topic filters -> destinations, in an LMDB environment on tmpfs that every worker reads without a lock.

    db "exact"     filter                          -> destinations      (LMDB dupsort: one value per destination)
    db "wild"      filter, levels joined by NUL    -> destinations
    db "wildlong"  prefix NUL 0xFF digest          -> destinations      wildcard filters longer than a key
    db "long"      digest                          -> the filter or group name itself

    value          kind 0: 00 | destination u32                        a plain route
                   kind 1: 01 | destination u32 | session key u64 | group name        a member of a shared group

Exact filters are one look-up. For wildcards the levels of the topic are walked as a path through the ordered keys: at each
prefix only the continuations `+`, `#` and the topic's own level are sought, and only where a key with that prefix exists, so
the cost follows the prefixes that match, not 2^levels. A filter longer than an LMDB key is kept under its longest prefix of
whole levels that fits and a digest, and compared in full. NUL cannot occur in a filter [MQTT-4.7.3-2], 0xFF not in UTF-8.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

__all__ = ["Group", "Match", "RouteChange", "RouteTable", "RouteTableFull", "matches", "worker_destination"]

KEY_MAX = 511
"""Bytes of an LMDB key, and of a dupsort value."""
DIGEST = 16
"""Bytes of a digest: collisions are out of reach, and the full text is compared all the same."""
LONG_MARK = b"\xff"
GROUP_MAX = KEY_MAX - 16
KIND_SHIFT = 24
WORKER, NODE, SINK = 0, 1, 2
MAP_BYTES = 16 << 30
"""Virtual size of the environment; tmpfs holds only what is used."""
READERS = 1024
PURGE_BATCH = 10_000


class RouteTableFull(Exception):
    """The route table's map has no room for another route; nothing of the batch was stored."""


class RouteChange(NamedTuple):
    """A route to add or to remove. With `group` it is the membership of session `member` in a shared group."""

    add: bool
    filter: bytes
    destination: int
    group: bytes = b""
    member: int = 0


class Group(NamedTuple):
    """A shared group that a topic matches: members are (destination, session key), in one order for all readers."""

    name: bytes
    filter: bytes
    members: tuple[tuple[int, int], ...]


class Match(NamedTuple):
    """What a topic leads to: filters with plain routes, all their destinations, and shared groups."""

    filters: list[bytes]
    destinations: tuple[int, ...]
    groups: list[Group]


def worker_destination(number: int) -> int:
    """The destination of worker `number`."""
    return WORKER << KIND_SHIFT | number


def matches(filter: bytes, topic: bytes) -> bool:
    """Whether one filter matches one topic (MQTT 5.0 §4.7.1)."""
    if topic.startswith(b"$") and filter[:1] in (b"#", b"+"):
        return False  # [MQTT-4.7.2-1]
    levels, words = filter.split(b"/"), topic.split(b"/")
    for i, level in enumerate(levels):
        if level == b"#":
            return True
        if i >= len(words) or level not in (b"+", words[i]):
            return False
    return len(levels) == len(words)


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=DIGEST).digest()


def _has_wildcard(filter: bytes) -> bool:
    return b"+" in filter or b"#" in filter


class RouteTable:
    """One process's handle on the route table at `path`; opened after the fork, never carried across one."""

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without syncs: the page cache outlives every process, and the file is on tmpfs anyway.
        self._env: Any = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=4, max_readers=READERS, sync=False, metasync=False, mode=0o600
        )
        self._env.reader_check()
        self._exact = self._env.open_db(b"exact", dupsort=True)
        self._wild = self._env.open_db(b"wild", dupsort=True)
        self._wild_long = self._env.open_db(b"wildlong", dupsort=True)
        self._long = self._env.open_db(b"long")

    def close(self) -> None:
        self._env.close()

    # --- writing ------------------------------------------------------------------------------------------------

    def update(self, changes: Iterable[RouteChange]) -> None:
        """All changes in one transaction, in order; adding what is there and removing what is not are no errors.

        Raises RouteTableFull.
        """
        try:
            with self._env.begin(write=True) as txn:
                for change in changes:
                    db, key = self._place(txn, change.filter, change.add)
                    value = self._value(txn, change)
                    if change.add:
                        txn.put(key, value, db=db, dupdata=False)
                    else:
                        txn.delete(key, value, db=db)
        except lmdb.MapFullError as error:
            raise RouteTableFull(f"route table {self._env.path()} is full") from error

    def purge(self, destination: int) -> int:
        """Removes every route to a destination, in batches; returns how many there were."""
        removed = 0
        needle = destination.to_bytes(4, "big")
        for db in (self._exact, self._wild, self._wild_long):
            after: tuple[bytes, bytes] | None = None
            while True:
                with self._env.begin(write=True) as txn, txn.cursor(db) as cursor:
                    found = cursor.first() if after is None else cursor.set_range_dup(*after) or cursor.set_range(after[0])
                    visited = 0
                    while found and visited < PURGE_BATCH:
                        visited += 1
                        if cursor.value()[1:5] == needle:
                            removed += 1
                            found = cursor.delete()
                        else:
                            found = cursor.next()
                    after = (cursor.key(), cursor.value()) if found else None
                if after is None:
                    break
        return removed

    def _place(self, txn: Any, filter: bytes, add: bool) -> tuple[Any, bytes]:
        """Database and key of a filter; notes the text of a long one."""
        if not _has_wildcard(filter):
            if len(filter) <= KEY_MAX:
                return self._exact, filter
            return self._exact, LONG_MARK + self._remember(txn, filter, add)
        key = filter.replace(b"/", b"\0")
        if len(key) <= KEY_MAX:
            return self._wild, key
        cut = key.rfind(b"\0", 0, KEY_MAX - DIGEST - 1)
        return self._wild_long, key[: cut + 1] + LONG_MARK + self._remember(txn, filter, add)

    def _remember(self, txn: Any, text: bytes, add: bool) -> bytes:
        digest = _digest(text)
        if add:
            txn.put(digest, text, db=self._long)
        return digest

    def _value(self, txn: Any, change: RouteChange) -> bytes:
        destination = change.destination.to_bytes(4, "big")
        if not change.group:
            return b"\0" + destination
        group = change.group
        if len(group) > GROUP_MAX:
            group = LONG_MARK + self._remember(txn, group, change.add)
        return b"\1" + destination + change.member.to_bytes(8, "big") + group

    # --- matching -----------------------------------------------------------------------------------------------

    def match(self, topic: bytes) -> Match:
        """Everything that a publish to this topic leads to, as of one snapshot."""
        found = _Collector()
        with self._env.begin() as txn:
            self._match_exact(txn, topic, found)
            words = topic.split(b"/")
            with txn.cursor(self._wild) as cursor:
                self._walk(txn, cursor, words, b"", 0, found, topic.startswith(b"$"))
            if txn.stat(self._wild_long)["entries"]:
                with txn.cursor(self._wild_long) as cursor:
                    self._walk_long(txn, cursor, topic, words, b"", 0, found)
            return found.match(lambda digest: txn.get(digest, db=self._long))

    def _match_exact(self, txn: Any, topic: bytes, found: "_Collector") -> None:
        key = topic
        if len(topic) > KEY_MAX:
            digest = _digest(topic)
            if txn.get(digest, db=self._long) != topic:
                return
            key = LONG_MARK + digest
        with txn.cursor(self._exact) as cursor:
            if cursor.set_key(key):
                found.add(topic, cursor.iternext_dup())

    def _walk(
        self,
        txn: Any,
        cursor: Any,
        words: list[bytes],
        prefix: bytes,
        depth: int,
        found: "_Collector",
        dollar: bool,
    ) -> None:
        """Collects the filters that go on from `prefix` (whole levels, NUL at its end) and match words[depth:]."""
        at_root_of_dollar = dollar and depth == 0  # [MQTT-4.7.2-1]
        if not at_root_of_dollar:
            self._take(cursor, prefix + b"#", found)
        if depth == len(words):
            return
        last = depth == len(words) - 1
        for level in (words[depth],) if at_root_of_dollar else (b"+", words[depth]):
            path = prefix + level
            if len(path) > KEY_MAX:
                continue
            if last and (level == b"+" or prefix):
                self._take(cursor, path, found)
            deeper = path + b"\0"
            # `a/#` matches `a` itself, so the walk goes one level past the last word.
            if len(deeper) < KEY_MAX and cursor.set_range(deeper) and cursor.key().startswith(deeper):
                self._walk(txn, cursor, words, deeper, depth + 1, found, dollar)

    @staticmethod
    def _take(cursor: Any, key: bytes, found: "_Collector") -> None:
        if len(key) <= KEY_MAX and cursor.set_key(key):
            found.add(key.replace(b"\0", b"/"), cursor.iternext_dup())

    def _walk_long(
        self,
        txn: Any,
        cursor: Any,
        topic: bytes,
        words: list[bytes],
        prefix: bytes,
        depth: int,
        found: "_Collector",
    ) -> None:
        """The same over the prefixes of filters longer than a key; each candidate is compared in full."""
        here = prefix + LONG_MARK
        more = cursor.set_range(here)
        while more and cursor.key().startswith(here):
            filter = txn.get(cursor.key()[len(here) :], db=self._long)
            if filter is not None and matches(filter, topic):
                found.add(filter, cursor.iternext_dup())
            more = cursor.next_nodup()
        if depth == len(words):
            return
        for level in (b"+", words[depth]):
            deeper = prefix + level + b"\0"
            if len(deeper) < KEY_MAX and cursor.set_range(deeper) and cursor.key().startswith(deeper):
                self._walk_long(txn, cursor, topic, words, deeper, depth + 1, found)

    # --- looking around -----------------------------------------------------------------------------------------

    def filters(self) -> Iterator[bytes]:
        """Every filter with a route, exact ones first."""
        with self._env.begin() as txn:
            for db in (self._exact, self._wild, self._wild_long):
                with txn.cursor(db) as cursor:
                    for key in cursor.iternext_nodup(keys=True, values=False):
                        mark = key.find(LONG_MARK)
                        if mark >= 0:
                            yield txn.get(key[mark + 1 :], db=self._long)
                        else:
                            yield key.replace(b"\0", b"/")

    def count(self) -> int:
        """Routes in the table: one per filter and destination, or group member."""
        with self._env.begin() as txn:
            return sum(txn.stat(db)["entries"] for db in (self._exact, self._wild, self._wild_long))


class _Collector:
    """Gathers values of matching filters into a Match."""

    def __init__(self) -> None:
        self.filters: list[bytes] = []
        self.destinations: set[int] = set()
        self.members: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}

    def add(self, filter: bytes, values: Iterable[bytes]) -> None:
        plain = False
        for value in values:
            destination = int.from_bytes(value[1:5], "big")
            if value[0] == 0:
                plain = True
                self.destinations.add(destination)
            else:
                member = (destination, int.from_bytes(value[5:13], "big"))
                self.members.setdefault((value[13:], filter), []).append(member)
        if plain:
            self.filters.append(filter)

    def match(self, long_text: "object") -> Match:
        groups = []
        for (name, filter), members in sorted(self.members.items()):
            if name.startswith(LONG_MARK):
                name = long_text(name[1:])  # type: ignore[operator]
            groups.append(Group(name, filter, tuple(members)))
        return Match(self.filters, tuple(sorted(self.destinations)), groups)
