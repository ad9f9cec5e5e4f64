"""Location of journals, and the pieces of segments to read.

    load(path)                      journals found                            keys of stream offsets
    <data>/journal/0                that worker's                             "0"
    <data>/journal or <data>        one per worker                            "0", "1", ...
    <shared>, with <node>/journal   one per node and worker                   "<node>/0", ...

A worker's journal continues that of a retired worker of the same number (`<number>.retired-<time>`): both are one journal here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_shardbroker.errors import ShardbrokerSourceError
from pyspark_shardbroker.options import Wanted
from pyspark_shardbroker.segments import (
    INCARNATION_STEP,
    SEGMENT_BYTES,
    SEQUENCE,
    TIME,
    Segment,
    SegmentInfo,
    find_segments,
    first_time,
    read_info,
    seek,
)
from pyspark_shardbroker.trust import FOREVER, ends

__all__ = ["FOREVER", "Journal", "Piece", "find_journals", "pieces"]

_WORKER = re.compile(r"([0-9]+)(?:\.retired-[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class Piece:
    """The input of one task: the blocks that begin in [start, end) of a segment, of these the records [lowest, highest)."""

    info: SegmentInfo
    start: int
    end: int
    lowest: int
    highest: int
    expected_end: int
    following: SegmentInfo | None = None
    """The next segment, if the same writer wrote it: after a disk error it repeats some records."""
    known: frozenset[int] = frozenset()
    counts_to: int = FOREVER
    """Where a power cut ended the writer: records missing from there on were never confirmed to a client."""


@dataclass
class Journal:
    """The journal of one worker: its directories."""

    key: str
    directories: list[Path] = field(default_factory=list)

    def segments(self) -> list[SegmentInfo]:
        """Returns the segments, oldest first. A segment that retention removes meanwhile is left out."""
        found = []
        for directory in self.directories:
            try:
                paths = find_segments(directory)
            except FileNotFoundError:
                continue  # just retired: the next call finds it under its other name
            for path in paths:
                try:
                    found.append(read_info(path))
                except FileNotFoundError:
                    continue
        return sorted(found, key=lambda info: info.first)


def find_journals(path: str) -> list[Journal]:
    """Returns all journals below a path, by key. Raises ShardbrokerSourceError without any."""
    root = Path(path.removeprefix("file://").removeprefix("file:"))
    if not root.is_dir():
        raise ShardbrokerSourceError(
            f"{path}: there is no such directory on this machine; journals are read as files (docs/spark-cluster.md)"
        )
    journals: dict[str, Journal] = {}
    if _WORKER.fullmatch(root.name) and find_segments(root):
        return [Journal(root.name, [root])]
    for prefix, directory in _roots(root):
        for child in sorted(directory.iterdir()):
            match = _WORKER.fullmatch(child.name)
            if match and child.is_dir():
                key = f"{prefix}{match[1]}"
                journals.setdefault(key, Journal(key)).directories.append(child)
    if not journals:
        raise ShardbrokerSourceError(
            f"{path}: there is no journal in it: allowed is a broker's data directory, its directory of journals, the journal of "
            "one worker, or a directory of several brokers' data directories"
        )
    return [journals[key] for key in sorted(journals, key=lambda key: (key.rpartition("/")[0], int(key.rpartition("/")[2])))]


def _roots(root: Path) -> Iterator[tuple[str, Path]]:
    if (root / "journal").is_dir():
        yield "", root / "journal"
        return
    yield "", root
    for node in sorted(root.iterdir()):
        if (node / "journal").is_dir():
            yield f"{node.name}/", node / "journal"


def pieces(journal: Journal, wanted: Wanted, partition_bytes: int, lowest: int = 0, highest: int = FOREVER) -> Iterator[Piece]:
    """Yields the pieces that may have wanted records."""
    infos = journal.segments()
    known = frozenset(info.incarnation for info in infos if info.incarnation is not None)
    followed = list(zip(infos, [*infos[1:], None], strict=True)) if infos else []
    power_cuts = ends([(info, _expected_end(info, following)) for info, following in followed], known)
    wanted_to = highest
    for info, following in followed:
        counts_to = _counts_to(info, known, power_cuts)
        highest = min(wanted_to, counts_to)
        if info.first >= highest or (following is not None and following.first <= lowest):
            continue
        if wanted.workers is not None and info.incarnation is not None and info.worker not in wanted.workers:
            continue
        try:
            bounds = _bounds(info, following, wanted, lowest, highest)
        except FileNotFoundError:
            continue
        if bounds is None:
            continue
        expected = _expected_end(info, following)
        start, end = bounds
        for at in range(start, end, partition_bytes):
            whole = (at + partition_bytes >= end and end >= info.size) or bool(info.problem)
            same = following is not None and following.incarnation == info.incarnation
            yield Piece(
                info, at, min(at + partition_bytes, end), lowest, highest, expected if whole else 0, following if same else None,
                known if info.problem else frozenset(), counts_to,
            )  # fmt: skip


def _counts_to(info: SegmentInfo, known: frozenset[int], power_cuts: dict[int, int]) -> int:
    if not power_cuts or info.incarnation is not None:
        return power_cuts.get(info.incarnation or 0, FOREVER)
    try:
        with Segment(info, known) as segment:
            incarnation = segment.incarnation
    except FileNotFoundError:
        return FOREVER
    if incarnation is None:  # no whole block, so it ended the writer of the preceding numbers
        same = (end for end in power_cuts.values() if end // INCARNATION_STEP == info.first // INCARNATION_STEP)
        return min(same, default=FOREVER)
    return power_cuts.get(incarnation, FOREVER)


def _bounds(info: SegmentInfo, following: SegmentInfo | None, wanted: Wanted, lowest: int, highest: int) -> tuple[int, int] | None:
    """Returns the offsets between which the wanted records are, or None."""
    start, end = 0, info.size
    if info.problem:
        return start, end
    if wanted.since_us and following is not None and following.incarnation == info.incarnation and not following.problem:
        begins = first_time(following)
        if begins is not None and begins < wanted.since_us:
            return None
    if wanted.until_us < FOREVER:
        begins = first_time(info)
        if begins is not None and begins >= wanted.until_us:
            return None
    if wanted.since_us == 0 and wanted.until_us >= FOREVER and lowest <= info.first and highest >= FOREVER:
        return start, end
    with Segment(info) as segment:
        if lowest > info.first:
            start = max(start, seek(segment, SEQUENCE, lowest + 1)[0])
        if wanted.since_us:
            start = max(start, seek(segment, TIME, wanted.since_us)[0])
        if wanted.until_us < FOREVER:
            end = min(end, seek(segment, TIME, wanted.until_us, max(start, SEGMENT_BYTES))[1])
        if highest < FOREVER:
            end = min(end, seek(segment, SEQUENCE, highest, max(start, SEGMENT_BYTES))[1])
    return (0 if start <= SEGMENT_BYTES else start, end) if end > start else None


def _expected_end(info: SegmentInfo, following: SegmentInfo | None) -> int:
    """Returns the position that a segment must reach; 0 if unknown."""
    if following is None:
        return 0
    if following.incarnation is None:
        # Only the first segment of an incarnation begins at such a number.
        return 0 if following.first % INCARNATION_STEP == 0 else following.first
    return following.first if following.incarnation == info.incarnation else following.previous_end
