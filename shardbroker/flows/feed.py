"""The journals that a process reads: those of workers w with w % processes = n, also of workers that no longer exist."""

import time
from collections import deque
from pathlib import Path
from typing import Any

from shardbroker.flows.cursors import Cursor
from shardbroker.flows.messages import Publisher, publisher_of
from shardbroker.journal.follow import Batch, Follower, Place
from shardbroker.journal.layout import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    all_segment_paths,
    journals_below,
    segment_start,
)  # fmt: skip
from shardbroker.journal.schema import Kind, MessageFlag

__all__ = ["Incarnations", "JournalFeed", "journal_names", "read_publishers"]

KINDS = (int(Kind.MESSAGE), int(Kind.PUBLISHER), int(Kind.EVENT))


def journal_names(journals: Path, number: int, processes: int) -> list[str]:
    """Returns the names of the journals of process `number`."""
    try:
        return [path.name for path in journals_below(journals) if int(path.name) % processes == number]
    except FileNotFoundError:
        return []


class JournalFeed:
    """One journal. cursor: where to go on; None: at the oldest record. publishers: of its segment up to there, if known."""

    def __init__(self, directory: Path, cursor: Cursor | None, publishers: dict[bytes, Publisher] | None = None) -> None:
        self.name = directory.name
        self.directory = directory
        self.publishers: dict[bytes, Publisher] = {}
        self.lost = 0
        """Records that were missing, and `reported`: those that the log says so of."""
        self.reported = 0
        self.pending: deque[tuple[Cursor, list[tuple[int, int]]]] = deque()
        """Cursors that wait until workers are done with what was published, (worker, position in its ring) each."""
        self.behind_us = 0
        """Time of the last block that was read; 0: everything is read."""
        self._incarnations = Incarnations(directory)
        self._segment = -1
        place = None
        if cursor is not None and self.is_there(cursor):
            place = Place(cursor.segment, cursor.offset, cursor.position) if cursor.offset else self._place_of(cursor.position)
            if publishers is not None:
                self.publishers, self._segment = publishers.copy(), place.segment
            else:
                self._find_publishers(place)
        self.follower = Follower(directory, place, kinds=KINDS, flags=MessageFlag.FED)
        self.done = cursor if place is not None and cursor is not None else Cursor(0)

    def read(self) -> list[Batch]:
        """Returns what follows, at most about 1 MiB. Raises OSError, JournalTooNew."""
        batches = []
        for part in self.follower.read():
            if isinstance(part, Batch):
                batches.append(part)
            elif part.lost_to is not None and part.lost_from is not None:
                self.lost += part.lost_to - part.lost_from
        self.behind_us = 0 if self.follower.at_end else batches[-1].time_us if batches else self.behind_us or time.time_ns() // 1000
        return batches

    def note_publisher(self, segment: int, client_id: bytes, details: dict[int, Any] | None) -> None:
        """Each segment begins with the publishers again, so those of the one before go."""
        if segment != self._segment:
            self._segment = segment
            self.publishers.clear()
        self.publishers[client_id] = publisher_of(details)

    @property
    def cursor(self) -> Cursor | None:
        """Returns the cursor behind all that read() has returned; None before anything was found."""
        place = self.follower.place
        if place is None:
            return None
        return self._cursor_at(place)

    def cursor_behind(self, batch: Batch) -> Cursor:
        """Returns the cursor behind one batch that read() has returned."""
        return self._cursor_at(batch.place)

    def _cursor_at(self, place: Place) -> Cursor:
        return Cursor(place.position, place.segment, place.offset, self._incarnations.of(place.segment))

    def is_there(self, cursor: Cursor) -> bool:
        """Returns whether a cursor is of this journal, and not of one of the same name that was removed by hand."""
        return self._incarnations.have(cursor.position, cursor.incarnation)

    def _place_of(self, position: int) -> Place:
        """Returns the begin of the segment that has a position."""
        starts = [start for path in self._incarnations.paths() if (start := segment_start(path)) <= position]
        return Place(max(starts), SEGMENT_HEADER_BYTES, position) if starts else Place(0, 0, position)

    @property
    def lag_records(self) -> int:
        """Returns about how many records follow, from the bytes that follow and the mean size of records so far."""
        place = self.follower.place
        if place is None or self.follower.at_end:
            return 0
        left = -place.offset
        for path in self._incarnations.paths():
            if segment_start(path) >= place.segment:
                left += path.stat().st_size
        return int(left * (place.position - place.segment) / max(place.offset, 1)) if left > 0 else 0

    def end(self) -> int:
        """Returns the position behind the last record that is written at this moment."""
        paths = self._incarnations.paths()
        if not paths:
            return 0
        start = max(segment_start(path) for path in paths)
        place = self.follower.place
        if place is None or place.segment < start:
            place = Place(start, SEGMENT_HEADER_BYTES, start)
        return int(read_publishers(self.directory, place, {}).position)

    def _find_publishers(self, place: Place) -> None:
        """Reads the publishers of the open segment again."""
        read_publishers(self.directory, Place(place.segment, SEGMENT_HEADER_BYTES, place.segment), self.publishers, place.position)
        self._segment = place.segment


class Incarnations:
    """Those of the segments of a journal."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._headers: dict[int, int] = {}

    def have(self, position: int, incarnation: int) -> bool:
        """Returns whether a position is of this journal, and not of one of the same name that was removed by hand.

        incarnation: of the segment of the position; 0: not known.
        """
        starts = [segment_start(path) for path in self.paths()]
        if not starts or max(starts) > position:
            return True
        return incarnation == 0 or any(self.of(start) == incarnation for start in starts)

    def paths(self) -> list[Path]:
        """Returns the segments, with those of journals that were set aside."""
        return all_segment_paths(self._directory)

    def of(self, segment: int) -> int:
        """Returns the incarnation of a segment; 0 if it is gone."""
        if segment not in self._headers:
            path = next((path for path in self.paths() if segment_start(path) == segment), None)
            try:
                header = None if path is None else _header_of(path)
            except (OSError, ValueError):
                header = None
            self._headers = {segment: header.incarnation if header is not None else 0}
        return self._headers[segment]


def _header_of(path: Path) -> SegmentHeader:
    with path.open("rb") as file:
        return SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))


def read_publishers(directory: Path, place: Place, publishers: dict[bytes, Publisher], position: int | None = None) -> Any:
    """Reads publishers from a place up to a position, or to the end; returns the place behind."""
    follower = Follower(directory, place, kinds=[Kind.PUBLISHER])
    while not follower.at_end and (position is None or follower.place.position < position):
        for part in follower.read():
            if isinstance(part, Batch):
                found = part.records if position is None else [record for record in part.records if record[0] < position]
                publishers.update({record[2]: publisher_of(record[3]) for record in found})
    follower.close()
    return follower.place
