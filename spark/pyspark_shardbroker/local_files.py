"""The files of an export on a mounted file system, without the JVM: the same names and steps as in `files.py`."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_shardbroker.errors import BusyError

__all__ = ["LocalFiles", "locked"]


def _path_of(root: str) -> Path:
    return Path(root.removeprefix("file://").removeprefix("file:")).absolute()


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Lets one export at a time write to a directory, which is made if it is missing. Raises BusyError, OSError."""
    path = _path_of(root)
    path.mkdir(parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"--to {root}: another export is writing to it; run it again once that one has ended") from None
        yield
    finally:
        os.close(directory)  # ends the lock, as the end of the process does


class LocalFiles:
    """The files below one directory. Names are relative to it. A failed operation raises OSError.

    Hadoop writes a checksum beside each of its files and compares it at the next read. A change here removes it, because a run by
    Spark would otherwise find a checksum of former content.
    """

    def __init__(self, root: str) -> None:
        self._root = _path_of(root)
        self.root = str(self._root)

    def path(self, name: str) -> str:
        """Returns the full name."""
        return f"{self.root}/{name}"

    local = path

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str) -> str | None:
        """Returns the content of a small text file, or None if it does not exist."""
        try:
            return (self._root / name).read_text()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Writes a file atomically: at any moment the whole file exists, or the former one."""
        target = self._root / name
        new = target.with_name(f"{target.name}.new")
        target.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text)
        _checksum_of(target).unlink(missing_ok=True)
        new.replace(target)

    def delete(self, name: str) -> None:
        """Deletes a file or a directory with its content; no error without one."""
        target = self._root / name
        if target.is_dir():
            shutil.rmtree(target)
            return
        _checksum_of(target).unlink(missing_ok=True)
        target.unlink(missing_ok=True)

    def move(self, name: str, target: str) -> None:
        """Moves a file."""
        source, place = self._root / name, self._root / target
        place.parent.mkdir(parents=True, exist_ok=True)
        _checksum_of(place).unlink(missing_ok=True)
        source.replace(place)
        _checksum_of(source).unlink(missing_ok=True)

    def list(self, name: str = "") -> Iterator[tuple[str, int]]:
        """Yields names and sizes of all files below a directory, except for paths with a part that begins with `.` or `_`."""
        for directory, inner, names in os.walk(self._root / name):
            inner[:] = sorted(one for one in inner if not one.startswith((".", "_")))
            for file in sorted(names):
                if not file.startswith((".", "_")):
                    path = Path(directory, file)
                    yield str(path.relative_to(self._root)), path.stat().st_size


def _checksum_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")
