"""The core of an action: buffer, lanes, batches, positions, state and counts, without I/O, threads and clocks of its own.

Two sides call it, one at a time (the callers hold `lock`): the reader of journals admits rows, the runner takes batches and reports
their outcome. Both pass the time.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock

from shardbroker.connectors.connector import State
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.sinks.backoff import Backoff
from shardbroker.flows.sinks.batch import Batch
from shardbroker.flows.sinks.buffer import Buffer
from shardbroker.flows.sinks.driver import Failure
from shardbroker.flows.sinks.figures import Figures
from shardbroker.flows.sinks.lane import Lane, lane_of
from shardbroker.flows.sinks.limits import Limits
from shardbroker.flows.sinks.positions import Positions
from shardbroker.flows.sinks.row import Row

__all__ = ["Limits", "SinkAction"]


class _Stream:
    """The rows of one journal."""

    __slots__ = ("behind", "last", "positions")

    def __init__(self, cursor: Cursor, behind: bool) -> None:
        self.positions = Positions(cursor)
        self.behind = behind
        self.last = -1
        """Position of the last row that was admitted."""


class SinkAction:
    """id: `type:name`."""

    def __init__(self, id: str, limits: Limits, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self.id, self.limits = id, limits
        self.lock = Lock()
        self.figures = Figures()
        self.buffer = Buffer(limits.buffer_records, limits.buffer_bytes)
        self.state = State.CONNECTING
        self.last_error = ""
        self.retry_at_s = float("-inf")
        """When the next attempt to reach the server is due."""
        self._backoff = Backoff(uniform, limits.retry_min_s, limits.retry_max_s)
        self._lanes: dict[int, Lane] = {}
        self._streams: dict[str, _Stream] = {}
        self._written: dict[str, int] = {}
        """Journal -> the position below which the sink has everything, if the sink stores it."""
        self.keeps_failed = False
        """Whether rows that have failed for good are not done before settle()."""
        self.finished: list[Callable[[], None]] = []
        """`done` of loose rows, to be called without the lock."""

    # --- the side of the reader -----------------------------------------------------------------------------------------------

    def open_journal(self, journal: str, cursor: Cursor, behind: bool) -> None:
        """Begins a journal. behind: the live stream is further than the cursor."""
        self._streams[journal] = _Stream(cursor, behind)

    def admit_live(self, row: Row, now_s: float) -> bool:
        """Admits a row of the live stream; without room, leaves the live stream of the journal. Returns whether it is admitted."""
        stream = self._streams[row.journal]
        if stream.behind or row.position < stream.positions.seen.position:
            return False
        if self.buffer.is_full and row.position != stream.last:
            stream.positions.passed_to(row.position)
            self._complete(row.journal, stream)
            stream.behind = True
            return False
        self._admit(stream, row, now_s)
        return True

    def admit_late(self, row: Row, now_s: float) -> bool:
        """Admits a row of the action's own reader. Returns False without room: the reader stops before this record."""
        stream = self._streams[row.journal]
        if row.position < stream.positions.seen.position:
            return True
        if self.buffer.is_full and row.position != stream.last:
            stream.positions.passed_to(row.position)
            self._complete(row.journal, stream)
            return False
        self._admit(stream, row, now_s)
        return True

    def admit_loose(self, row: Row, now_s: float) -> None:
        """Admits a row that is of no journal here, such as one that failed elsewhere; its `done` is called once it is done."""
        assert row.done is not None and not self.limits.by_journal
        self._queue(row, now_s)

    def _admit(self, stream: _Stream, row: Row, now_s: float) -> None:
        stream.last = row.position
        stream.positions.admit(row.position, row.at_ms)
        lane = self._queue(row, now_s)
        if self.limits.by_journal:
            lane.ready_below = row.position

    def _queue(self, row: Row, now_s: float) -> Lane:
        self.buffer.add(row.size)
        self.figures.matched += 1
        self.figures.queuing += 1
        lane = self._lane_of(row)
        lane.queue.append((row, now_s))
        lane.size += row.size
        return lane

    def _lane_of(self, row: Row) -> Lane:
        limits = self.limits
        number = int(row.journal) if limits.by_journal else lane_of(row.client, limits.lanes)
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane(number, 1 if limits.by_journal else limits.inflight_window)
        return lane

    def passed_live(self, journal: str, place: Cursor) -> None:
        """Notes that the live stream was evaluated up to a place."""
        stream = self._streams[journal]
        if not stream.behind:
            stream.positions.passed(place)
            self._complete(journal, stream)

    def passed_late(self, journal: str, place: Cursor, live_position: int) -> bool:
        """Notes the same of the own reader. Returns whether it has joined the live stream, which is at `live_position`."""
        stream = self._streams[journal]
        stream.positions.passed(place)
        self._complete(journal, stream)
        stream.behind = stream.behind and place.position < live_position
        return not stream.behind

    def _complete(self, journal: str, stream: _Stream) -> None:
        """Lets the rows below `seen` be taken, as no other row of their records can follow."""
        if self.limits.by_journal and (lane := self._lanes.get(int(journal))) is not None:
            lane.ready_below = stream.positions.seen.position

    def lost(self, records: int) -> None:
        """Counts records that were removed before they were read."""
        self.figures.matched += records
        self.figures.lost += records

    def is_behind(self, journal: str) -> bool:
        return self._streams[journal].behind

    def wants(self, journal: str, position: int) -> bool:
        """Returns whether a row of the live stream is of use."""
        stream = self._streams[journal]
        return not stream.behind and position >= stream.positions.seen.position

    @property
    def has_late(self) -> bool:
        """Whether a reader of its own has to go on."""
        return any(stream.behind for stream in self._streams.values())

    @property
    def journals(self) -> Iterable[str]:
        return self._streams.keys()

    def resumes_at(self, journal: str) -> Cursor:
        """Returns the place of the first record that is not admitted."""
        return self._streams[journal].positions.seen

    def cursor(self, journal: str) -> Cursor:
        """Returns the place below which everything is done."""
        return self._streams[journal].positions.cursor

    def oldest_ms(self) -> int | None:
        """Returns the time of the oldest row that is not done, Unix ms."""
        found = [at_ms for one in self._streams.values() if (at_ms := one.positions.oldest_ms) is not None]
        return min(found, default=None)

    def loose_rows(self) -> list[Row]:
        """Returns the waiting rows of admit_loose()."""
        rows = [row for lane in self._lanes.values() for batch in lane.again for row in batch.rows]
        rows += [row for lane in self._lanes.values() for row, _ in lane.queue]
        return [row for row in rows if row.done is not None]

    # --- the side of the runner -----------------------------------------------------------------------------------------------

    def connected(self, written: Mapping[str, int] | None = None) -> None:
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
        return any(lane.again or lane.under_way for lane in self._lanes.values())

    def lost_server(self, reason: str, now_s: float) -> None:
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

    def due_s(self) -> float | None:
        """Returns when the next batch can be taken; None: not before something else happens."""
        if self.state is not State.CONNECTED:
            return None
        found = [self._due_s(lane) for lane in self._lanes.values()]
        return min((one for one in found if one is not None), default=None)

    def _due_s(self, lane: Lane) -> float | None:
        limits = self.limits
        wait_s = 0.0 if limits.batch_time_s and self._is_emptied_first(lane) else limits.batch_time_s
        return lane.due_s(limits.batch_size, limits.batch_bytes, wait_s)

    def _is_emptied_first(self, lane: Lane) -> bool:
        """Returns whether rows of a lane do not wait for others: the buffer is full, no batch under way makes room, it has most."""
        lanes = self._lanes.values()
        return self.buffer.is_full and not any(one.under_way for one in lanes) and lane.size == max(one.size for one in lanes)

    def take(self, now_s: float, now_ms: int) -> Batch | None:
        """Takes a batch that is due, if there is one. The caller reports its outcome."""
        if self.state is not State.CONNECTED:
            return None
        limits = self.limits
        for lane in self._lanes.values():
            due_s = self._due_s(lane)
            if due_s is None or due_s > now_s:
                continue
            batch = lane.take(limits.batch_size, limits.batch_bytes, lambda row: self._leave_out(row, now_ms), limits.by_journal)
            if batch is not None:
                lane.under_way += 1
                self.figures.queuing -= len(batch.rows)
                self.figures.inflight += len(batch.rows)
                return batch
        return None

    def _leave_out(self, row: Row, now_ms: int) -> bool:
        """Finishes a waiting row that the sink has already, or that is too old."""
        figures = self.figures
        if row.done is None and row.position < self._written.get(row.journal, 0):
            figures.success += 1
        elif row.at_ms + self.limits.request_ttl_s * 1000 < now_ms:
            figures.expired += 1
        else:
            return False
        figures.queuing -= 1
        self._forget(row)
        return True

    def written(self, batch: Batch, failures: Sequence[Failure], now_s: float, now_ms: int) -> list[tuple[Row, str]]:
        """Notes an answer of the server; returns the rows that have failed for good, each with the reason."""
        self._returned(batch)
        failed: list[tuple[Row, str]] = []
        again: list[Row] = []
        reasons = {failure.at: failure for failure in failures}
        for index, row in enumerate(batch.rows):
            failure = reasons.get(index)
            if failure is None:
                self._succeeded(row, now_ms)
            elif failure.again:
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

    def refused(self, batch: Batch, reason: str) -> list[tuple[Row, str]]:
        """Notes that the server rejects a batch: it is halved. Returns a row that is alone, with the reason."""
        self._returned(batch)
        if len(batch.rows) > 1:
            first, second = batch.halves()
            self._put_back(second)
            self._put_back(first)
            return []
        self._fail(batch.rows[0])
        return [(batch.rows[0], reason)]

    def _fail(self, row: Row) -> None:
        self.figures.failed += 1
        if not self.keeps_failed:
            self._forget(row)

    def settle(self, row: Row) -> None:
        """Notes that other actions are done with a row that has failed here."""
        self._forget(row)

    def unreachable(self, batch: Batch, reason: str, now_s: float) -> None:
        """Notes that the outcome of a batch is not known: it is written again."""
        self._returned(batch)
        batch.attempts += 1
        self._put_back(batch)
        if self.state is State.CONNECTED:  # batches that fail together are one failure of the server
            self.lost_server(reason, now_s)

    def _succeeded(self, row: Row, now_ms: int) -> None:
        if row.at_ms + self.limits.request_ttl_s * 1000 < now_ms:
            self.figures.late_reply += 1
        else:
            self.figures.success += 1
        self._forget(row)

    def _returned(self, batch: Batch) -> None:
        self._lanes[batch.lane].under_way -= 1
        self.figures.inflight -= len(batch.rows)

    def _put_back(self, batch: Batch) -> None:
        self._lanes[batch.lane].again.appendleft(batch)
        self.figures.queuing += len(batch.rows)
        self.figures.retried += len(batch.rows)

    def _forget(self, row: Row) -> None:
        self.buffer.remove(row.size)
        if row.done is not None:
            self.finished.append(row.done)
        else:
            self._streams[row.journal].positions.done(row.position)
