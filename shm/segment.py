"""POSIX shared memory segments, mode 0600 (posix_ipc)."""

import mmap
import os

import posix_ipc

__all__ = ["attach", "create", "unlink"]

MODE = 0o600


def create(name: str, size: int) -> mmap.mmap:
    """A new, zeroed segment of `size` bytes; pages take memory when they are first touched. Raises ExistentialError."""
    segment = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=MODE, size=size)
    return _map(segment)


def attach(name: str) -> mmap.mmap:
    """A segment that another process created. Raises ExistentialError if there is none."""
    return _map(posix_ipc.SharedMemory(name))


def unlink(name: str) -> None:
    """Removes the name; the memory goes when the last mapping does. No error if it is gone already."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        pass


def _map(segment: posix_ipc.SharedMemory) -> mmap.mmap:
    try:
        return mmap.mmap(segment.fd, os.fstat(segment.fd).st_size)
    finally:
        segment.close_fd()
