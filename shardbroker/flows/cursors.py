"""Cursors of consumers: up to where each is done with a journal; <data>/flows/cursors.mdb.

    consumer \\0 journal    ->    position u64 | segment u64 | offset u64 | incarnation u64

All records below `position` are done. The incarnation is that of the segment: a journal that was removed by hand begins at lower
positions, and only a different incarnation tells. The processes share the environment; each writes its own journals.
"""

import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import lmdb

__all__ = ["Cursor", "Cursors"]

FILE = "cursors.mdb"
MAP_BYTES = 256 << 20
"""Address space: a million cursors of some 100 bytes."""
_ROW = struct.Struct("<QQQQ")
_DAMAGED = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError, lmdb.IncompatibleError)


class Cursor(NamedTuple):
    """A place in a journal (journal/follow.pyx), and the incarnation of its segment; 0: unknown."""

    position: int
    segment: int = 0
    offset: int = 0
    incarnation: int = 0


class Cursors:
    """The stored cursors. A damaged file is set aside; `set_aside` is its new name then."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.set_aside: Path | None = None
        path = directory / FILE
        try:
            self._open(path)
        except _DAMAGED:
            self.set_aside = path.with_name(f"{path.name}.bad-{time.time_ns() // 1_000_000}")
            path.rename(self.set_aside)
            path.with_name(f"{path.name}-lock").unlink(missing_ok=True)
            self._open(path)

    def _open(self, path: Path) -> None:
        self._env = lmdb.open(str(path), subdir=False, map_size=MAP_BYTES, mode=0o600)
        try:
            self._env.reader_check()
            self.all()
        except BaseException:
            self._env.close()
            raise

    def all(self) -> dict[tuple[str, str], Cursor]:
        """Returns the cursors by (consumer, journal)."""
        found = {}
        with self._env.begin() as txn:
            for key, value in txn.cursor():
                consumer, _, journal = bytes(key).decode(errors="replace").rpartition("\0")
                if len(value) == _ROW.size:
                    found[consumer, journal] = Cursor(*_ROW.unpack(value))
        return found

    def commit(self, changed: Mapping[tuple[str, str], Cursor], removed: Iterable[tuple[str, str]] = ()) -> None:
        """Writes and removes cursors in one transaction, on the disk when this returns. Raises lmdb.Error."""
        with self._env.begin(write=True) as txn:
            for consumer, journal in removed:
                txn.delete(_key(consumer, journal))
            for (consumer, journal), cursor in changed.items():
                txn.put(_key(consumer, journal), _ROW.pack(*cursor))

    def close(self) -> None:
        self._env.close()


def _key(consumer: str, journal: str) -> bytes:
    return f"{consumer}\0{journal}".encode()
