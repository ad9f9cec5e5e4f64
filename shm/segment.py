"""Shared memory segments: files of mode 0600 on tmpfs, in a directory of the broker's own (shm/runtime.py)."""

import mmap
import os
import stat
from pathlib import Path

from shm.runtime import distrust

__all__ = ["attach", "create", "unlink"]

MODE = 0o600
FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def create(path: str, size: int) -> mmap.mmap:
    """Creates a zeroed segment of `size` bytes; a page takes memory when it is first touched. Raises FileExistsError, OSError."""
    descriptor = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, MODE)
    try:
        os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def attach(path: str, least: int) -> mmap.mmap:
    """Attaches to a segment of another process, of at least `least` bytes.

    Raises FileNotFoundError, PermissionError if the file is accessible to other users, ValueError if it is not a segment.
    """
    descriptor = os.open(path, FLAGS)
    try:
        found = os.fstat(descriptor)
        problem = distrust(found)
        if problem is not None:
            raise PermissionError(f"segment {path}: {problem}")
        if not stat.S_ISREG(found.st_mode) or found.st_size < least:
            raise ValueError(f"segment {path}: must be a file of at least {least} bytes, got {found.st_size}")
        return mmap.mmap(descriptor, found.st_size)
    finally:
        os.close(descriptor)


def unlink(path: str) -> None:
    """Removes the name; the memory is freed with the last mapping. No error if the name is already removed."""
    Path(path).unlink(missing_ok=True)
