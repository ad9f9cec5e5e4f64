"""The route log: what the routes of this node's workers mean to other nodes, and every change of it, in the order of the commits.

    db "node"      key of filter NUL group (keys.py)    -> members u32 | position u64 | text       routes as peers know them
    db "rlog"      position u64                         -> members u32 | filter size u16 | filter | group

A plain route has as many members as workers have subscribers of the filter; peers learn whether there is any. A shared group has as
many as sessions of this node are in it, and peers learn each change of that number. `position` in "node" is that of the entry by
which the route is known to peers; `text` is filter NUL group where the key has its digest. Only routes to workers count.

Invariants: both are changed in the transaction that changes the routes, one entry for each filter and group whose state at its end
differs from that at its start; positions have no gaps; at most LOG_ENTRIES entries are kept, the oldest are removed first.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Generic, Protocol, TypeVar

import lmdb

from shm.keys import LONG_MARK, key_of

__all__ = ["LOG_ENTRIES", "LmdbRouteLog", "RouteLog"]

LOG_ENTRIES = 1_000_000
"""Entries kept: 100 s at 10,000 changes/s. A peer that is further behind gets a dump."""

_ROW = Struct(">IQ")
_ENTRY = Struct(">IH")
_POSITION_BYTES = 8

Place = tuple[bytes, bytes]
"""Filter and group name, b"" for a plain route."""

RouteT_co = TypeVar("RouteT_co", covariant=True)


class RouteLog:
    """The databases of the log in the environment of a route table, and its writing side."""

    def __init__(self, env: lmdb.Environment, *, create: bool, keep: int = LOG_ENTRIES) -> None:
        """Raises lmdb.NotFoundError if the environment has no log and none is to be created."""
        self.env = env
        self.rows: Any = env.open_db(b"node", create=create)
        self.entries: Any = env.open_db(b"rlog", create=create)
        self.keep = keep

    def append(self, txn: lmdb.Transaction, deltas: Mapping[Place, int]) -> int:
        """Applies changes of the number of members, and appends an entry for each that changes what peers know.

        Returns the position up to which a peer needs the log to have these routes; 0 if it needs none of it. A delta of 0 is a
        route that was there already.
        """
        first, head = self.bounds(txn)
        reached = 0
        entries: list[tuple[bytes, bytes]] = []
        for (filter, group), delta in deltas.items():
            text = filter + b"\0" + group
            key = key_of(text)
            stored: Any = txn.get(key, db=self.rows)
            before, position = _ROW.unpack_from(stored) if stored is not None else (0, 0)
            now = max(0, before + delta)
            if now != before if group else bool(now) != bool(before):
                head += 1
                position = head
                entries.append((_position(head), _ENTRY.pack(now if group else bool(now), len(filter)) + filter + group))
            elif delta < 0:
                position = 0
            if not now:
                txn.delete(key, db=self.rows)
            elif now != before:
                row = _ROW.pack(now, position or _ROW.unpack_from(stored)[1])
                txn.put(key, row + text if key[:1] == LONG_MARK else row, db=self.rows)
            reached = max(reached, position)
        if entries:
            with txn.cursor(self.entries) as cursor:
                cursor.putmulti(entries, append=True)
                excess = head - first + 1 - self.keep
                if excess > 0 and cursor.first():
                    for _ in range(excess):
                        cursor.delete()
        return reached

    def bounds(self, txn: lmdb.Transaction) -> tuple[int, int]:
        """Returns the positions of the oldest and the newest entry; (1, 0) for an empty log."""
        with txn.cursor(self.entries) as cursor:
            if not cursor.first():
                return 1, 0
            first = int.from_bytes(cursor.key(), "big")
            cursor.last()
            return first, int.from_bytes(cursor.key(), "big")


class _Logged(Protocol):
    """A route table with a log."""

    @property
    def log(self) -> RouteLog | None: ...


class LmdbRouteLog(Generic[RouteT_co]):
    """The reading side, for the link process: shardbroker.cluster.rlog.RouteSource.

    `make(filter, group, members, flags)` creates what the source yields. Every call is a snapshot of its own.
    """

    def __init__(self, table: _Logged, make: Callable[[bytes, bytes, int, int], RouteT_co]) -> None:
        if table.log is None:
            raise ValueError("route table has no log")
        self._log = table.log
        self._make = make

    @property
    def first(self) -> int:
        """Returns the position of the oldest entry kept; head + 1 if there is no entry."""
        with self._log.env.begin() as txn:
            return self._log.bounds(txn)[0]

    @property
    def head(self) -> int:
        """Returns the position of the newest entry; 0 if there never was one."""
        with self._log.env.begin() as txn:
            return self._log.bounds(txn)[1]

    def entries(self, first: int, most: int) -> list[RouteT_co]:
        """Returns at most `most` entries from position `first` on; none if that one was removed since the caller read `first`."""
        start = _position(first)
        found: list[RouteT_co] = []
        with self._log.env.begin() as txn, txn.cursor(self._log.entries) as cursor:
            if not cursor.set_key(start):
                return found
            for value in cursor.iternext(keys=False):
                members, size = _ENTRY.unpack_from(value)
                at = _ENTRY.size + size
                found.append(self._make(value[_ENTRY.size : at], value[at:], members, 0))
                if len(found) >= most:
                    break
        return found

    def rows(self, after: Place | None, most: int) -> list[RouteT_co]:
        """Returns at most `most` routes behind a place, in the order of their keys: those longer than a key are last."""
        found: list[RouteT_co] = []
        with self._log.env.begin() as txn, txn.cursor(self._log.rows) as cursor:
            if after is None:
                more = cursor.first()
            else:
                start = key_of(after[0] + b"\0" + after[1])
                more = cursor.set_range(start)
                if more and cursor.key() == start:
                    more = cursor.next()
            if not more:
                return found
            for key, value in cursor.iternext():
                filter, _, group = (value[_ROW.size :] if key[:1] == LONG_MARK else key).partition(b"\0")
                found.append(self._make(filter, group, _ROW.unpack_from(value)[0] if group else 1, 0))
                if len(found) >= most:
                    break
        return found


def _position(position: int) -> bytes:
    return position.to_bytes(_POSITION_BYTES, "big")
