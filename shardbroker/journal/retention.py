"""Removes old segments: by age, by bytes, and never one that is still needed."""

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, segment_paths, segment_start

__all__ = ["Removed", "age_limit_us", "apply_retention", "last_written_us", "reason_to_remove"]


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
        reason = reason_to_remove(last_written_us(path, successor), total, now_us, max_age_us, max_bytes)
        if not reason:
            break
        os.unlink(path)
        total -= sizes[path]
        removed.append(Removed(path, sizes[path], reason, segment_start(successor)))
    return removed


def age_limit_us(age_s: float) -> int | None:
    """Returns `journal.retention.age` as a limit; None: no limit."""
    return None if age_s == inf else int(age_s * 1e6)


def reason_to_remove(written_us: int, total: int, now_us: int, max_age_us: int | None, max_bytes: int | None) -> str:
    """Returns why the oldest segment of a journal of `total` bytes is removed; empty: it stays."""
    if max_bytes is not None and total > max_bytes:
        return "bytes"
    return "age" if max_age_us is not None and written_us < now_us - max_age_us else ""


def last_written_us(path: Path, successor: Path | None) -> int:
    """Returns the time of a segment's newest record: its successor, if there is one, began later."""
    if successor is not None:
        with successor.open("rb") as file, suppress(ValueError):
            return SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES)).created_us
    return path.stat().st_mtime_ns // 1000
