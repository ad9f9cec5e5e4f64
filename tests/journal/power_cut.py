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
from itertools import takewhile
from pathlib import Path

from shardbroker.journal import Writer, open_journal
from shardbroker.journal.schema import Kind, encode
from tests.journal.samples import found

SECTOR_BYTES = 512
MAGIC = bytes.fromhex("dec05e9d")
HEADER_BYTES = 25


class What(IntEnum):
    """As in recorder.c."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC_BEGIN = 4
    SYNC_END = 5
    RENAME = 6
    UNLINK = 7
    MKDIR = 8
    MARK = 9
    WRITE_SYNCED = 10
    WRITE_BEGIN = 11
    """Of a write that its process did not come to say was done."""


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
    """What was recorded, without records that processes which were killed have left unfinished."""
    raw, at, steps = path.read_bytes(), 0, []
    while 0 <= at < len(raw):
        end = at + 8 + struct.unpack_from("<I", raw, at + 4)[0] if at + HEADER_BYTES <= len(raw) else len(raw) + 1
        if end == len(raw) or raw.startswith(MAGIC, end):
            _, _, what, file, number = struct.unpack_from("<IIBQQ", raw, at)
            steps.append(Step(What(what), file, number, raw[at + HEADER_BYTES : end]))
            at = end
        else:
            at = raw.find(MAGIC, at + 4)
    return _without_begins(steps)


def _without_begins(steps: list[Step]) -> list[Step]:
    """A write that was done is one step, and it counts from then on."""
    begun: dict[tuple[int, int], int] = {}
    done = set()
    for number, step in enumerate(steps):
        if step.what == What.WRITE_BEGIN:
            begun[step.file, step.number] = number
        elif step.what in (What.WRITE, What.WRITE_SYNCED):
            done.add(begun.pop((step.file, step.number)))
            if not step.data:
                done.add(number)  # the disk refused
    return [step for number, step in enumerate(steps) if number not in done]


# --- the disk ---------------------------------------------------------------------------------------------------------------


@dataclass
class File:
    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Offset and bytes of each write that is not synced; None: the file ends here."""
    synced_writes: int = 0
    """Writes that are no longer pending."""

    def sync(self, writes: int) -> None:
        """The first so many writes that there ever were are on the disk."""
        count = max(writes - self.synced_writes, 0)
        _apply(self.synced, self.pending[:count])
        del self.pending[:count]
        self.synced_writes += count

    def content(self, rng: random.Random, keep: str) -> bytes:
        """What a cut leaves: `keep` is nothing, all, length, or some."""
        if keep == "nothing":
            return bytes(self.synced)
        pending = self.pending
        if keep == "some":
            pending = [part for one in pending for part in _sectors(*one) if rng.random() < 0.7]
        after = bytearray(self.synced)
        _apply(after, pending)
        return bytes(self.synced.ljust(len(after), b"\0")) if keep == "length" else bytes(after)


def _sectors(offset: int, data: bytes | None) -> Iterator[tuple[int, bytes | None]]:
    """A write as the disk's: sector by sector, any of which may be there or not."""
    if data is None:
        yield offset, None
        return
    while data:
        size = SECTOR_BYTES - offset % SECTOR_BYTES
        yield offset, data[:size]
        offset, data = offset + size, data[size:]


def _apply(content: bytearray, writes: list[tuple[int, bytes | None]]) -> None:
    for offset, data in writes:
        if data is None:
            del content[offset:]
            continue
        if len(content) < offset:
            content += bytes(offset - len(content))
        content[offset : offset + len(data)] = data


@dataclass(frozen=True)
class NameChange:
    """A name that came to mean a file (None: a directory), or went."""

    path: str
    file: File | None
    there: bool = True


