"""The reader of an action that has left the live stream: it continues in the journal, and evaluates the rules of the action alone.

The live stream has counted these records for their rules, but for those that it has left to this reader (flows/deferral.py).
"""

import time

from shardbroker.flows.columns cimport columns_of
from shardbroker.flows.sinks.action cimport SinkAction
from shardbroker.flows.sinks.intake cimport BYTES_TOGETHER, ROWS_TOGETHER
from shardbroker.flows.sinks.row cimport Row, row_of

from shardbroker.flows.feed import JournalFeed
from shardbroker.flows.messages import ANONYMOUS, columns_of_event
from shardbroker.flows.rule_traces import untraced
from shardbroker.flows.runner import rows_of
from shardbroker.journal.schema import Kind
from shardbroker.rules.payload import Payload
from shardbroker.rules.values import EvaluationError

__all__ = ["LateReader"]

cdef int _message = Kind.MESSAGE, _publisher = Kind.PUBLISHER


cdef class LateReader:
    """One journal of an action.

    runner: counts for rules. deferred: the records for which it does, by journal. publishers: of the segment where the action goes on,
    if known. since_us: records of earlier blocks are left out.
    """

    cdef readonly str journal
    cdef readonly object feed
    cdef SinkAction _action
    cdef object _table, _runner
    cdef dict _deferred
    cdef str _node
    cdef long long _since_us, _lost
    cdef list _batches                     # that follow, the next one at the end
    cdef object _batch                     # that is evaluated; or None
    cdef Py_ssize_t _at                    # index of its next record

    def __init__(
        self, SinkAction action not None, table, runner, dict deferred not None, directory, str node not None, publishers=None,
        long long since_us=0,
    ):  # fmt: skip
        self._action, self._table, self._runner, self._deferred = action, table, runner, deferred
        self._node, self._since_us, self._batches = node, since_us, []
        self.journal = directory.name
        self.feed = JournalFeed(directory, action.resumes_at(self.journal), publishers)

    def close(self) -> None:
        self.feed.follower.close()

    def turn(self, long long records, long long live_position) -> tuple:
        """Evaluates up to so many records; returns how many, and whether the live stream is reached. Raises OSError, JournalError.

        live_position: behind what the live stream has evaluated. No record is evaluated while the buffer has no room.
        """
        cdef long long done = 0
        cdef Py_ssize_t begin, end
        cdef bint has_room
        while done < records:
            if self._batch is None and not self._next_batch():
                return done + (not self.feed.follower.at_end), self._pass(self.feed.cursor, live_position)
            batch = self._batch
            end = min(<Py_ssize_t>len(batch.records), self._at + records - done)
            while self._at < end:
                begin = self._at
                has_room = self._admit(batch, end)
                done += self._at - begin
                if not has_room:
                    return done, False
            if self._at == <Py_ssize_t>len(batch.records):
                self._batch = None
                if self._pass(self.feed.cursor_behind(batch), live_position):
                    return done, True
        return done, False

    cdef bint _next_batch(self) except -1:
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

    cdef bint _pass(self, place, long long live_position) except -1:
        if place is None:
            return live_position == 0
        with self._action.lock:
            return self._action.passed_late(self.journal, place, live_position)

    cdef bint _admit(self, batch, Py_ssize_t end) except -1:
        """Admits the rows of some of the records before `end` together; returns False if there is no room for those of a record."""
        cdef SinkAction action = self._action
        cdef Py_ssize_t at = self._at, place
        cdef long long most = min(max(<long long>action.buffer.room, 1), <long long>ROWS_TOGETHER), size = 0, time_us = batch.time_us
        cdef list rows = [], places = [], records = batch.records
        cdef tuple record
        cdef Row row
        cdef double now_s
        while at < end and <long long>len(rows) < most and size < BYTES_TOGETHER:
            record = <tuple>records[at]
            if <int>record[1] == _publisher:
                if rows:
                    break  # they may be evaluated again
                self.feed.note_publisher(batch.segment, record[2], record[3])
            elif time_us >= self._since_us:
                size += self._evaluate(record, time_us, rows)
                while len(places) < len(rows):
                    places.append(at)
            at += 1
        now_s = time.monotonic()
        with action.lock:
            for place, row in zip(places, rows, strict=True):
                if not action.admit_late(row, now_s):
                    self._at = place
                    return False
        self._at = at
        return True

    cdef long long _evaluate(self, tuple record, long long time_us, list rows) except -1:
        """Adds the rows of a record; returns their memory."""
        cdef bint is_message = <int>record[1] == _message
        cdef long long position = record[0], number = 0, size = 0
        cdef tuple rules = self._table.rules_of(record[3]) if is_message else self._table.rules_of_event(record[2])
        cdef dict columns = None
        cdef bint is_counted
        cdef Row row
        payload, deferral = None, self._deferred.get(self.journal)
        is_counted = deferral is not None and deferral.next <= position < deferral.end
        for rule in rules:
            count = rule.sinks.count(self._action.id)
            if not count or rule.disabled is not None or position < rule.starts.get(self.journal, 0):
                continue
            if columns is None:
                if is_message:
                    columns = columns_of(record, time_us // 1000, self.feed.publishers.get(record[8], ANONYMOUS), self._node)
                else:
                    columns = columns_of_event(record, self._node)
                payload = Payload(columns["payload"]) if "payload" in columns else None
                if not is_message and self._table.hides(columns):
                    return size
            if record[8] == rule.publisher if is_message else rule.has_caused(columns):
                continue
            if is_counted and rule.deferred is self._deferred:
                found = self._runner.evaluated_late(rule, untraced(rule.compiled), columns, payload)
            else:
                found = _results(rule, columns, payload)
            for values in found:
                for _ in range(count):
                    row = row_of(values, columns, self.journal, position, number, self._node)
                    rows.append(row)
                    size += row.size
                    number += 1
        if is_counted:
            deferral.next = position + 1
        return size


cdef list _results(rule, dict columns, payload):
    columns["metadata"] = rule.metadata
    try:
        return rows_of(untraced(rule.compiled).evaluate(columns, payload))
    except EvaluationError:
        return []
