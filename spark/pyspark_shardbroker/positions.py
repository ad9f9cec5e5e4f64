"""Positions in journals: start and end, the limit of a batch, and whether all unread records still exist."""

import sys
from collections.abc import Iterator

from pyspark_shardbroker.errors import RemovedError
from pyspark_shardbroker.journals import Journal, find_journals
from pyspark_shardbroker.segments import SEGMENT_BYTES, SEQUENCE, Segment, SegmentInfo, end_of, follow, seek

__all__ = ["Positions"]


class Positions:
    """Positions of all journals below a path. Remembers how far the last segment of each was followed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._followed: dict[str, tuple[str, int, int]] = {}
        """Key -> path of a segment, offset, position."""

    def earliest(self) -> dict[str, int]:
        """Returns the first record of each journal that still exists."""
        found = {journal.key: journal.segments() for journal in find_journals(self._path)}
        return {key: infos[0].first if infos else 0 for key, infos in found.items()}

    def latest(self) -> dict[str, int]:
        """Returns the end of the last whole block of each journal."""
        return {journal.key: self._end(journal) for journal in find_journals(self._path)}

    def _end(self, journal: Journal) -> int:
        infos = journal.segments()
        if not infos:
            return 0
        newest = infos[-1]  # all records of the others precede its first record
        path, offset, position = self._followed.get(journal.key, ("", SEGMENT_BYTES, newest.first))
        try:
            offset, position = end_of(newest, offset, position) if path == newest.path else end_of(newest)
        except FileNotFoundError:
            return newest.first  # just retired: the next call finds it under its other name
        self._followed[journal.key] = newest.path, offset, position
        return position

    def limited(self, start: dict[str, int], latest: dict[str, int], rows: int | None, size: int | None) -> dict[str, int]:
        """Limits a batch to so many records or bytes, divided evenly among the journals; at least one block of each.

        Bytes end with a block, so a batch may be one block larger for each journal.
        """
        journals = {journal.key: journal for journal in find_journals(self._path)}
        behind = [key for key, position in latest.items() if position > start.get(key, 0) and key in journals]
        ends = dict(latest)
        for number, key in enumerate(behind):
            left = len(behind) - number
            share = max((rows if rows is not None else size or 0) // left, 1)
            ends[key], used = _reach(journals[key].segments(), start.get(key, 0), latest[key], share, rows is not None)
            if rows is not None:
                rows = max(rows - used, 0)
                if rows == 0:
                    for rest in behind[number + 1 :]:
                        ends[rest] = start.get(rest, 0)
                    break
            else:
                size = max((size or 0) - used, 0)
        return ends

    def ranges(self, start: dict[str, int], end: dict[str, int], fail_fast: bool) -> Iterator[tuple[Journal, int, int]]:
        """Yields journals with the positions to read from and to. Raises RemovedError."""
        journals = {journal.key: journal for journal in find_journals(self._path)}
        for key, highest in end.items():
            lowest = start.get(key, 0)
            if highest <= lowest:
                continue
            missing = _missing(key, journals[key].segments() if key in journals else [], lowest, highest, key in start)
            if missing is not None:
                if fail_fast:
                    raise RemovedError(f"{missing}. mode permissive continues with the rest")
                print(f"pyspark_shardbroker: {missing}", file=sys.stderr, flush=True)
            if key in journals:
                yield journals[key], lowest, highest


def _missing(key: str, infos: list[SegmentInfo], lowest: int, highest: int, started: bool) -> str | None:
    """Returns a description of the records that a stream has yet to read and that no longer exist, or None."""
    if not infos:
        return f"journal {key}: records {lowest} to {highest - 1} are gone: there is no segment left"
    first = infos[0]
    # A stream that has not read this journal yet begins with the oldest record.
    if not started or first.first <= lowest or (not first.problem and first.previous_end <= lowest):
        return None
    last = min(first.previous_end or first.first, highest) - 1
    return (
        f"journal {key}: records {lowest} to {last} are gone: retention removed them before they were read; the oldest segment is "
        f"{first.path}"
    )


def _reach(infos: list[SegmentInfo], start: int, latest: int, share: int, by_rows: bool) -> tuple[int, int]:
    """Returns the position that so many records or bytes from `start` reach, and their exact number."""
    used = 0
    for place, info in enumerate(infos):
        if place + 1 < len(infos) and infos[place + 1].first <= start:
            continue
        if info.first >= latest:
            break
        with Segment(info) as segment:
            offset = seek(segment, SEQUENCE, start + 1)[0] if start > info.first else SEGMENT_BYTES
            for first, count, size in follow(segment, offset):
                low, high = max(first, start), min(first + count, latest)
                if high <= low:
                    continue
                if by_rows:
                    if used + high - low >= share:
                        return low + share - used, share
                    used += high - low
                else:
                    used += size
                    if used >= share:
                        return high, used
    return latest, used
