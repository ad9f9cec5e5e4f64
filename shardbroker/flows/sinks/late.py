"""The reader of an action that has left the live stream: it continues in the journal, and evaluates the rules of the action alone.

Figures of rules do not change: the live stream has counted these messages.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardbroker.flows.cursors import Cursor
from shardbroker.flows.feed import JournalFeed
from shardbroker.flows.messages import ANONYMOUS, Publisher, columns_of, columns_of_event
from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.rule_table import RuleTable
from shardbroker.flows.rule_traces import untraced
from shardbroker.flows.sinks.action import SinkAction
from shardbroker.flows.sinks.row import Row
from shardbroker.journal.follow import Batch
from shardbroker.journal.schema import Kind
from shardbroker.rules.payload import Payload
from shardbroker.rules.values import EvaluationError

__all__ = ["BYTES_TOGETHER", "ROWS_TOGETHER", "LateReader", "row_of"]

ROWS_TOGETHER = 256
"""Rows of an action that are admitted together: its lock is also that of the thread that writes batches."""
BYTES_TOGETHER = 1 << 20
"""Memory of these rows, about: it is none of the buffer's until then."""


def row_of(values: Any, columns: dict[str, Any], journal: str, position: int, number: int, node: str) -> Row:
    """Returns the row of a result of a rule."""
    client = columns.get("clientid")
    message = columns["id"] if columns["event"] == "message.publish" else ""
    client = client if type(client) is str else str(client)
    return Row(journal, position, client, values, message, node, columns["timestamp"], 0, number, columns.get("pub_props"))


class LateReader:
    """One journal of an action. since_us: records of earlier blocks are left out. Cursor: of the action."""

    def __init__(
        self,
        action: SinkAction,
        table: RuleTable,
        directory: Path,
        node: str,
        publishers: dict[bytes, Publisher] | None = None,
        since_us: int = 0,
    ) -> None:
        self._action, self._table, self._node, self._since_us = action, table, node, since_us
        self.journal = directory.name
        self.feed = JournalFeed(directory, action.resumes_at(self.journal), publishers)
        self._lost = 0
        self._batches: list[Batch] = []
        self._batch: Batch | None = None
        self._at = 0
        """Index of the next record of the batch."""

    def close(self) -> None:
        self.feed.follower.close()

    def turn(self, records: int, live_position: int) -> tuple[int, bool]:
        """Evaluates up to so many records; returns how many, and whether the live stream is reached. Raises OSError, JournalError.

        live_position: behind what the live stream has evaluated. No record is evaluated while the buffer has no room.
        """
        done = 0
        while done < records:
            if self._batch is None and not self._next_batch():
                return done + (not self.feed.follower.at_end), self._pass(self.feed.cursor, live_position)
            assert self._batch is not None
            batch = self._batch
            end = min(len(batch.records), self._at + records - done)
            while self._at < end:
                begin = self._at
                has_room = self._admit(batch, end)
                done += self._at - begin
                if not has_room:
                    return done, False
            if self._at == len(batch.records):
                self._batch = None
                if self._pass(self.feed.cursor_behind(batch), live_position):
                    return done, True
        return done, False

    def _next_batch(self) -> bool:
        if not self._batches:
            self._batches = self.feed.read()
            self._batches.reverse()
            if self.feed.lost > self._lost:
                with self._action.lock:
                    self._action.lost(self.feed.lost - self._lost)
                self._lost = self.feed.lost
        if not self._batches:
            return False
        self._batch, self._at = self._batches.pop(), 0
        return True

    def _pass(self, place: Cursor | None, live_position: int) -> bool:
        if place is None:
            return live_position == 0
        with self._action.lock:
            return self._action.passed_late(self.journal, place, live_position)

    def _admit(self, batch: Batch, end: int) -> bool:
        """Admits the rows of some of the records before `end` together; returns False if there is no room for those of a record."""
        action, at = self._action, self._at
        most = min(max(action.buffer.room, 1), ROWS_TOGETHER)
        rows: list[tuple[int, Row]] = []
        size = 0
        while at < end and len(rows) < most and size < BYTES_TOGETHER:
            record = batch.records[at]
            if record[1] == Kind.PUBLISHER:
                if rows:
                    break  # they may be evaluated again
                self.feed.note_publisher(batch.segment, record[2], record[3])
            elif batch.time_us >= self._since_us:
                for number, (values, columns) in enumerate(self._rows(record, batch.time_us)):
                    row = row_of(values, columns, self.journal, record[0], number, self._node)
                    rows.append((at, row))
                    size += row.size
            at += 1
        now_s = time.monotonic()
        with action.lock:
            for place, row in rows:
                if not action.admit_late(row, now_s):
                    self._at = place
                    return False
        self._at = at
        return True

    def _rows(self, record: tuple[Any, ...], time_us: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        is_message = record[1] == Kind.MESSAGE
        rules = self._table.rules_of(record[3]) if is_message else self._table.rules_of_event(record[2])
        columns: dict[str, Any] | None = None
        payload = None
        for rule in rules:
            count = rule.sinks.count(self._action.id)
            if not count or rule.disabled is not None or record[0] < rule.starts.get(self.journal, 0):
                continue
            if columns is None:
                if is_message:
                    publisher = self.feed.publishers.get(record[8], ANONYMOUS)
                    columns = columns_of(record, time_us // 1000, publisher, self._node)
                else:
                    columns = columns_of_event(record, self._node)
                payload = Payload(columns["payload"]) if "payload" in columns else None
                if not is_message and self._table.hides(columns):
                    return
            if record[8] == rule.publisher if is_message else rule.has_caused(columns):
                continue
            yield from ((row, columns) for row in _results(rule, columns, payload) for _ in range(count))


def _results(rule: LoadedRule, columns: dict[str, Any], payload: Payload | None) -> list[Any]:
    columns["metadata"] = rule.metadata
    try:
        result = untraced(rule.compiled).evaluate(columns, payload)
    except EvaluationError:
        return []
    if not result and result != {}:
        return []
    return result if type(result) is list else [result]
