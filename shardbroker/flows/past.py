"""A rule over the messages and events that journals still have, without its actions.

Journals have the messages of `journal.capture` and of rules, those for clients with a session, and the events that rules name.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardbroker.flows.columns import columns_of
from shardbroker.flows.feed import read_publishers
from shardbroker.flows.messages import ANONYMOUS, Publisher, columns_of_event, publisher_of
from shardbroker.journal.follow import Batch, Follower, Place
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, all_segment_paths, journals_below, segment_start
from shardbroker.journal.reader import damage_at
from shardbroker.journal.schema import Kind, MessageFlag
from shardbroker.rules.compiler import compile_rule
from shardbroker.rules.definition import EVENTS
from shardbroker.rules.events import event_of
from shardbroker.rules.payload import Payload
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["FOR_READERS", "Past", "Seen", "place_since"]

KINDS = (int(Kind.MESSAGE), int(Kind.PUBLISHER), int(Kind.EVENT))
SEEN_MAX = 1_000_000
"""Ids of messages that are remembered, some 100 MB: a message is in the journal of its publisher's worker and in those of its
subscribers', and is written again while it is queued."""
APART_US, WAITING_MAX = 1_000_000, 100_000
"""Longest time between the records of one message in two journals, and most records that wait for that."""
FOR_READERS = int(MessageFlag.FED) | int(MessageFlag.CAPTURED)
"""Flags of the record of a message in the journal of its publisher's worker, which has it once."""
METADATA = {"rule_id": "sql_tester"}
_Record = tuple[int, tuple[Any, ...], Publisher]
"""Unix µs, record, publisher."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rule makes of a message or event. `error`: why its evaluation failed; else `result`."""

    time_us: int
    columns: dict[str, Value]
    result: Value
    error: str = ""


class Past:
    """A rule. Raises SqlError. `read` counts messages and events, `matched` those of FROM."""

    def __init__(self, sql: str) -> None:
        self._rule = compile_rule(sql)
        self._events = {event.name for name in self._rule.filters if name.startswith(EVENTS) and (event := event_of(name))}
        self.read = self.matched = self.failed = 0

    def results(self, journals: Path, since_us: float, until_us: float = float("inf")) -> Iterator[Seen]:
        """Yields the results in the order of time, and failures. Raises OSError, JournalError."""
        streams = [_records(one, place_since(one, since_us), since_us, until_us) for one in journals_below(journals)]
        for time_us, columns in self._matching(streams, since_us):
            seen = self._evaluated(time_us, columns)
            if seen is not None:
                yield seen

    def last(self, journals: Path, count: int, tail_bytes: int) -> list[Seen]:
        """Returns results and failures of the last messages and events that FROM matches, at the end of each journal."""
        streams = [_records(one, _near_end(one, tail_bytes)) for one in journals_below(journals)]
        matching = deque(self._matching(streams, 0), count)
        self.matched = len(matching)
        return [seen for time_us, columns in matching if (seen := self._evaluated(time_us, columns)) is not None]

    def _matching(self, streams: Iterable[Iterable[_Record]], since_us: float) -> Iterator[tuple[int, dict[str, Any]]]:
        known: dict[bytes, None] = {}
        for time_us, record, publisher in _preferred(heapq.merge(*streams, key=lambda one: one[0])):
            if record[1] == Kind.MESSAGE:
                if record[2] in known or int.from_bytes(record[2][:8]) < since_us:
                    continue
                known[record[2]] = None
                if len(known) > SEEN_MAX:
                    del known[next(iter(known))]
            self.read += 1
            columns = self._columns(record, time_us, publisher)
            if columns is not None:
                self.matched += 1
                yield time_us, columns

    def _columns(self, record: tuple[Any, ...], time_us: int, publisher: Publisher) -> dict[str, Any] | None:
        """Returns the columns; None for what FROM does not match."""
        if record[1] == Kind.EVENT:
            if record[2].decode() not in self._events:
                return None
            columns = columns_of_event(record, "")
        else:
            topic = record[3].decode(errors="replace")
            if not self._rule.takes(topic):
                return None
            columns = columns_of(record, time_us // 1000, publisher, "")
        del columns["node"]  # journals have its number only
        columns["metadata"] = METADATA
        return columns

    def _evaluated(self, time_us: int, columns: dict[str, Any]) -> Seen | None:
        try:
            result = self._rule.evaluate(columns, Payload(columns["payload"]) if "payload" in columns else None)
        except EvaluationError as error:
            self.failed += 1
            return Seen(time_us, columns, None, str(error))
        return None if not result and result != {} else Seen(time_us, columns, result)


def _records(directory: Path, place: Place | None, since_us: float = 0, until_us: float = float("inf")) -> Iterator[_Record]:
    follower = Follower(directory, place, kinds=KINDS)
    publishers: dict[bytes, Publisher] = {}
    if place is not None and place.offset > SEGMENT_HEADER_BYTES:
        start = Place(place.segment, SEGMENT_HEADER_BYTES, place.segment)
        read_publishers(directory, start, publishers, place.position)
    try:
        while True:
            for part in follower.read():
                if not isinstance(part, Batch):
                    continue
                if part.time_us >= until_us:
                    return
                for record in part.records:
                    if record[1] == Kind.PUBLISHER:
                        publishers[record[2]] = publisher_of(record[3])
                    elif part.time_us >= since_us:
                        publisher = publishers.get(record[8], ANONYMOUS) if record[1] == Kind.MESSAGE else ANONYMOUS
                        yield part.time_us, record, publisher
            if follower.at_end:
                return
    finally:
        follower.close()


def _preferred(records: Iterable[_Record]) -> Iterator[_Record]:
    """Puts the record of a message that was made for rules in place of one of a session, which may be a little earlier.

    Only the journal of the publisher's worker tells who it is.
    """
    waiting: deque[list[Any]] = deque()
    of_sessions: dict[bytes, list[Any]] = {}
    for one in records:
        while waiting and (waiting[0][0] < one[0] - APART_US or len(waiting) >= WAITING_MAX):
            first = waiting.popleft()
            of_sessions.pop(first[1][2], None)
            yield tuple(first)
        entry, record = list(one), one[1]
        if record[1] == Kind.MESSAGE:
            if not record[5] & FOR_READERS:
                of_sessions.setdefault(record[2], entry)
            elif (earlier := of_sessions.pop(record[2], None)) is not None:
                earlier[1:] = entry[1:]
                continue
        waiting.append(entry)
    for entry in waiting:
        yield tuple(entry)  # type: ignore[misc]


def _near_end(directory: Path, tail_bytes: int) -> Place | None:
    """Returns the begin of a block so many bytes before the end of a journal; None: the oldest one."""
    for path in reversed(all_segment_paths(directory)):
        size = path.stat().st_size
        if size < tail_bytes:
            tail_bytes -= size
            continue
        start, offset = segment_start(path), size - tail_bytes
        with path.open("rb") as file:
            incarnation = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES)).incarnation
            before = damage_at(path, file, incarnation, max(offset, SEGMENT_HEADER_BYTES), start)
        if before is None or before.lost_to is None:  # by chance a block begins there, or none follows
            return Place(start, SEGMENT_HEADER_BYTES, start)
        return Place(start, before.end, before.lost_to)
    return None


def place_since(directory: Path, since_us: float) -> Place | None:
    """Returns the begin of the last segment that was begun before a time; None: the oldest one."""
    found = None
    for path in all_segment_paths(directory):
        with path.open("rb") as file:
            header = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))
        if header.created_us > since_us:
            break
        start = segment_start(path)
        found = Place(start, SEGMENT_HEADER_BYTES, start)
    return found
