"""A rule over the messages and events that journals still have, without its actions.

Journals have the messages of `journal.capture` and of rules, those for clients with a session, and the events that rules name.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardbroker.flows.messages import ANONYMOUS, Publisher, columns_of, columns_of_event, publisher_of
from shardbroker.journal.follow import Batch, Follower, Place
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, retired_directories, segment_paths, segment_start
from shardbroker.journal.reader import journal_directories
from shardbroker.journal.schema import Kind
from shardbroker.rules.compiler import compile_rule
from shardbroker.rules.definition import EVENTS
from shardbroker.rules.events import event_of
from shardbroker.rules.payload import Payload
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["Past", "Seen"]

KINDS = (int(Kind.MESSAGE), int(Kind.PUBLISHER), int(Kind.EVENT))
SEEN_MAX = 1_000_000
"""Ids of messages that are remembered, some 100 MB: a message is in the journal of its publisher's worker and in those of its
subscribers', and is written again while it is queued."""
METADATA = {"rule_id": "sql_tester"}


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
        known: dict[bytes, None] = {}
        streams = [_records(directory, since_us, until_us) for directory in journal_directories(journals)]
        for time_us, record, publisher in heapq.merge(*streams, key=lambda one: one[0]):
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
                seen = self._evaluated(time_us, columns)
                if seen is not None:
                    yield seen

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


def _records(directory: Path, since_us: float, until_us: float) -> Iterator[tuple[int, tuple[Any, ...], Publisher]]:
    """Yields (Unix µs, record, publisher) of one journal."""
    follower = Follower(directory, _place(directory, since_us), kinds=KINDS)
    publishers: dict[bytes, Publisher] = {}
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


def _place(directory: Path, since_us: float) -> Place | None:
    """Returns the begin of the last segment that was begun before a time; None: the oldest one."""
    found = None
    paths = [path for one in (*retired_directories(directory), directory) for path in segment_paths(one)]
    for path in sorted(paths, key=segment_start):
        with path.open("rb") as file:
            header = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))
        if header.created_us > since_us:
            break
        start = segment_start(path)
        found = Place(start, SEGMENT_HEADER_BYTES, start)
    return found
