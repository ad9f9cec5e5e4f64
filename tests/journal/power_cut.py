"""What is left of a journal after a power cut, at any moment of a recorded run.

    python -m tests.journal.power_cut DIRECTORY PROMISES SEED     writes a journal at level `machine`; with recorder.c in LD_PRELOAD

The run is replayed onto a `Disk` that tells what was synced from what was not. A cut keeps all that was synced, and of the rest
what chance keeps: nothing, everything, some sectors, the length of a file without its bytes, a name without the file's bytes,
or no name.
"""

import ctypes
import json
import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from shardbroker.journal import Writer, open_journal
from shardbroker.journal.schema import Kind, encode
from tests.journal.samples import found

SECTOR_BYTES = 512


class What(IntEnum):
    """As in recorder.c."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC_BEGIN = 4
    SYNC_END = 5
    RENAME_FROM = 6
    RENAME_TO = 7
    UNLINK = 8
    MKDIR = 9
    MARK = 10


@dataclass(frozen=True)
class Step:
    what: What
    file: int
    number: int
    data: bytes


class Mark(IntEnum):
    DURABLE = 1
    """Everything below this sequence, of the writer that is open."""
    FOUND = 2
    """A writer has been opened, and all that was there read: this number in `Promises.openings`."""


def read_steps(path: Path) -> list[Step]:
    raw, at, steps = path.read_bytes(), 0, []
    while at < len(raw):
        size, what, file, number = struct.unpack_from("<IBQQ", raw, at)
        steps.append(Step(What(what), file, number, raw[at + 21 : at + 4 + size]))
        at += 4 + size
    return steps


# --- the disk ---------------------------------------------------------------------------------------------------------------


@dataclass
class File:
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Offset and bytes of each write that is not synced; None: the file ends here."""

    def content(self, rng: random.Random, keep: str) -> bytes:
        """What a cut leaves: `keep` is nothing, all, length, or some."""
        if keep == "nothing":
            return self.synced
        pending = self.pending
        if keep == "some":
            pending = [part for one in pending for part in _sectors(*one) if rng.random() < 0.7]
        after = _apply(self.synced, pending)
        return self.synced.ljust(len(after), b"\0") if keep == "length" else after


def _sectors(offset: int, data: bytes | None) -> Iterator[tuple[int, bytes | None]]:
    """A write as the disk's: sector by sector, any of which may be there or not."""
    if data is None:
        yield offset, None
        return
    while data:
        size = SECTOR_BYTES - offset % SECTOR_BYTES
        yield offset, data[:size]
        offset, data = offset + size, data[size:]


def _apply(content: bytes, writes: list[tuple[int, bytes | None]]) -> bytes:
    after = bytearray(content)
    for offset, data in writes:
        if data is None:
            del after[offset:]
            continue
        if len(after) < offset:
            after += bytes(offset - len(after))
        after[offset : offset + len(data)] = data
    return bytes(after)


@dataclass(frozen=True)
class NameChange:
    """A name that came to mean a file (None: a directory), or went."""

    path: str
    file: File | None
    there: bool = True


