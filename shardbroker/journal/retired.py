"""Journals of workers whose number is not in use any more: what is left of them, and until when.

    <data>/journal/3                    worker 3 writes to it
    <data>/journal/3.retired-<time>     set aside when there were at most three workers; its sessions are in other journals
    <data>/journal/3                    worker 3 again, later: it continues the numbers of the one that was set aside

No recovery reads a retired journal. Rules, replays, streams and exports do, as the older part of the journal of its number, so
`journal.retention` and holds apply to both as one journal. A worker removes segments of its own directory only, so the manager
looks after these.

The end of a journal outlives its records: a segment without a record remains as long as no worker writes a journal of this number,
since a later one must not use a position twice.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from shardbroker.journal.errors import JournalError
from shardbroker.journal.holds import Hold, held_from, needed_from, read_holds
from shardbroker.journal.layout import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    all_segment_paths,
    journals_below,
    retired_directories,
    segment_name,
    segment_paths,
    segment_start,
)
from shardbroker.journal.opening import lock
from shardbroker.journal.reader import find_end
from shardbroker.journal.retention import Removed, last_written_us, reason_to_remove
from shardbroker.stores.files import replace_file

__all__ = ["apply_retention_to_retired", "look_after_retired"]

_LEFT = (".sbj.damaged", ".sbj.failed", "recover-from", ".new")
"""Ends of names of files that are removed with the last segment of a directory. A directory with any other file stays."""


def look_after_retired(data_dir: Path, now_us: int, max_age_us: int | None, max_bytes: int | None) -> int:
    """Applies retention to all retired journals; returns the number of removed segments that a hold needed, beyond its limit.

    What cannot be read or removed is left to the next look. Waits for the disk. Raises OSError.
    """
    try:
        journals = [path for path in journals_below(data_dir / "journal") if retired_directories(path)]
    except FileNotFoundError:
        return 0
    holds = read_holds(data_dir) if journals else []
    return sum(_count_needed(directory, holds, now_us, max_age_us, max_bytes) for directory in journals)


def _count_needed(directory: Path, holds: Sequence[Hold], now_us: int, max_age_us: int | None, max_bytes: int | None) -> int:
    now_ms = now_us // 1000
    needed = needed_from(holds, directory.name, now_ms)
    with suppress(OSError, ValueError, JournalError):
        keep_from = held_from(holds, directory, now_ms)
        return sum(one.end > needed for one in apply_retention_to_retired(directory, keep_from, now_us, max_age_us, max_bytes))
    return 0


def apply_retention_to_retired(
    directory: Path, keep_from: int, now_us: int, max_age_us: int | None = None, max_bytes: int | None = None
) -> list[Removed]:
    """Removes the oldest segments of retired journals of a number by the rules of apply_retention(), and directories without any.

    directory: the journal of that number, which may not exist. Its segments count for `max_bytes`, and stay. Raises OSError,
    JournalBusy if one of them is being repaired, JournalTooNew.
    """
    with ExitStack() as locks:
        retired = retired_directories(directory)
        for one in retired:
            locks.callback(os.close, lock(one))
        removed = [*_removed(directory, keep_from, now_us, max_age_us, max_bytes)]
        for one in retired:
            if not segment_paths(one):
                _remove(one)
    return removed


def _removed(directory: Path, keep_from: int, now_us: int, max_age_us: int | None, max_bytes: int | None) -> Iterator[Removed]:
    paths = all_segment_paths(directory)
    sizes = [path.stat().st_size for path in paths]
    total = sum(sizes)
    for path, size, successor in zip(paths, sizes, [*paths[1:], None], strict=True):
        if path.parent == directory:
            return
        if size <= SEGMENT_HEADER_BYTES:
            if successor is None:
                return
            path.unlink()  # the end of a journal, which has been continued
            continue
        reason = reason_to_remove(last_written_us(path, successor), total, now_us, max_age_us, max_bytes)
        if not reason or segment_start(path) >= keep_from:
            return
        end = segment_start(successor) if successor is not None else find_end(path.parent) or 0
        if end > keep_from:
            return
        if successor is None:
            _keep_end(path, end)
        if successor is not None or segment_start(path) != end:
            path.unlink()
        total -= size
        yield Removed(path, size, reason, end)


def _keep_end(path: Path, end: int) -> None:
    """Writes a segment without a record behind the last one. Raises OSError; ValueError if its header is damaged."""
    with path.open("rb") as file:
        header = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))
    last = replace(header, first_sequence=end, previous_end=end, created_us=last_written_us(path, None))
    replace_file(path.with_name(segment_name(end)), last.pack())


def _remove(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name.endswith(_LEFT):
            path.unlink()
    with suppress(OSError):
        directory.rmdir()
