"""The server of an action in an event loop, over drivers that fail as a test wants: positions of the sink, syncs, ends."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from shardbroker.connectors.connector import State
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.sinks import server as server_module
from shardbroker.flows.sinks.action import Limits, SinkAction
from shardbroker.flows.sinks.complaints import Complaints
from shardbroker.flows.sinks.driver import Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.flows.sinks.server import ActionServer


def row(position: int, client: str = "c") -> Row:
    return Row("0", position, client, {"n": position})


class Database:
    """Keeps rows. A failure in `fails` is raised, or returned, by the next write."""

    stores_cursor = False

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.fails: list[Any] = []
        self.opened = self.closed = 0
        self.position = 0

    async def open(self) -> None:
        self.opened += 1

    async def probe(self) -> None:
        if self.fails and self.fails[0] == "probe":
            self.fails.pop(0)
            raise OSError

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        failures: Sequence[Failure] = []
        if self.fails and self.fails[0] != "probe":
            failure = self.fails.pop(0)
            if isinstance(failure, Exception):
                raise failure
            if failure == "hang":
                await asyncio.sleep(60)
            failures = failure
        out = {one.at for one in failures}
        self.rows += [one.position for at, one in enumerate(rows) if at not in out]
        if rows:
            self.position = rows[-1].position + 1
        return failures

    async def close(self) -> None:
        self.closed += 1


class CursorDatabase(Database):
    stores_cursor = True

    async def stored(self) -> dict[str, int]:
        return {"0": self.position}


class SyncedDatabase(Database):
    def __init__(self) -> None:
        super().__init__()
        self.synced = 0
        self.may_sync = False

    async def sync(self) -> None:
        if not self.may_sync:
            raise Unusable("no room")
        self.synced = len(self.rows)


class Served:
    """An action over a database, in the event loop of a test."""

    def __init__(self, database: Any, **limits: Any) -> None:
        self.database = database
        self.lines: list[str] = []
        self.failed: list[tuple[int, str]] = []
        self.room = threading.Event()
        self.action = SinkAction("x:y", Limits(**{"lanes": 1, **limits}), uniform=lambda low, high: 0.01)
        self.action.open_journal("0", Cursor(0), behind=False)
        complaints = Complaints("x:y", lambda level, line: self.lines.append(line))
        self.server = ActionServer(self.action, database, complaints, self._fail, self.room.set)

    def _fail(self, server: ActionServer, one: Row, reason: str) -> None:
        self.failed.append((one.position, reason))

    def admit(self, *positions: int) -> None:
        with self.action.lock:
            for position in positions:
                self.action.admit_live(row(position), 0)
            self.action.passed_live("0", Cursor(positions[-1] + 1))
        self.server.wake()

    async def rows(self, count: int) -> list[int]:
        async with asyncio.timeout(10):
            while len(self.database.rows) < count or self.action.figures.inflight:
                await asyncio.sleep(0.005)
        return list(self.database.rows)


def run(served: Served, test: Any, wait_s: float = 5) -> None:
    async def go() -> None:
        served.server.start()
        try:
            await test()
        finally:
            await served.server.close(wait_s)

    asyncio.run(go())
    figures = served.action.figures
    assert figures.inflight == 0 and served.database.closed == 1


BUSY = [Failure(1, "busy", again=True), Failure(2, "busy", again=True)]


@pytest.mark.parametrize("failure", [OSError("x"), Unusable("no table"), BUSY])
def test_rows_are_written_again_after_a_loss(failure: Any) -> None:
    served = Served(Database())

    async def test() -> None:
        served.database.fails = [failure]
        served.admit(1, 2, 3)
        assert await served.rows(3) == [1, 2, 3]
        served.admit(4)
        assert await served.rows(4) == [1, 2, 3, 4]
        assert served.action.cursor("0").position == 5

    run(served, test)
    assert served.database.opened == 2 and served.action.figures.success == 4
    assert [line.partition(" action")[0] for line in served.lines] == ["sink not available", "sink available again"]


def test_a_server_that_accepts_connections_alone_is_one_line() -> None:
    served = Served(Database(), health_check_s=0.01)

    async def test() -> None:
        served.database.fails = [OSError("x")] * 10
        served.admit(1, 2, 3)
        await served.rows(3)

    run(served, test)
    assert served.database.opened == 11
    assert [line.partition(" action")[0] for line in served.lines] == ["sink not available", "sink available again"]


def test_a_row_that_is_refused_is_found_by_halves_and_logged_once_in_a_while() -> None:
    class Picky(Database):
        async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
            if any(one.position % 50 == 7 for one in rows):
                raise Refused("status 400")
            return await super().write(rows)

    served = Served(Picky())

    async def test() -> None:
        served.admit(*range(100))
        await served.rows(98)

    run(served, test)
    assert served.failed == [(7, "status 400"), (57, "status 400")]
    assert served.lines == ['row not written action=x:y journal=0 position=7 reason="status 400"']
    assert served.action.cursor("0").position == 100


def test_what_the_sink_has_stored_is_not_written_again() -> None:
    served = Served(CursorDatabase(), by_journal=True)

    async def test() -> None:
        served.admit(1, 2, 3)
        await served.rows(3)
        served.database.rows += [4, 5]  # a batch whose answer was lost
        served.database.position = 6
        served.database.fails = [OSError("lost")]
        served.admit(4, 5, 6)
        assert await served.rows(6) == [1, 2, 3, 4, 5, 6]

    run(served, test)
    assert served.action.figures.success == 6


def test_a_cursor_waits_for_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SYNC_S", 0.02)
    served = Served(SyncedDatabase())

    async def test() -> None:
        served.admit(1, 2)
        await served.rows(2)
        async with asyncio.timeout(10):
            while not served.action.last_error:
                served.server.wake()
                await asyncio.sleep(0.005)
        assert served.action.last_error == "no room"
        assert served.server.synced == {} and served.action.cursor("0").position == 3
        served.database.may_sync = True
        async with asyncio.timeout(10):
            while served.server.synced != {"0": Cursor(3)}:
                served.server.wake()
                await asyncio.sleep(0.005)
        assert served.database.synced == 2

    run(served, test)


def test_a_probe_finds_a_loss_without_rows() -> None:
    served = Served(Database(), health_check_s=0.02)

    async def test() -> None:
        served.admit(1)
        await served.rows(1)
        served.database.fails = ["probe"]
        async with asyncio.timeout(10):
            while served.database.opened < 2:
                await asyncio.sleep(0.005)

    run(served, test)


def test_an_end_gives_up_what_hangs() -> None:
    served = Served(Database())

    async def test() -> None:
        served.database.fails = ["hang"]
        served.admit(1, 2)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await served.rows(2)

    run(served, test, 0.05)
    assert served.action.cursor("0").position == 1 and served.action.state is State.STOPPED


def test_room_is_reported_to_a_reader_that_is_behind() -> None:
    served = Served(Database(), buffer_records=4)

    async def test() -> None:
        served.admit(*range(10))
        assert served.action.is_behind("0") and served.action.resumes_at("0").position == 4
        await served.rows(4)

    run(served, test)
    assert served.room.is_set()
