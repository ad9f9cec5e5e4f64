"""The core of an action: buffer, lanes, batches, positions, state and counts, without I/O, threads and clocks of its own.

Two sides call it, one at a time (the callers hold `lock`): the reader of journals admits rows, the runner takes batches and reports
their outcome. Both pass the time.
"""

import random
from math import isfinite
from threading import Lock

from shardbroker.flows.sinks.buffer cimport Buffer
from shardbroker.flows.sinks.figures cimport Figures
from shardbroker.flows.sinks.lane cimport Lane, lane_of
from shardbroker.flows.sinks.positions cimport Positions
from shardbroker.flows.sinks.row cimport Row

from shardbroker.connectors.connector import State
from shardbroker.flows.sinks.backoff import Backoff
from shardbroker.flows.sinks.batch import Batch
from shardbroker.flows.sinks.limits import Limits

__all__ = ["Limits", "SinkAction"]


cdef class _Stream:
    """The rows of one journal."""

    def __init__(self, cursor, bint behind):
        self.positions = Positions(cursor)
        self.behind, self.last = behind, -1


cdef class SinkAction:
    """id: `type:name`. limits: of its definition. uniform: draws the delay of an attempt, as random.uniform() does."""

    def __init__(self, str id not None, limits, uniform=random.uniform):
        self.id, self.limits = id, limits
        self.lock = Lock()
        self.figures = Figures()
        self.buffer = Buffer(limits.buffer_records, limits.buffer_bytes)
        self.state = State.CONNECTING
        self.last_error = ""
        self.retry_at_s = float("-inf")
        self.keeps_failed = False
        self.finished = []
        self._backoff = Backoff(uniform, limits.retry_min_s, limits.retry_max_s)
        self._lanes, self._streams, self._written = {}, {}, {}
        self._lane_count, self._by_journal = limits.lanes, limits.by_journal

    # --- the side of the reader -----------------------------------------------------------------------------------------------

    def open_journal(self, str journal not None, cursor, bint behind) -> None:
        """Begins a journal. behind: the live stream is further than the cursor."""
        self._streams[journal] = _Stream(cursor, behind)

    cpdef bint admit_live(self, Row row, double now_s) except -1:
        """Admits a row of the live stream; without room, leaves the live stream of the journal. Returns whether it is admitted."""
        cdef _Stream stream = <_Stream>self._streams[row.journal]
        if stream.behind or row.position < stream.positions.seen_position:
            return False
        if self.buffer.full() and row.position != stream.last:
            stream.positions.passed_to(row.position)
            self._complete(row.journal, stream)
            stream.behind = True
            return False
        self._admit(stream, row, now_s)
        return True

    def admit_late(self, Row row not None, double now_s) -> bool:
        """Admits a row of the action's own reader. Returns False without room: the reader stops before this record."""
        cdef _Stream stream = <_Stream>self._streams[row.journal]
        if row.position < stream.positions.seen_position:
            return True
        if self.buffer.full() and row.position != stream.last:
            stream.positions.passed_to(row.position)
            self._complete(row.journal, stream)
            return False
        self._admit(stream, row, now_s)
        return True

    def admit_loose(self, Row row not None, double now_s) -> None:
        """Admits a row that is of no journal here, such as one that failed elsewhere; its `done` is called once it is done."""
        assert row.done is not None and not self._by_journal
        self._queue(self._lane(lane_of(row.client, self._lane_count)), row, now_s)

    cdef int _admit(self, _Stream stream, Row row, double now_s) except -1:
        cdef Lane lane
        stream.last = row.position
        stream.positions.admit(row.position, row.at_ms)
        if self._by_journal:
            lane = self._lane(int(row.journal))
            lane.ready_below = row.position
        else:
            lane = self._lane(lane_of(row.client, self._lane_count))
        self._queue(lane, row, now_s)
        return 0

    cdef int _queue(self, Lane lane, Row row, double now_s) except -1:
        self.buffer.add(row.size)
        self.figures.matched += 1
        self.figures.queuing += 1
        row.admitted_s = now_s
        lane.queue.append(row)
        lane.size += row.size
        return 0

    cdef Lane _lane(self, long number):
        found = self._lanes.get(number)
        if found is None:
            found = self._lanes[number] = Lane(number, 1 if self._by_journal else self.limits.inflight_window)
        return <Lane>found

    def passed_live(self, str journal not None, place) -> None:
        """Notes that the live stream was evaluated up to a place."""
        cdef _Stream stream = <_Stream>self._streams[journal]
        if not stream.behind:
            stream.positions.passed(place)
            self._complete(journal, stream)

    def passed_late(self, str journal not None, place, long long live_position) -> bool:
        """Notes the same of the own reader. Returns whether it has joined the live stream, which is at `live_position`."""
        cdef _Stream stream = <_Stream>self._streams[journal]
        stream.positions.passed(place)
        self._complete(journal, stream)
        stream.behind = stream.behind and place.position < live_position
        return not stream.behind

    cdef int _complete(self, str journal, _Stream stream) except -1:
        """Lets the rows below `seen` be taken, as no other row of their records can follow."""
        if self._by_journal and (lane := self._lanes.get(int(journal))) is not None:
            (<Lane>lane).ready_below = stream.positions.seen_position
        return 0

    def lost(self, long long records) -> None:
        """Counts records that were removed before they were read."""
        self.figures.matched += records
        self.figures.lost += records

    def is_behind(self, str journal not None) -> bool:
        return (<_Stream>self._streams[journal]).behind

    cpdef bint wants(self, str journal, long long position) except -1:
        """Returns whether a row of the live stream is of use."""
        cdef _Stream stream = <_Stream>self._streams[journal]
        return not stream.behind and position >= stream.positions.seen_position

    @property
    def has_late(self) -> bool:
        """Whether a reader of its own has to go on."""
        return any([(<_Stream>stream).behind for stream in self._streams.values()])

    @property
    def journals(self):
        return self._streams.keys()

    def resumes_at(self, str journal not None):
        """Returns the place of the first record that is not admitted."""
        return (<_Stream>self._streams[journal]).positions.seen

    def cursor(self, str journal not None):
        """Returns the place below which everything is done."""
        return (<_Stream>self._streams[journal]).positions.cursor

    def oldest_ms(self):
        """Returns the time of the oldest row that is not done, Unix ms; None: all are done."""
        found = [at_ms for one in self._streams.values() if (at_ms := (<_Stream>one).positions.oldest_ms) is not None]
        return min(found, default=None)

    def loose_rows(self) -> list:
        """Returns the waiting rows of admit_loose()."""
        rows = [row for lane in self._lanes.values() for batch in lane.again for row in batch.rows]
        rows += [row for lane in self._lanes.values() for row in lane.queue]
        return [row for row in rows if row.done is not None]

    # --- the side of the runner -----------------------------------------------------------------------------------------------

    def connected(self, written=None) -> None:
        """Notes that the server can be used. written: the positions that the sink stores."""
        self.state = State.CONNECTED
        self._written = {**self._written, **(written or {})}

    def answered(self) -> None:
        """Notes that a probe has succeeded. What is written again shows by itself whether the server can be used."""
        if not self.is_proving:
            self._backoff.reset()

    @property
    def is_proving(self) -> bool:
        """Whether batches are under way, or are to be written again."""
        return any([lane.again or lane.under_way for lane in self._lanes.values()])

    def lost_server(self, str reason, double now_s) -> None:
        """Notes that the server cannot be used; the next attempt is due at `retry_at_s`."""
        self.last_error = reason
        if self.state is not State.STOPPED:
            self.state = State.DISCONNECTED
        self.retry_at_s = now_s + self._backoff.next_s()

    def stopped(self) -> None:
        """Stops the action: no batch is taken."""
        self.state = State.STOPPED

    def restarted(self) -> None:
        """Notes that the server is to be reached, at once."""
        self.state, self.retry_at_s = State.CONNECTING, float("-inf")
        self._backoff.reset()

    def due_s(self):
        """Returns when the next batch can be taken; None: not before something else happens."""
        if self.state is not State.CONNECTED:
            return None
        found = [due_s for lane in self._lanes.values() if (due_s := self._due_s(lane)) is not None]
        return min(found, default=None)

    cdef object _due_s(self, Lane lane):
        limits = self.limits
        wait_s = 0.0 if limits.batch_time_s and self._is_emptied_first(lane) else limits.batch_time_s
        return lane.due_s(limits.batch_size, limits.batch_bytes, wait_s)

    cdef bint _is_emptied_first(self, Lane lane) except -1:
        """Returns whether rows of a lane do not wait for others: the buffer is full, no batch under way makes room, it has most."""
        lanes = self._lanes.values()
        if not self.buffer.full() or any([one.under_way for one in lanes]):
            return False
        return lane.size == max([one.size for one in lanes])

    def take(self, double now_s, long long now_ms):
        """Takes a batch that is due, if there is one. The caller reports its outcome."""
        if self.state is not State.CONNECTED:
            return None
        limits = self.limits
        since_ms = self._since_ms(now_ms)
        for lane in self._lanes.values():
            due_s = self._due_s(lane)
            if due_s is None or due_s > now_s:
                continue
            drop = (lambda row: self._leave_out(row, since_ms)) if self._written or isfinite(since_ms) else None
            batch = lane.take(limits.batch_size, limits.batch_bytes, drop, limits.by_journal)
            if batch is not None:
                lane.under_way += 1
                self.figures.queuing -= len(batch.rows)
                self.figures.inflight += len(batch.rows)
                return batch
        return None

    cdef double _since_ms(self, long long now_ms) except? -1:
        """Returns the time of records that are too old by now: those before it."""
        return now_ms - self.limits.request_ttl_s * 1000

    cdef bint _leave_out(self, Row row, double since_ms) except -1:
        """Finishes a waiting row that the sink has already, or that is too old."""
        cdef Figures figures = self.figures
        if row.done is None and row.position < self._written.get(row.journal, 0):
            figures.success += 1
        elif row.at_ms < since_ms:
            figures.expired += 1
        else:
            return False
        figures.queuing -= 1
        self._forget([row])
        return True

    def written(self, batch, failures, double now_s, long long now_ms) -> list:
        """Notes an answer of the server; returns the rows that have failed for good, each with the reason."""
        self._returned(batch)
        since_ms = self._since_ms(now_ms)
        reasons = {failure.at: failure for failure in failures}
        done = [row for index, row in enumerate(batch.rows) if index not in reasons] if reasons else batch.rows
        self._succeeded(done, since_ms)
        cdef list failed = []
        cdef list again = []
        for index, row in enumerate(batch.rows) if reasons else ():
            if (failure := reasons.get(index)) is None:
                continue
            if failure.again:
                again.append(row)
            else:
                failed.append((row, failure.reason))
                self._fail(row)
        if again:
            self._put_back(Batch(batch.lane, again, batch.attempts + 1))
            if self.state is State.CONNECTED:
                self.lost_server(next(one.reason for one in failures if one.again), now_s)
        elif self.state is State.CONNECTED:
            self._backoff.reset()
        return failed

    def refused(self, batch, str reason) -> list:
        """Notes that the server rejects a batch: it is halved. Returns a row that is alone, with the reason."""
        self._returned(batch)
        if len(batch.rows) > 1:
            first, second = batch.halves()
            self._put_back(second)
            self._put_back(first)
            return []
        self._fail(batch.rows[0])
        return [(batch.rows[0], reason)]

    cdef int _fail(self, Row row) except -1:
        self.figures.failed += 1
        if not self.keeps_failed:
            self._forget([row])

    def settle(self, Row row) -> None:
        """Notes that other actions are done with a row that has failed here."""
        self._forget([row])

    def unreachable(self, batch, str reason, double now_s) -> None:
        """Notes that the outcome of a batch is not known: it is written again."""
        self._returned(batch)
        batch.attempts += 1
        self._put_back(batch)
        if self.state is State.CONNECTED:  # batches that fail together are one failure of the server
            self.lost_server(reason, now_s)

    cdef int _succeeded(self, list rows, double since_ms) except -1:
        cdef Row row
        cdef long long late = 0
        for row in rows:
            late += row.at_ms < since_ms
        self.figures.late_reply += late
        self.figures.success += len(rows) - late
        self._forget(rows)

    cdef int _returned(self, batch) except -1:
        (<Lane>self._lanes[batch.lane]).under_way -= 1
        self.figures.inflight -= len(batch.rows)

    cdef int _put_back(self, batch) except -1:
        (<Lane>self._lanes[batch.lane]).again.appendleft(batch)
        self.figures.queuing += len(batch.rows)
        self.figures.retried += len(batch.rows)

    cdef int _forget(self, list rows) except -1:
        cdef Row row
        self.buffer.remove(rows)
        for row in rows:
            if row.done is not None:
                self.finished.append(row.done)
            else:
                (<_Stream>self._streams[row.journal]).positions.done(row.position)
