"""A broker's state in one file, written while it runs, and restored to another data directory.

    backup.tar   journal/workers, journal/N/recover-from, journal/N/*.sbj     input of a recovery, as after a kill
                 retained/, access/rules/, access/users/                      LMDB, one snapshot each
                 accounts.sqlite3, audit.sqlite3, runtime.toml, plugins.json, flows.json, streams.json
                 manifest.json                                                the last one: without it the file is truncated

A broker that starts on restored data recovers as after a kill, with any number of workers.
"""

import io
import json
import os
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import lmdb

from shardbroker import __version__
from shardbroker.config.flows import DEFINITIONS
from shardbroker.config.streams import STREAMS_FILE
from shardbroker.journal import recovery_start
from shardbroker.journal.layout import segment_paths, segment_start
from shardbroker.stores.files import replacing, sync_path

__all__ = ["MANIFEST", "BackupError", "backup", "restore"]

MANIFEST = "manifest.json"
FORMAT = 1
STORES = ("retained", "access/rules", "access/users")
DATABASES = ("accounts.sqlite3", "audit.sqlite3")
PLAIN = ("journal/workers", "runtime.toml", "plugins.json", DEFINITIONS, STREAMS_FILE)
START = "recover-from"
CHUNK = 1 << 20
"""Bytes read at a time."""
ATTEMPTS = 10
"""Attempts to copy a journal: the worker may end a cycle and remove a segment meanwhile, but not repeatedly."""


class BackupError(Exception):
    """The operation had no effect; the text has the problem, its place, and what is allowed."""


class _Moved(Exception):
    """Segments of a journal were removed while it was copied."""


def backup(data_dir: Path, file: Path) -> int:
    """Writes the backup; the file appears once it is complete, with mode 0600, as it has secrets. Returns its bytes. Raises
    BackupError."""
    if not (data_dir / "journal" / "workers").exists():
        raise BackupError(
            f"{data_dir}: no journals found; must be the data directory of a broker with durability.level process or machine"
        )
    try:
        with replacing(file) as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
            sums = {name: checksum for name, checksum in _add_all(tar, data_dir)}
            about = {"format": FORMAT, "version": __version__, "taken": int(time.time()), "crc32": sums}
            _add(tar, MANIFEST, io.BytesIO(data := json.dumps(about, indent=1).encode()), len(data))
        return file.stat().st_size
    except (OSError, lmdb.Error, sqlite3.Error) as error:
        raise BackupError(f"backup of {data_dir} to {file}: {error}") from None


def restore(file: Path, data_dir: Path) -> int:
    """Restores a backup into an empty or new data directory. Returns the time of the backup, Unix s. Raises BackupError.

    The whole backup is checked before any part becomes visible: after an error the directory is unchanged.
    """
    if data_dir.exists() and any(data_dir.iterdir()):
        raise BackupError(f"{data_dir} must be an empty or new directory, but it is not empty")
    try:
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=data_dir.parent, prefix=f".{data_dir.name}.") as temporary:
            target = Path(temporary) / "data"
            target.mkdir(mode=0o700)
            taken = _unpack(file, target)
            if data_dir.exists():
                data_dir.rmdir()
            target.rename(data_dir)
            sync_path(data_dir.parent)
        return taken
    except (OSError, tarfile.TarError) as error:
        raise BackupError(f"{file} to {data_dir}: {error}") from None


def _unpack(file: Path, target: Path) -> int:
    """Unpacks and checks all files of the backup; returns its time, Unix s."""
    sums: dict[str, int] = {}
    manifest = b""
    with tarfile.open(file, "r:") as tar:
        for member in tar:
            source = tar.extractfile(member)
            if source is None or member.name.startswith("/") or ".." in Path(member.name).parts:
                raise BackupError(f"{file}: {member.name} is not part of a backup")
            if member.name == MANIFEST:
                manifest = source.read()
                continue
            path = target / member.name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            checksum = 0
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as written:
                while chunk := source.read(CHUNK):
                    checksum = zlib.crc32(chunk, checksum)
                    written.write(chunk)
                written.flush()
                os.fsync(written.fileno())
            sums[member.name] = checksum
    try:
        about: dict[str, Any] = json.loads(manifest)
        known, taken, wanted = about["format"] == FORMAT, int(about["taken"]), dict(about["crc32"])
    except (ValueError, KeyError, TypeError):
        raise BackupError(f"{file}: no {MANIFEST} at its end: not a backup, or truncated") from None
    if not known:
        raise BackupError(f"{file}: format {about['format']} is not supported, this version reads {FORMAT}")
    if wanted != sums:
        wrong = sorted(name for name in {*wanted, *sums} if wanted.get(name) != sums.get(name))
        raise BackupError(f"{file}: damaged: {', '.join(wrong)}")
    return taken


def _add_all(tar: tarfile.TarFile, data_dir: Path) -> Iterator[tuple[str, int]]:
    """Yields (name, CRC) of each file added. Journals are last: their facts on retained messages may be newer, never older."""
    with tempfile.TemporaryDirectory(prefix="shardbroker-backup-") as temporary:
        for name in STORES:
            if (data_dir / name / "data.mdb").exists():
                copy = Path(temporary) / name
                copy.mkdir(parents=True)
                with closing(lmdb.open(str(data_dir / name), readonly=True, max_dbs=8)) as store:
                    store.copy(str(copy), compact=True)
                yield _add_file(tar, f"{name}/data.mdb", copy / "data.mdb")
                (copy / "data.mdb").unlink()
        for name in DATABASES:
            if (data_dir / name).exists():
                copy = Path(temporary) / name
                with closing(sqlite3.connect(data_dir / name)) as source, closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
                yield _add_file(tar, name, copy)
    for name in PLAIN:
        if (data_dir / name).exists():
            yield _add_file(tar, name, data_dir / name)
    for journal in sorted(path for path in (data_dir / "journal").iterdir() if path.name.isdecimal()):
        yield from _add_journal(tar, journal)


def _add_journal(tar: tarfile.TarFile, journal: Path) -> Iterator[tuple[str, int]]:
    """Adds the input of a recovery, in the order in which it was written; the last block may be incomplete, as after a kill."""
    for _ in range(ATTEMPTS):
        start = recovery_start(journal)
        paths = segment_paths(journal)
        needed = [path for path, after in zip_longest(paths, paths[1:]) if after is None or segment_start(after) > start]
        try:
            opened = [path.open("rb") for path in needed]  # an open file remains readable after its removal
        except FileNotFoundError:
            continue
        name = f"journal/{journal.name}"
        note = (journal / START).read_bytes() if (journal / START).exists() else None
        try:
            if recovery_start(journal) != start:
                continue
            if note is not None:
                yield f"{name}/{START}", _add(tar, f"{name}/{START}", io.BytesIO(note), len(note))
            for path, file in zip(needed, opened, strict=True):
                yield f"{name}/{path.name}", _add(tar, f"{name}/{path.name}", file, os.fstat(file.fileno()).st_size)
            return
        finally:
            for file in opened:
                file.close()
    raise BackupError(f"{journal}: segments are removed faster than they are copied; try again with less traffic")


def _add_file(tar: tarfile.TarFile, name: str, path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return name, _add(tar, name, file, os.fstat(file.fileno()).st_size)


class _Summed:
    """A file read up to its size at the start, as a file being written continues to grow."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.checksum = zlib.crc32(data, self.checksum)
        return data


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> int:
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = size, 0o600, int(time.time())
    summed = _Summed(file)
    tar.addfile(about, summed)  # type: ignore[arg-type]
    return summed.checksum
