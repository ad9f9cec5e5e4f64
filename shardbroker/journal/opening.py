"""Opens a journal for writing."""

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

from shardbroker.journal.errors import JournalBusy
from shardbroker.journal.layout import all_segment_paths, next_incarnation_start, segment_paths, segment_start
from shardbroker.journal.reader import find_end
from shardbroker.journal.writer import BLOCK_BYTES, PENDING_MAX, SEGMENT_BYTES, Writer
from shardbroker.stores.files import sync_path

__all__ = ["lock", "open_journal"]

_UNSYNCABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)
"""Errors of the sync of a directory far above: its names cannot be synced by this process."""


def lock(directory: Path) -> int:
    """Returns a descriptor of the directory with its lock; closing it unlocks. Raises JournalBusy, OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise JournalBusy(f"{directory} is in use: a broker runs, or another repair") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_journal(
    directory: Path,
    *,
    worker: int = 0,
    workers: int = 1,
    node_id: int = 0,
    segment_bytes: int = SEGMENT_BYTES,
    block_bytes: int = BLOCK_BYTES,
    pending_max: int = PENDING_MAX,
    sync: bool = False,
    bell: int = -1,
) -> Writer:
    """Returns a writer after the end of the journal in `directory`, which is created if it is missing.

    Existing segments are not changed: a new incarnation has segments of its own. No segment is opened yet, so that the first `seal`
    detects a full or read-only disk. Raises JournalBusy if another process writes to the journal, OSError if the directory cannot
    be created or read.

    With `sync` all existing segments are on the disk before this function returns (else OSError). A worker continues from its
    predecessor's records, and its answers must not depend on something that a power cut can take back.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = lock(directory)
    try:
        if sync:
            _sync_all(directory, fd, segment_paths(directory))
        end = _end(directory)
        return Writer(
            directory, fd, secrets.randbits(64), 0 if end is None else next_incarnation_start(end), end or 0,
            worker=worker, workers=workers, node_id=node_id, segment_bytes=segment_bytes, block_bytes=block_bytes,
            pending_max=pending_max, sync=sync, bell=bell,
        )  # fmt: skip
    except BaseException:
        os.close(fd)
        raise


def _end(directory: Path) -> int | None:
    """Returns the end of a journal or of the retired ones before it: a reader that follows positions must not meet one twice.
    None: there is no segment."""
    paths = all_segment_paths(directory)
    if not paths:
        return None
    with suppress(OSError):
        if (end := find_end(paths[-1].parent)) is not None:
            return end
    # It cannot be read now, or retention has just removed it. Its name has its beginning, and incarnations begin far apart.
    return segment_start(paths[-1])


def _sync_all(directory: Path, directory_fd: int, paths: list[Path]) -> None:
    """Syncs segments, their names, and the names of all parent directories. Cheap if there is nothing to sync."""
    for path in paths:
        sync_path(path)
    os.fsync(directory_fd)
    for parent in directory.parents:
        try:
            sync_path(parent)
        except OSError as error:
            if error.errno not in _UNSYNCABLE:
                raise