class Disk:
    """Files and names, and which of them are synced. Directories are known by their paths; `root` is there from the start."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._files: dict[int, File] = {}
        self._synced: dict[str, File | None] = {}
        self._now: dict[str, File | None] = {}
        self._pending: list[tuple[NameChange, ...]] = []
        """Changes of names that are not synced; those of a rename come or stay away together."""
        self._syncs: dict[int, tuple[File | None, int]] = {}
        self._rename_from = ""

    def do(self, step: Step) -> None:
        """One step of the record."""
        path = step.data.decode() if step.what not in (What.WRITE, What.MARK) else ""
        if step.what == What.CREATE:
            self._files[step.file] = File()
            self._change(NameChange(path, self._files[step.file]))
        elif step.what == What.WRITE:
            self._files[step.file].pending.append((step.number, step.data))
        elif step.what == What.TRUNCATE:
            self._files[step.file].pending.append((step.number, None))
        elif step.what == What.RENAME_FROM:
            self._rename_from = path
        elif step.what == What.RENAME_TO:
            self._change(NameChange(self._rename_from, None, False), NameChange(path, self._now[self._rename_from]))
        elif step.what == What.UNLINK:
            self._change(NameChange(path, None, False))
        elif step.what == What.MKDIR:
            self._change(NameChange(path, None))
        elif step.what == What.SYNC_BEGIN:
            file = self._files.get(step.file)
            self._syncs[step.number] = file, len(self._pending if file is None else file.pending)
        elif step.what == What.SYNC_END:
            self._end_sync(path, *self._syncs.pop(step.number))

    def _change(self, *changes: NameChange) -> None:
        self._pending.append(changes)
        _rename(self._now, changes)

    def _end_sync(self, path: str, file: File | None, count: int) -> None:
        if file is not None:
            file.synced = _apply(file.synced, file.pending[:count])
            del file.pending[:count]
            return
        covered = [changes for changes in self._pending[:count] if _parent(changes[0].path) == path]
        for changes in covered:
            self._pending.remove(changes)
            _rename(self._synced, changes)

    def cut(self, rng: random.Random, names: str, bytes_: str, place: Path) -> None:
        """Writes to `place` what a power cut leaves. `names`: nothing, all or some of those not synced; `bytes_`: see File."""
        left = dict(self._synced)
        for changes in self._pending:
            if names == "all" or (names == "some" and rng.random() < 0.5):
                _rename(left, changes)
        for path, file in sorted(left.items()):
            target = place / Path(path).relative_to(self.root)
            if not target.parent.is_dir():
                continue  # the directory has no name
            if file is None:
                target.mkdir()
            else:
                target.write_bytes(file.content(rng, bytes_))


def _rename(names: dict[str, File | None], changes: tuple[NameChange, ...]) -> None:
    for change in changes:
        if change.there:
            names[change.path] = change.file
        else:
            names.pop(change.path, None)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


# --- the run that is recorded -------------------------------------------------------------------------------------------------


@dataclass
class Promises:
    """What the run had appended, and what it had read, for the test that replays it."""

    appended: dict[int, int] = field(default_factory=dict)
    """Sequence to session: each record has its own."""
    openings: list[tuple[int, list[int]]] = field(default_factory=list)
    """Where each writer began, and the sequences that were read then."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"appended": list(self.appended.items()), "openings": self.openings}))

    @classmethod
    def read(cls, path: Path) -> "Promises":
        raw = json.loads(path.read_text())
        return cls({sequence: session for sequence, session in raw["appended"]}, raw["openings"])


def record(directory: Path, promises: Promises, rng: random.Random) -> None:
    """Some incarnations of a writer at level `machine`; each ends clean, or as if killed."""
    for _ in range(3):
        writer = open_journal(directory, segment_bytes=rng.choice([300, 2000, 1 << 20]), sync=True)
        promises.openings.append((writer.next_sequence, list(found(directory)[0])))
        _mark(Mark.FOUND, len(promises.openings) - 1)
        _work(writer, promises, rng)
        if rng.random() < 0.3:
            writer.close()
            _mark(Mark.DURABLE, writer.durable)
        del writer


def _work(writer: Writer, promises: Promises, rng: random.Random) -> None:
    marked = writer.durable
    for number in range(rng.randrange(5, 25)):
        for _ in range(rng.randrange(6)):
            payload = rng.randbytes(rng.choice([0, 10, 100, 1500]))
            session = len(promises.appended)
            promises.appended[writer.append(encode(Kind.RECEIVED, session=session, packet_id=1, id=payload))] = session
        if rng.random() < 0.3:
            writer.wait_durable(10)
        durable = writer.seal(1 + number)
        if durable != marked:
            _mark(Mark.DURABLE, durable)
            marked = durable


def _mark(kind: Mark, number: int) -> None:
    ctypes.CDLL(None).record_mark(ctypes.c_uint64(kind), ctypes.c_uint64(number))


if __name__ == "__main__":
    directory, promised, seed = sys.argv[1:]
    promises = Promises()
    record(Path(directory) / "journal" / "0", promises, random.Random(int(seed)))
    promises.write(Path(promised))
