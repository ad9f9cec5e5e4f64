"""Lines of a file, with rotation: `<filepath>`, then `<filepath>.1` to `.N`, the highest being the oldest.

`<filepath>.lock` lies beside it. The processes flows lock it while they write, so that lines are whole and files are rotated once.
It also tells files of this type from others: a file without it is neither written nor replaced, as a path may be that of any file.

After an fsync that has failed, the kernel may drop what it had of the file, and report success to the next one (fsync(2)). So lines
are kept in memory until an fsync has succeeded. After a failure they are written again, to a new file where there may be several:
lines of the former one are there twice, or damaged.
"""

import asyncio
import fcntl
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from shardbroker.config.sinks.disk_log import DiskLogAction, DiskLogConnector
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError
from shardbroker.flows.sinks.driver import ConnectorDriver, Failure, Unusable
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.templates import Template, template
from shardbroker.rules.values import EvaluationError
from shardbroker.stores.files import sync_path

__all__ = ["DiskLog", "LogFile", "connect", "make"]

DIRECTORY = "disk_log"
"""Of relative paths, in the data directory."""
WRITE_S = 30.0
"""Longest write: a disk may be busy with others."""
UNSYNCED_MAX = 16 << 20
"""Most bytes of lines in memory before an fsync, besides those of one batch: what a second brings."""
MODE = 0o600
ENDS = str.maketrans({end: ascii(end)[1:-1] for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"})
"""Line ends within a line: a client must not make lines of its own."""


def connect(settings: DiskLogConnector, key: str) -> "LogFile":
    """Raises ConnectionSettingError."""
    return LogFile(settings, key)


def make(action: DiskLogAction, connector: "LogFile", id: str) -> "DiskLog":
    """Raises EvaluationError for a template that is too long."""
    return DiskLog(action, connector)


class LogFile(Connector["LogFile"]):
    """The file of a connector, which several actions may write. `data_dir` is set before its first use."""

    def __init__(self, settings: DiskLogConnector, key: str) -> None:
        super().__init__(WRITE_S)
        path = Path(settings.filepath)
        if not settings.filepath or "\0" in settings.filepath or ".." in path.parts or not path.name:
            raise ConnectionSettingError(f"{key}.filepath", "the path of a file, without ..", settings.filepath)
        self._path, self._size_max, self._files_max = path, settings.max_file_size, settings.max_file_number
        self.data_dir = Path()
        self._turn = asyncio.Lock()
        self._lock = self._file = -1
        self._unsynced = bytearray()
        """Lines that are written, and not known to be on the disk. An fsync that succeeds replaces the object."""
        self._is_doubtful = False
        """Whether the disk may lack some of them, as an fsync has failed: they are written again when a file is opened."""
        self._begun: tuple[os.stat_result, int] | None = None
        """The file after an attempt to do so that has failed, and its size before."""

    @property
    def path(self) -> Path:
        return self._path if self._path.is_absolute() else self.data_dir / DIRECTORY / self._path

    async def append(self, lines: bytes, sync: bool) -> None:
        """Writes whole lines. sync: returns when they are on the disk. Raises Unusable, TimeoutError."""
        async with self.connection():
            await self._run(lambda: self._append(lines, sync))

    async def sync(self) -> None:
        """Returns when all that was written is on the disk. Raises Unusable, TimeoutError."""
        if self._unsynced:
            async with self.connection():
                await self._run(self._sync)

    async def _run(self, call: Callable[[], None]) -> None:
        """Calls it in a thread, as a disk may be slow, and one at a time also if the wait for an earlier one was given up."""
        async with self._turn:
            work = asyncio.get_running_loop().run_in_executor(None, call)
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                raise

    def _lend(self) -> AbstractAsyncContextManager["LogFile"]:
        return _lent(self)

    async def _ping(self, lent: "LogFile") -> None:
        await self._run(self._look)

    def _is_lost(self, error: Exception) -> bool:
        return True

    async def _close(self) -> None:
        try:
            if self._unsynced:
                await self._run(self._sync)
        finally:
            self._forget()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    # --- in a thread ----------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        with self._locked():
            self._open()

    def _append(self, lines: bytes, sync: bool) -> None:
        with self._locked():
            self._open()
            before, size = self._unsynced, len(self._unsynced)
            try:
                self._add(lines)
                if sync or len(self._unsynced) > UNSYNCED_MAX:
                    self._fsync()
            except Exception:  # the caller keeps these lines
                del self._unsynced[size if self._unsynced is before else 0 :]
                raise

    def _add(self, lines: bytes) -> None:
        """Writes lines, to as many files as they need. Raises OSError, Unusable."""
        while lines:
            size = os.fstat(self._file).st_size
            end = self._fitting(lines, size)
            if not end:
                self._fsync()
                self._rotate()
                continue
            self._write(memoryview(lines)[:end], size)
            self._unsynced += lines[:end]
            lines = lines[end:]

    def _fitting(self, lines: bytes, size: int) -> int:
        """Returns the bytes of the lines that a file of a size has room for; an empty file has room for a line of any length."""
        if size + len(lines) <= self._size_max:
            return len(lines)
        fitting = lines.rfind(b"\n", 0, max(self._size_max - size, 0)) + 1
        return fitting or (0 if size else lines.find(b"\n") + 1)

    def _write(self, view: memoryview, size: int) -> None:
        """Writes all or nothing: what a full disk has taken is removed, so that no line is cut."""
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _sync(self) -> None:
        if self._is_doubtful:
            self._look()
        elif self._unsynced:
            with self._errors():
                self._fsync()  # a file that another process has rotated is still this one

    def _fsync(self) -> None:
        """Raises OSError, after which the lines are doubtful."""
        try:
            os.fsync(self._file)
        except OSError:
            self._is_doubtful = bool(self._unsynced)
            raise
        self._unsynced = bytearray()

    def _repeat(self) -> None:
        """Writes doubtful lines again. Raises OSError, Unusable, after which they still are doubtful."""
        lines, found = bytes(self._unsynced), os.fstat(self._file)
        if self._begun is not None and _is_same(found, self._begun[0]) and found.st_size == self._begun[0].st_size:
            os.ftruncate(self._file, self._begun[1])  # no other process has added lines to those of the last attempt
        elif self._files_max > 1 and found.st_size:
            self._rotate()
        self._begun, before = None, os.fstat(self._file)
        try:
            self._add(lines)
            self._fsync()
        except Exception:
            self._unsynced, self._is_doubtful = bytearray(lines), True
            if self._file >= 0:
                found = os.fstat(self._file)
                self._begun = found, before.st_size if _is_same(found, before) else 0
            raise
        self._is_doubtful = False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Excludes other processes. Raises Unusable."""
        with self._errors():
            if self._lock < 0:
                self._lock = self._begin()
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises Unusable for what the operating system refuses."""
        try:
            yield
        except OSError as error:
            if self._unsynced and not self._is_doubtful:  # the descriptor that is closed is the one that reports what was lost
                with suppress(OSError):
                    self._fsync()
            self._forget()
            raise Unusable(f"file {self.path}: {error.strerror or error}") from None

    def _begin(self) -> int:
        """Opens the lock. Without one, there must be no file that rotation would replace. Raises OSError, Unusable."""
        path = self.path
        if not self._path.is_absolute():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to((self.data_dir / DIRECTORY).resolve()):
                raise Unusable(f"file {path}: must be below {DIRECTORY} of the data directory")
        elif path.parent.resolve().is_relative_to(self.data_dir.resolve()):
            raise Unusable(f"file {path}: must be outside the data directory, or relative to {DIRECTORY} in it")
        lock = self._numbered("lock")
        taken = [one for one in self._files() if os.path.lexists(one)]
        if taken and not lock.exists():  # in this order: another process makes the lock before the file
            raise Unusable(f"file {taken[0]}: must be new, or written by disk_log before")
        return _opened(lock, os.O_RDWR | os.O_CREAT)

    def _numbered(self, end: object) -> Path:
        return self.path.with_name(f"{self.path.name}.{end}")

    def _files(self) -> list[Path]:
        """Returns the present file and all that it may become."""
        return [self.path, *(self._numbered(number) for number in range(1, self._files_max))]

    def _open(self) -> None:
        """Opens the present file, with all lines that have been written. Raises OSError, Unusable."""
        if self._file >= 0 and not self._is_present():
            if self._unsynced:
                self._fsync()
            self._forget()
        if self._file < 0:
            self._open_present()
            if self._is_doubtful:
                self._repeat()

    def _is_present(self) -> bool:
        """Returns whether the open file is the present one: another process may have rotated it, or a person removed it."""
        try:
            return _is_same(os.stat(self.path, follow_symlinks=False), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def _open_present(self) -> None:
        self._file = _opened(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        sync_path(self.path.parent)

    def _rotate(self) -> None:
        """Raises OSError, Unusable."""
        self._forget()
        files = self._files()
        for source, target in reversed(list(pairwise(files))):
            if source.exists():
                source.replace(target)
        if len(files) == 1:
            self.path.unlink()
        self._open_present()

    def _forget(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@asynccontextmanager
async def _lent(file: LogFile) -> AsyncIterator[LogFile]:
    yield file


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _opened(path: Path, flags: int) -> int:
    """Returns a descriptor of a regular file with this name alone. Raises OSError, Unusable."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, MODE)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise Unusable(f"file {path}: must be a regular file with one name")
    return descriptor


class DiskLog(ConnectorDriver[LogFile]):
    """The driver of an action."""

    def __init__(self, action: DiskLogAction, file: LogFile) -> None:
        super().__init__(file)
        text = action.parameters.template
        self._template: Template | None = template(text) if text else None
        self._syncs = action.parameters.write_mode == "sync"

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        """Raises Unusable, TimeoutError."""
        lines: list[bytes] = []
        failures: list[Failure] = []
        for at, row in enumerate(rows):
            try:
                lines.append(self._line(row))
            except (EvaluationError, ValueError, RecursionError) as error:
                failures.append(Failure(at, f"line not made: {type(error).__name__}"))
        if lines:
            lines.append(b"")
            await self._connector.append(b"\n".join(lines), self._syncs)
        return failures

    async def sync(self) -> None:
        """Raises Unusable, TimeoutError."""
        await self._connector.sync()

    def _line(self, row: Row) -> bytes:
        if self._template is not None:
            text: str = row.text(self._template)
            return text.translate(ENDS).encode(errors="backslashreplace")
        return json_bytes({"position": row.value(("position",)), **row.values})
