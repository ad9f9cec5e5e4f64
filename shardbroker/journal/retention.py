"""Removes old segments: by age, by bytes, and never one that is still needed."""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, segment_paths, segment_start

__all__ = ["Removed", "apply_retention"]


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed segment."""

    path: Path
    size: int
    reason: str
    """Either `age` or `bytes`."""
    end: int
    """Position after its last record."""


def apply_retention(
    directory: Path, keep_from: int, now_us: int, max_age_us: int | None = None, max_bytes: int | None = None
) -> list[Removed]:
    """Removes the oldest segments that are wholly below `keep_from`, as long as they are too old or all are too large.

    keep_from: the lowest position that a recovery, a session or an export in progress needs; 0 keeps everything. The newest segment
    is kept at any age: it may be open for writing. Stops at the first segment that is kept, so there are never gaps. Safe while a
    worker writes, and from another process: a removal takes the file system some ms, which should not delay a worker. Raises
    OSError; segments removed before it remain removed.
    """
    removed: list[Removed] = []
    paths = segment_paths(directory)
    sizes = {path: path.stat().st_size for path in paths}
    total = sum(sizes.values())
    for path, successor in pairwise(paths):
        if segment_start(successor) > keep_from:
            break
        if max_bytes is not None and total > max_bytes:
            reason = "bytes"
        elif max_age_us is not None and _last_written_us(path, successor) < now_us - max_age_us:
            reason = "age"
        else:
            break
        os.unlink(path)
        total -= sizes[path]
        removed.append(Removed(path, sizes[path], reason, segment_start(successor)))
    return removed


def _last_written_us(path: Path, successor: Path) -> int:
    """Returns the time of a segment's newest record: its successor began later."""
    with successor.open("rb") as file:
        try:
            return SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES)).created_us
        except ValueError:
            return path.stat().st_mtime_ns // 1000
