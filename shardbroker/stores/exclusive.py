"""Who holds exclusive subscriptions: an LMDB environment on tmpfs in which each topic filter has one owner at most.

    key       filter, or 0xFF and a digest of one longer than a key        (0xFF is not in UTF-8)
    value     destination u32 | session key u64 | size of the client id u16 | client id | filter      integers are big endian

A claim looks and writes in one write transaction, of which LMDB lets in one at a time: of two that want a filter one gets it.
Owners are sessions, known by keys that stay theirs for life, whichever worker they are on.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

__all__ = ["Claim", "ExclusiveTable", "ExclusiveTableFull"]

KEY_MAX = 511
"""Bytes of an LMDB key."""
DIGEST = 16
"""Bytes of the digest that stands for a longer filter."""
MAP_BYTES = 4 << 30
"""Virtual size of the environment; tmpfs holds only what is used."""
_HEAD = struct.Struct(">IQH")


class ExclusiveTableFull(Exception):
    """The map, or the tmpfs under it, has no room for the claim."""


class Claim(NamedTuple):
    """A session that has a filter, or wants it, for itself."""

    filter: bytes
    destination: int
    session: int
    client_id: bytes


class ExclusiveTable:
    """One process's handle on the table at `path`. Nothing is made before the first claim: most brokers never see one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: Any = None

    def claim(self, claim: Claim, ended: int = 0) -> bool:
        """Whether the filter is this session's now, which it may have been before. The session `ended` counts as gone.

        Raises ExclusiveTableFull.
        """
        key = _key(claim.filter)
        with self._writing() as txn:
            found = txn.get(key)
            if found is not None and _decode(found).session not in (claim.session, ended):
                return False
            txn.put(key, _encode(claim))
            return True

    def owner(self, filter: bytes) -> Claim | None:
        """Whose the filter is; None if nobody's."""
        if not self._exists():
            return None
        with self._env().begin() as txn:
            found = txn.get(_key(filter))
            return None if found is None else _decode(found)

    def release(self, filter: bytes, session: int) -> None:
        """The filter is nobody's, if it was this session's. Raises ExclusiveTableFull: LMDB copies the page that it changes."""
        with self._writing() as txn:
            found = txn.get(_key(filter))
            if found is not None and _decode(found).session == session:
                txn.delete(_key(filter))

    def replace(self, destination: int, claims: Iterable[Claim]) -> list[Claim]:
        """Makes `claims`, all of this destination, the only ones of it; returns those that somebody else has got meanwhile.

        Raises ExclusiveTableFull.
        """
        wanted = {_key(claim.filter): claim for claim in claims}
        if not wanted and not self._exists():
            return []
        lost = []
        with self._env().begin() as txn, txn.cursor() as cursor:
            # What a worker has claimed nobody else changes: nothing has to be looked at again.
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
                if stored is not None and _decode(stored).session != claim.session:
                    lost.append(claim)
                else:
                    txn.put(key, _encode(claim))
        return lost

    def page(self, after: bytes, limit: int) -> tuple[list[Claim], bytes]:
        """Claims behind the key `after` (empty: from the first on), and what `after` is next time; empty at the end."""
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
        """A write transaction. Raises ExclusiveTableFull."""
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
            # As the route table: the page cache outlives every process.
            self._opened = lmdb.open(str(self._path), map_size=MAP_BYTES, sync=False, metasync=False, mode=0o600)
            self._opened.reader_check()
        return self._opened


def _key(filter: bytes) -> bytes:
    return filter if len(filter) <= KEY_MAX else b"\xff" + blake2b(filter, digest_size=DIGEST).digest()


def _encode(claim: Claim) -> bytes:
    return _HEAD.pack(claim.destination, claim.session, len(claim.client_id)) + claim.client_id + claim.filter


def _decode(value: bytes) -> Claim:
    destination, session, size = _HEAD.unpack_from(value)
    client_id = bytes(value[_HEAD.size : _HEAD.size + size])
    return Claim(bytes(value[_HEAD.size + size :]), destination, session, client_id)
