"""The owners of exclusive subscriptions: an LMDB environment on tmpfs in which each topic filter has one owner at most.

    key       filter (shm/keys.py)
    value     destination u32 | session key u64 | stamp u64 | flags u8 | size of the client id u16 | client id | filter
              integers are big endian; flags: 1 confirmed

`stamp` is that of the node's claim in a cluster, 0 without one (worker/cluster_exclusive.pxd). What was granted there is confirmed
by the worker of the session; until then it can be taken back.

A claim checks and writes in one write transaction. LMDB admits one of these at a time, so that only one of two claims succeeds.
Owners are sessions. A session keeps its key for life, whichever worker it is on.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from shm.keys import key_of

__all__ = ["Claim", "ExclusiveTable", "ExclusiveTableFull"]

MAP_BYTES = 4 << 30
"""Virtual size of the environment; tmpfs needs memory only for pages in use."""
_HEAD = struct.Struct(">IQQBH")
_CONFIRMED = 1


class ExclusiveTableFull(Exception):
    """The map, or the tmpfs under it, has no room for the claim."""


class Claim(NamedTuple):
    """A filter that a session holds, or wants to hold, exclusively."""

    filter: bytes
    destination: int
    session: int
    client_id: bytes
    stamp: int = 0
    confirmed: bool = True


class ExclusiveTable:
    """The handle of one process on the table at `path`. The first claim creates the table: most brokers never need one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: Any = None

    def claim(self, claim: Claim, ended: int = 0) -> bool:
        """Claims a filter; returns whether the session holds it now. The session `ended` counts as gone.

        Raises ExclusiveTableFull.
        """
        key = key_of(claim.filter)
        with self._writing() as txn:
            found = txn.get(key)
            if found is not None and _decode(found).session not in (claim.session, ended):
                return False
            txn.put(key, _encode(claim))
            return True

    def grant(self, claim: Claim, ended: int = 0) -> bool:
        """Claims a filter that was granted to this node, for a session that has to confirm it; returns whether it holds the filter.
        The session `ended` counts as gone, and another one of the same client gives it up.

        Raises ExclusiveTableFull.
        """
        key = key_of(claim.filter)
        with self._writing() as txn:
            found = txn.get(key)
            if found is not None:
                known = _decode(found)
                if known.session not in (claim.session, ended) and known.client_id != claim.client_id:
                    return False
            txn.put(key, _encode(claim))
            return True

    def confirm(self, filter: bytes, session: int) -> bool:
        """Confirms what was granted to a session; returns whether the session holds it still.

        Raises ExclusiveTableFull.
        """
        key = key_of(filter)
        with self._writing() as txn:
            found = txn.get(key)
            if found is None or (known := _decode(found)).session != session or not known.stamp:
                return False
            if not known.confirmed:
                txn.put(key, _encode(known._replace(confirmed=True)))
            return True

    def take_back(self, filter: bytes) -> bool:
        """Removes a claim that is not confirmed; returns whether nothing is left.

        Raises ExclusiveTableFull.
        """
        key = key_of(filter)
        with self._writing() as txn:
            found = txn.get(key)
            if found is not None and _decode(found).confirmed:
                return False
            txn.delete(key)
            return True

    def owner(self, filter: bytes) -> Claim | None:
        """Returns the claim on a filter, or None."""
        if not self._exists():
            return None
        with self._env().begin() as txn:
            found = txn.get(key_of(filter))
            return None if found is None else _decode(found)

    def release(self, held: Iterable[tuple[bytes, int]]) -> None:
        """Releases each filter that its session holds, in one transaction.

        Raises ExclusiveTableFull: LMDB copies each page that it changes. Nothing is released then.
        """
        with self._writing() as txn:
            for filter, session in held:
                key = key_of(filter)
                found = txn.get(key)
                if found is not None and _decode(found).session == session:
                    txn.delete(key)

    def replace(self, destination: int, claims: Iterable[Claim]) -> list[Claim]:
        """Makes `claims` the only ones of this destination; returns those that other sessions have taken meanwhile.

        Raises ExclusiveTableFull.
        """
        wanted = {key_of(claim.filter): claim for claim in claims}
        if not wanted and not self._exists():
            return []
        lost = []
        with self._env().begin() as txn, txn.cursor() as cursor:
            # Only the worker itself changes its claims: they need no second look in the write transaction.
            gone = [
                bytes(key)
                for key, value in cursor
                if (found := _decode(value)).destination == destination
                and (bytes(key) not in wanted or wanted[bytes(key)].session != found.session)
            ]
        with self._writing() as txn:
            for key in gone:
                txn.delete(key)
            for key, claim in wanted.items():
                stored = txn.get(key)
                known = claim if stored is None else _decode(stored)
                if known.session != claim.session:
                    lost.append(claim)
                else:
                    txn.put(key, _encode(claim._replace(stamp=known.stamp, confirmed=known.confirmed)))
        return lost

    def page(self, after: bytes, limit: int) -> tuple[list[Claim], bytes]:
        """Returns claims after the key `after` (empty: from the first on), and `after` for the next call; empty at the end."""
        if not self._exists():
            return [], b""
        rows: list[Claim] = []
        with self._env().begin() as txn, txn.cursor() as cursor:
            more = cursor.set_range(after) if after else cursor.first()
            if more and after and bytes(cursor.key()) == after:
                more = cursor.next()
            while more and len(rows) < limit:
                rows.append(_decode(cursor.value()))
                after = bytes(cursor.key())
                more = cursor.next()
        return rows, after if more else b""

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        """Opens a write transaction. Raises ExclusiveTableFull."""
        try:
            with self._env().begin(write=True) as txn:
                yield txn
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise ExclusiveTableFull(f"table of exclusive subscriptions {self._path} is full: {error}") from error

    def _exists(self) -> bool:
        return self._opened is not None or self._path.exists()

    def _env(self) -> Any:
        if self._opened is None:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # As for the route table, no sync is needed: the page cache outlives each process.
            self._opened = lmdb.open(str(self._path), map_size=MAP_BYTES, sync=False, metasync=False, mode=0o600)
            self._opened.reader_check()
        return self._opened


def _encode(claim: Claim) -> bytes:
    flags = _CONFIRMED if claim.confirmed else 0
    return _HEAD.pack(claim.destination, claim.session, claim.stamp, flags, len(claim.client_id)) + claim.client_id + claim.filter


def _decode(value: bytes) -> Claim:
    destination, session, stamp, flags, size = _HEAD.unpack_from(value)
    client_id = bytes(value[_HEAD.size : _HEAD.size + size])
    return Claim(bytes(value[_HEAD.size + size :]), destination, session, client_id, stamp, bool(flags & _CONFIRMED))