class Disk:
    """Files and names, and which of them are synced. Directories are known by their paths; `root` is there from the start.

    What is below `root` when it is made counts as synced.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._files: dict[int, File] = {}
        self._synced: dict[str, File | None] = {}
        self._changes = 0
        self._pending: list[tuple[int, tuple[NameChange, ...]]] = []
        """Changes of names that are not synced, numbered; those of a rename come or stay away together."""
        self._syncs: dict[int, tuple[File | None, int]] = {}
        self._nameless: set[int] = set()
        """Inodes without a name that are no file of ours."""
        for path in Path(root).rglob("*"):
            file = None if path.is_dir() else File(bytearray(path.read_bytes()))
            self._synced[str(path)] = file
            if file is not None:
                self._files[path.stat().st_ino] = file
        self._now = dict(self._synced)

    def do(self, step: Step) -> None:
        """One step of the record."""
        if step.what in (What.WRITE, What.TRUNCATE, What.WRITE_SYNCED, What.WRITE_BEGIN):
            self._write(step)
        elif step.what == What.SYNC_BEGIN:
            file = self._files.get(step.file)
            self._syncs[step.number] = file, self._changes if file is None else file.synced_writes + len(file.pending)
        elif step.what == What.SYNC_END:
            self._end_sync(step.data.decode(), *self._syncs.pop(step.number))
        elif step.what == What.CREATE:
            self._files[step.file] = File()
            self._nameless.discard(step.file)
            self._change(NameChange(step.data.decode(), self._files[step.file]))
        elif step.what == What.RENAME:
            source, target = step.data.decode().split("\0")
            if source in self._now:
                self._change(NameChange(source, None, False), NameChange(target, self._now[source]))
        elif step.what == What.UNLINK:
            self._forget(step.data.decode())
            self._change(NameChange(step.data.decode(), None, False))
        elif step.what == What.MKDIR:
            self._change(NameChange(step.data.decode(), None))

    def _write(self, step: Step) -> None:
        file = self._files.get(step.file)
        if file is None and step.file not in self._nameless and (path := self._path_of(step.file)) is not None:
            # What created it was killed before it could say so, and another process goes on with it.
            file = self._files[step.file] = File()
            self._change(NameChange(str(path), file))
        if file is None:
            self._nameless.add(step.file)
            return  # its name has gone since
        if step.what == What.WRITE_SYNCED:
            _apply(file.synced, [(step.number, step.data)])
        elif step.what == What.WRITE_BEGIN:
            if found := self._found(step):
                file.pending.append((step.number, found))
        else:
            file.pending.append((step.number, step.data if step.what == What.WRITE else None))

    def _found(self, step: Step) -> bytes:
        """As much as there is of a write whose process was killed: whoever came next has read that."""
        path = self._path_of(step.file)
        there = b"" if path is None else path.read_bytes()[step.number : step.number + len(step.data)]
        same = (ours == found for ours, found in zip(step.data, there, strict=False))
        return step.data[: sum(takewhile(bool, same))]

    def _path_of(self, inode: int) -> Path | None:
        """Where the file is now, which may be long after the step."""
        return next((path for path in Path(self.root).rglob("*") if path.stat().st_ino == inode), None)

    def _forget(self, path: str) -> None:
        """The file system may give the inode of a file without a name to another one, whose creation is not always recorded."""
        file = self._now.get(path)
        if file is not None and sum(one is file for one in self._now.values()) == 1:
            self._files = {inode: one for inode, one in self._files.items() if one is not file}

    def _change(self, *changes: NameChange) -> None:
        self._pending.append((self._changes, changes))
        self._changes += 1
        _rename(self._now, changes)

    def _end_sync(self, path: str, file: File | None, count: int) -> None:
        if file is not None:
            file.sync(count)
            return
        for number, changes in list(self._pending):
            if number < count and _parent(changes[0].path) == path:
                self._pending.remove((number, changes))
                _rename(self._synced, changes)

    def cut(self, rng: random.Random, names: str, bytes_: str, place: Path) -> None:
        """Writes to `place` what a power cut leaves. `names`: nothing, all or some of those not synced; `bytes_`: see File."""
        left = dict(self._synced)
        for _, changes in self._pending:
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
