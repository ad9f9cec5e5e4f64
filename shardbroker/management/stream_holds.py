"""What streams keep of journals: one hold for all of them, from the oldest segment that a stream needs, and figures of each.

A stream needs the segments with messages of its age, and of these the newest up to its size. The manager writes the hold before a
stream is in force and looks at it every few seconds, since ages advance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from shardbroker.config.streams import Kept
from shardbroker.journal.errors import JournalTooNew
from shardbroker.journal.holds import Hold, release_hold, set_hold
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, all_segment_paths, journals_below, segment_start

__all__ = ["StreamHolds", "Use"]

CONSUMER = "streams"
SPARE = 2
"""The hold's own limit is so many times that of the largest stream: it counts only while no manager moves the hold."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a journal."""

    start: int
    """Position of its first record."""
    size: int
    created_us: int


@dataclass(frozen=True, slots=True)
class Use:
    """What is kept for a stream."""

    bytes: int
    """Size of the segments, which have messages of other topics, too."""
    oldest_us: int | None
    """Unix µs from which on messages are delivered that were published; None: there is no journal."""


class StreamHolds:
    """Of a data directory. segment_bytes: `journal.segment_bytes`. Its calls wait for the disk."""

    def __init__(self, data_dir: Path, segment_bytes: int) -> None:
        self._data_dir, self._segment_bytes = data_dir, segment_bytes
        self._created: dict[Path, int] = {}
        self._held: tuple[dict[str, int], int] | None = None
        """Positions and limit of the hold; None: unknown."""

    def hold(self, streams: Iterable[Kept], now_us: int) -> None:
        """Has journals keep what these streams need. Raises OSError."""
        wanted = [*streams]
        if not wanted:
            release_hold(self._data_dir, CONSUMER)
            self._held = None
            return
        positions = {
            name: min(first.start for first in firsts)
            for name, segments in self._journals().items()
            if (firsts := [needed[0] for one in wanted if (needed := _needed(segments, one, now_us))])
        }
        most = SPARE * (max(one.bytes for one in wanted) + self._segment_bytes)
        if (positions, most) != self._held:
            set_hold(self._data_dir, Hold(CONSUMER, positions, most))
            self._held = positions, most

    def uses(self, streams: Sequence[Kept], now_us: int) -> list[Use]:
        """Returns what is kept for each. Raises OSError."""
        journals = self._journals().values()
        return [_use([_needed(segments, one, now_us) for segments in journals], one, now_us) for one in streams]

    def _journals(self) -> dict[str, list[Segment]]:
        """Returns the segments of each journal, the oldest first, with those of earlier workers of its number."""
        try:
            found = journals_below(self._data_dir / "journal")
        except FileNotFoundError:
            return {}
        known, self._created = self._created, {}
        return {
            journal.name: [one for path in all_segment_paths(journal) if (one := self._segment(path, known)) is not None]
            for journal in found
        }

    def _segment(self, path: Path, known: dict[Path, int]) -> Segment | None:
        """Returns a segment; None if retention has removed it just now, or its header is damaged or of a later version."""
        try:
            created_us = known.get(path)
            if created_us is None:
                with path.open("rb") as file:
                    created_us = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES)).created_us
            self._created[path] = created_us
            return Segment(segment_start(path), path.stat().st_size, created_us)
        except (FileNotFoundError, ValueError, JournalTooNew):
            return None


def _needed(segments: list[Segment], kept: Kept, now_us: int) -> list[Segment]:
    """Returns the segments that a stream needs, the oldest first; the newest one always."""
    since_us = 0 if kept.age == inf else now_us - int(kept.age * 1e6)
    needed: list[Segment] = []
    total = 0
    for segment in reversed(segments):
        total += segment.size
        if needed and total > kept.bytes:
            break
        needed.append(segment)
        if segment.created_us <= since_us:
            break  # those before it are older
    return needed[::-1]


def _use(journals: list[list[Segment]], kept: Kept, now_us: int) -> Use:
    segments = [segment for needed in journals for segment in needed]
    if not segments:
        return Use(0, None)
    oldest_us = min(segment.created_us for segment in segments)
    if kept.age != inf:
        oldest_us = max(oldest_us, now_us - int(kept.age * 1e6))
    return Use(sum(segment.size for segment in segments), oldest_us)
