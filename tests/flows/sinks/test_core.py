"""The core of sinks over generated journals and servers, with a clock of the test: nothing is lost, order, bounds, counts."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.connectors.connector import RETRY_MAX_S, RETRY_MIN_S, State
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.sinks.action import Limits, SinkAction
from shardbroker.flows.sinks.backoff import Backoff
from shardbroker.flows.sinks.batch import Batch
from shardbroker.flows.sinks.driver import Failure
from shardbroker.flows.sinks.lane import lane_of
from shardbroker.flows.sinks.positions import PLACES_MAX, Positions
from shardbroker.flows.sinks.row import Row
from shardbroker.flows.sinks.sizes import size_of


def row(position: int, client: str = "c", journal: str = "0", number: int = 0, at_ms: int = 0) -> Row:
    return Row(journal, position, client, {"n": number}, at_ms=at_ms, size=10)


def balanced(action: SinkAction) -> bool:
    one = action.figures
    return (
        one.matched == one.success + one.failed + one.inflight + one.queuing + one.late_reply + one.dropped
        and action.buffer.records == one.inflight + one.queuing
        and action.buffer.bytes == 10 * action.buffer.records
    )


def opened(**limits: Any) -> SinkAction:
    action = SinkAction("pgsql:x", Limits(**limits), uniform=lambda low, high: high)
    action.open_journal("0", Cursor(0), behind=False)
    action.connected()
    return action


def positions(batch: Batch | None) -> list[int]:
    return [] if batch is None else [one.position for one in batch.rows]


# --- a world of journals, a reader, a runner and a server that fails --------------------------------------------------------------


@dataclass
class Server:
    """Keeps what it was given. poison: rows that it refuses."""

    poison: set[tuple[str, int, int]]
    stores_cursor: bool
    rows: list[tuple[str, int, int, str]] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)


@dataclass
class World:
    """Records of journals are lists of rows; `blocks` of them are read at a time."""

    chance: random.Random
    limits: Limits
    records: dict[str, list[list[Row]]]
    server: Server
    stored: dict[str, Cursor] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    under_way: list[Batch] = field(default_factory=list)
    now_s: float = 0.0

    def start(self, live: dict[str, int]) -> None:
        self.action = SinkAction("pgsql:x", self.limits, uniform=lambda low, high: high)
        self.live, self.late, self.under_way = dict(live), {}, []
        for journal in self.records:
            cursor = self.stored.get(journal, Cursor(0))
            self.action.open_journal(journal, cursor, behind=cursor.position < self.live[journal])
        if self.server.stores_cursor:
            self.action.connected(self.server.cursors)
        else:
            self.action.connected()

    def read_live(self, journal: str, count: int) -> None:
        begin = self.live[journal]
        end = min(begin + count, len(self.records[journal]))
        for position in range(begin, end):
            for one in self.records[journal][position]:
                self.action.admit_live(one, self.now_s)
                assert balanced(self.action)
                if self.chance.random() < 0.2:  # the runner is another thread
                    self.take()
        self.live[journal] = end
        self.action.passed_live(journal, Cursor(end, 1, end))

    def read_late(self, journal: str, count: int) -> None:
        if not self.action.is_behind(journal):
            return
        begin = self.late.get(journal)
        if begin is None:
            begin = self.action.resumes_at(journal).position
        position = begin
        while position < min(begin + count, len(self.records[journal])):
            for one in self.records[journal][position]:
                if not self.action.admit_late(one, self.now_s):
                    self.late[journal] = position
                    return
                if self.chance.random() < 0.2:
                    self.take()
            position += 1
        self.late[journal] = position
        if self.action.passed_late(journal, Cursor(position, 1, position), self.live[journal]):
            del self.late[journal]

    def take(self) -> None:
        batch = self.action.take(self.now_s, int(self.now_s * 1000))
        if batch is not None:
            assert len(batch.rows) <= self.limits.batch_size or self.limits.by_journal
            self.under_way.append(batch)

    def answer(self) -> None:
        """The server deals with one batch that is under way."""
        if not self.under_way:
            return
        batch = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        now_ms = int(self.now_s * 1000)
        bad = [index for index, one in enumerate(batch.rows) if (one.journal, one.position, one.values["n"]) in self.server.poison]
        fate = self.chance.random()
        if fate < 0.15:
            self.action.unreachable(batch, "gone", self.now_s)
        elif fate < 0.3 and not (bad and not self.server.stores_cursor):  # written, but the answer was lost
            self.write(batch, bad)
            self.action.unreachable(batch, "no answer", self.now_s)
        elif bad and not self.server.stores_cursor and fate < 0.7:
            self.action.refused(batch, "poison")
        elif fate < 0.8 and not self.server.stores_cursor:
            cut = self.chance.randrange(len(batch.rows))
            self.write(Batch(batch.lane, batch.rows[:cut]), bad)
            again = [Failure(index, "busy", again=True) for index in range(cut, len(batch.rows))]
            self.action.written(batch, [*(Failure(one, "poison") for one in bad if one < cut), *again], self.now_s, now_ms)
        else:
            self.write(batch, bad)
            self.action.written(batch, [Failure(index, "poison") for index in bad], self.now_s, now_ms)

    def write(self, batch: Batch, bad: list[int]) -> None:
        if self.server.stores_cursor and batch.rows:
            journal, behind = batch.rows[0].journal, batch.rows[-1].position + 1
            assert all(one.journal == journal for one in batch.rows)
            if self.server.cursors.get(journal, 0) >= behind:
                return
            self.server.cursors[journal] = behind
        for index, one in enumerate(batch.rows):
            if index not in bad:
                self.server.rows.append((one.journal, one.position, one.values["n"], one.client))

    def reach(self) -> None:
        if self.action.state is State.DISCONNECTED and self.now_s >= self.action.retry_at_s:
            self.action.connected(self.server.cursors if self.server.stores_cursor else None)

    def store(self) -> None:
        for journal in self.records:
            cursor = self.action.cursor(journal)
            assert cursor.position >= self.stored.get(journal, Cursor(0)).position
            assert cursor.offset <= cursor.position
            self.stored[journal] = cursor

    def step(self) -> None:
        journal = self.chance.choice(list(self.records))
        count = self.chance.randrange(1, 6)
        self.chance.choice([
            lambda: self.read_live(journal, count), lambda: self.read_late(journal, count), self.take, self.take, self.answer,
            self.answer, self.reach, self.store,
        ])()  # fmt: skip
        self.now_s += 0.05
        assert balanced(self.action)
        longest = max((len(record) for records in self.records.values() for record in records), default=0)
        assert self.action.buffer.records < self.limits.buffer_records + max(longest, 1)

    def finish(self) -> None:
        """Everything is read and written."""
        for _ in range(5000):
            for journal in self.records:
                self.read_live(journal, 5)
                self.read_late(journal, 5)
            self.take()
            self.answer()
            self.now_s += 1
            self.reach()
            ends = {journal: len(records) for journal, records in self.records.items()}
            if self.live == ends and not self.action.buffer.records and not any(map(self.action.is_behind, ends)):
                self.store()
                assert {journal: cursor.position for journal, cursor in self.stored.items()} == ends
                return
        raise AssertionError("it does not end")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    exactly_once = draw(st.booleans())
    limits = Limits(
        lanes=draw(st.integers(1, 3)), inflight_window=1, batch_size=draw(st.integers(1, 5)),
        batch_time_s=draw(st.sampled_from([0.0, 0.3])), buffer_records=draw(st.integers(1, 8)), by_journal=exactly_once,
    )  # fmt: skip
    records = {
        journal: [
            [row(position, client, journal, number) for number in range(count)]
            for position, (client, count) in enumerate(
                draw(st.lists(st.tuples(st.sampled_from([f"{one}{journal}" for one in "abc"]), st.integers(0, 3)), max_size=30))
            )
        ]
        for journal in "01"
    }
    all_rows = [one for of in records.values() for record in of for one in record]
    poison = {
        (one.journal, one.position, one.values["n"])
        for one in (draw(st.lists(st.sampled_from(all_rows), max_size=2)) if all_rows else [])
    }
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    return World(chance, limits, records, Server(poison, exactly_once))


@settings(max_examples=300, deadline=None)
@given(worlds(), st.lists(st.integers(0, 60), max_size=4))
def test_nothing_is_lost_over_failures_and_kills(world: World, lives: list[int]) -> None:
    """Each life ends by a kill, after which the live stream begins at any place below its end."""
    world.start(dict.fromkeys(world.records, 0))
    for steps in lives:
        for _ in range(steps):
            world.step()
        world.start({journal: world.chance.randint(0, place) for journal, place in world.live.items()})
    world.finish()
    expected = {
        (one.journal, one.position, one.values["n"], one.client) for of in world.records.values() for record in of for one in record
    }
    expected = {one for one in expected if one[:3] not in world.server.poison}
    written = Counter(world.server.rows)
    assert set(written) == expected
    if world.server.stores_cursor:
        assert all(count == 1 for count in written.values())
    if not lives:
        first_of: dict[str, list[tuple[int, int]]] = {}
        seen = set()
        for journal, position, number, client in world.server.rows:
            if (journal, position, number) not in seen:
                seen.add((journal, position, number))
                first_of.setdefault(client, []).append((position, number))
        assert all(rows == sorted(rows) for rows in first_of.values())
        if not world.server.stores_cursor:  # there a lost answer also loses which rows have failed
            assert world.action.figures.failed == len(world.server.poison)


# --- single parts -----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40)), st.randoms(use_true_random=False))
def test_the_cursor_is_the_lowest_position_that_is_not_done(admitted: list[int], chance: random.Random) -> None:
    marks, waiting = Positions(Cursor(0)), sorted(admitted)
    for position in waiting:
        marks.admit(position)
    marks.passed(Cursor(50, 1, 500))
    chance.shuffle(waiting)
    while waiting:
        assert marks.cursor == Cursor(min(waiting))
        marks.done(waiting.pop())
        assert marks.waiting == len(waiting)
    assert marks.cursor == Cursor(50, 1, 500)


def test_places_are_bounded_while_a_row_waits() -> None:
    marks = Positions(Cursor(0))
    marks.admit(5)
    for position in range(6, 5000):
        marks.passed(Cursor(position, 1, position))
    assert marks.places <= PLACES_MAX + 1
    assert marks.cursor == Cursor(5)
    marks.admit(5000)
    marks.done(5)
    assert marks.cursor.position == 5000 and 4500 < marks.cursor.offset <= 5000


def test_a_batch_is_halved_until_the_row_is_alone() -> None:
    action = opened(batch_size=8, lanes=1)
    for position in range(8):
        action.admit_live(row(position), 0.0)
    written, failed, calls = [], [], 0
    while (batch := action.take(0.0, 0)) is not None:
        calls += 1
        if 5 in positions(batch):
            failed += action.refused(batch, "bad")
        else:
            written += positions(batch)
            action.written(batch, [], 0.0, 0)
    assert written == [0, 1, 2, 3, 4, 6, 7]
    assert [(one.position, reason) for one, reason in failed] == [(5, "bad")]
    assert calls == 7 and action.figures.failed == 1 and balanced(action)


def test_a_batch_waits_for_its_time_or_its_size() -> None:
    action = opened(batch_size=3, lanes=1, batch_time_s=1.0)
    action.admit_live(row(0), 10.0)
    action.admit_live(row(1), 10.5)
    assert action.due_s() == 11.0 and action.take(10.9, 0) is None
    assert positions(action.take(11.0, 0)) == [0, 1]
    for position in range(2, 5):
        action.admit_live(row(position), 11.0)
    assert action.take(11.0, 0) is None and action.due_s() is None  # one batch is under way


def test_rows_do_not_wait_once_they_have_the_bytes_of_a_batch() -> None:
    action = opened(lanes=1, batch_time_s=1.0, batch_bytes=30)
    for position in range(2):
        action.admit_live(row(position), 10.0)
    assert action.take(10.0, 0) is None
    action.admit_live(row(2), 10.0)
    assert positions(action.take(10.0, 0)) == [0, 1, 2]


def test_a_full_buffer_that_no_batch_empties_is_emptied_where_most_is() -> None:
    action = opened(lanes=64, batch_time_s=1.0, buffer_records=3)
    for position, client in enumerate("abb"):
        assert action.take(10.0, 0) is None
        action.admit_live(row(position, client), 10.0)
    assert positions(action.take(10.0, 0)) == [1, 2]
    assert action.take(10.0, 0) is None  # the batch under way makes room
    assert positions(action.take(11.0, 0)) == [0]


def test_batches_have_a_size_in_bytes() -> None:
    action = opened(lanes=1, batch_bytes=25)
    for position in range(5):
        action.admit_live(row(position), 0.0)
    assert positions(action.take(0.0, 0)) == [0, 1]


def test_a_window_bounds_the_batches_of_each_lane() -> None:
    action = opened(batch_size=1, lanes=2, inflight_window=2)
    for position in range(40):
        action.admit_live(row(position, f"client{position}"), 0.0)
    taken = [batch for _ in range(40) if (batch := action.take(0.0, 0)) is not None]
    assert Counter(batch.lane for batch in taken) == {0: 2, 1: 2}


def test_rows_of_a_client_are_in_one_lane() -> None:
    assert {lane_of(f"client{number}", 4) for number in range(100)} == {0, 1, 2, 3}
    assert lane_of("client", 4) == lane_of("client", 4)
    assert lane_of("\ud800", 4) in range(4)


def test_old_rows_expire_and_late_answers_are_counted() -> None:
    action = opened(lanes=1, request_ttl_s=1.0)
    action.admit_live(row(0, at_ms=0), 0.0)
    action.admit_live(row(1, at_ms=1500), 0.0)
    batch = action.take(2.0, 2000)
    assert batch is not None and positions(batch) == [1]
    action.written(batch, [], 2.0, 9000)
    assert action.figures.expired == 1 and action.figures.late_reply == 1 and balanced(action)
    assert action.cursor("0").position == 0  # no block was passed
    action.passed_live("0", Cursor(2, 1, 64))
    assert action.cursor("0") == Cursor(2, 1, 64)


def test_a_lost_server_is_waited_for_once_for_all_lanes() -> None:
    action = opened(lanes=4, batch_size=1)
    for position in range(40):
        action.admit_live(row(position, f"client{position}"), 0.0)
    taken = [batch for _ in range(4) if (batch := action.take(0.0, 0)) is not None]
    for batch in taken:
        action.unreachable(batch, "gone", 100.0)
    assert action.state is State.DISCONNECTED and action.last_error == "gone"
    assert action.retry_at_s == 100.0 + RETRY_MIN_S
    assert action.take(200.0, 0) is None and action.due_s() is None
    action.connected()
    assert [positions(action.take(0.0, 0)) for _ in taken] and action.figures.retried == 4


def test_the_delay_doubles_up_to_its_limit_and_has_jitter() -> None:
    backoff = Backoff(lambda low, high: high)
    assert [backoff.next_s() for _ in range(3)] == [RETRY_MIN_S, 2 * RETRY_MIN_S, 4 * RETRY_MIN_S]
    assert max(backoff.next_s() for _ in range(2000)) == RETRY_MAX_S
    backoff.reset()
    assert backoff.next_s() == RETRY_MIN_S
    assert Backoff(lambda low, high: low).next_s() == RETRY_MIN_S / 2


def test_a_full_buffer_leaves_the_live_stream_and_joins_it_again() -> None:
    action = opened(buffer_records=2, lanes=1)
    assert [action.admit_live(row(position), 0.0) for position in (3, 4, 5)] == [True, True, False]
    action.passed_live("0", Cursor(9, 1, 900))
    assert action.is_behind("0") and action.resumes_at("0").position == 5
    assert not action.admit_live(row(9), 0.0) and not action.admit_late(row(5), 0.0)
    batch = action.take(0.0, 0)
    assert batch is not None
    action.written(batch, [], 0.0, 0)
    assert action.buffer.is_low
    assert action.admit_late(row(4), 0.0) and action.buffer.records == 0  # it has that one
    assert action.admit_late(row(5), 0.0)
    assert not action.passed_late("0", Cursor(6, 1, 600), 9)
    assert action.passed_late("0", Cursor(12, 1, 1200), 9)
    assert not action.admit_live(row(11), 0.0) and action.admit_live(row(12), 0.0)


def test_rows_of_one_record_are_admitted_together() -> None:
    action = opened(buffer_records=1, lanes=1)
    assert [action.admit_live(row(7, number=number), 0.0) for number in range(3)] == [True, True, True]
    assert not action.admit_live(row(8), 0.0)


def test_a_record_is_not_taken_before_all_its_rows_are_there() -> None:
    """Else the sink would store the position behind it, and pass over the other rows."""
    action = opened(by_journal=True)
    action.admit_live(row(7, number=0), 0.0)
    assert action.take(0.0, 0) is None and action.due_s() is None
    action.admit_live(row(7, number=1), 0.0)
    action.admit_live(row(8), 0.0)
    assert positions(action.take(0.0, 0)) == [7, 7]


def test_rows_that_the_sink_has_are_passed_over() -> None:
    action = opened(by_journal=True)
    for position in range(4):
        action.admit_live(row(position), 0.0)
    action.passed_live("0", Cursor(4, 1, 64))
    action.connected({"0": 2})
    assert positions(action.take(0.0, 0)) == [2, 3]
    assert action.figures.success == 2 and balanced(action)


def test_lost_records_are_counted_as_dropped() -> None:
    action = opened()
    action.lost(5)
    assert action.figures.named()["dropped.queue_full"] == 5 and balanced(action)


def test_a_stopped_action_takes_nothing() -> None:
    action = opened()
    action.admit_live(row(0), 0.0)
    action.stopped()
    action.lost_server("gone", 0.0)
    assert action.state is State.STOPPED and action.take(0.0, 0) is None


def test_sizes_and_values_of_rows() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    assert size_of(deep) > 5000
    assert size_of({"name": "x" * 1000, "b": b"y" * 500}) > 1500
    one = Row("3", 9, "c", {"a": {"b": 1}}, id="AB", node="n1")
    assert one.value(("a", "b")) == 1 and one.value(("id",)) == "AB" and one.value(("position",)) == "n1/3/9"
    assert Row("3", 9, "c", {"id": "own"}, id="AB").value(("id",)) == "own"
