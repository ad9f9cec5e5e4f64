"""Durable file operations: a sync that survives a power cut, and an atomic replacement."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["Stamp", "replace_file", "replacing", "stamp_of", "sync_path"]

Stamp = tuple[int, int, int]
"""Changes with the content of a file, and with each replacement: time of change in ns, bytes, inode."""


def stamp_of(path: Path) -> Stamp | None:
    """Returns the stamp of a file; None if it is not there or cannot be reached."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def sync_path(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, owner: tuple[int, int] | None = None, sync: bool = True) -> Iterator[BinaryIO]:
    """Opens a new file, to write and to read, that replaces `path` at the end of the block.

    At any moment either the old or the new file is there as a whole. With `sync` this holds across a power cut too, and the end of
    the block makes the new one durable; `sync=False` is for shared memory. `mode` and `owner` (user, group) are those of the new
    file.

    Raises OSError. After an error in the block or at its end the old file is unchanged, and the new one is removed.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # left by an attempt that was killed
    try:
        with open(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb+") as file:
            os.fchmod(file.fileno(), mode)  # independent of the umask
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if sync:
        sync_path(path.parent)


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, owner: tuple[int, int] | None = None, sync: bool = True) -> None:
    """Writes `content` to a file atomically, whether the file exists or not; see replacing(). Raises OSError."""
    with replacing(path, mode=mode, owner=owner, sync=sync) as file:
        file.write(content)
