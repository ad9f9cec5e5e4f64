"""The frame of sources without a broker: batches, back-pressure, losses, orders. Drivers and lanes are stand-ins."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast

import cbor2
import pytest

from shardbroker.connectors.connector import State
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.sources.complaints import Complaints
from shardbroker.flows.sources.records import Encoder
from shardbroker.flows.sources.server import INFLIGHT_RECORDS, Batch, SourceServer
from shardbroker.flows.sources.source import Message, Received, Take
from shardbroker.flows.sources.sources import Sources, _Entry
from shardbroker.logs.phrases import Line
from shardbroker.mqtt.spec import PropertyId
from shm.records import FED, PUBLISH, open_record

PAYLOAD_MAX = 1000
WAIT_S = 20.0


class Queue:
    """A stand-in for a driver: hands out batches, and counts what is done."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[list[Received] | Exception] = asyncio.Queue()
        self.done: list[list[Received]] = []
        self.taken = self.runs = 0
        self.refusal: Exception | None = None
        self.is_closed = False

    async def run(self, take: Take) -> None:
        self.runs += 1
        while True:
            batch = await self.batches.get()
            if isinstance(batch, Exception):
                raise batch
            await take(batch, lambda batch=batch: self.done.append(batch))  # type: ignore[misc]
            self.taken += 1

    async def probe(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        self.is_closed = True


class Process:
    """A stand-in for the loop of the process: takes batches when a test says so."""

    def __init__(self, health_check_s: float = 60.0) -> None:
        self.driver = Queue()
        self.lines: list[tuple[str, Line]] = []
        encoder = Encoder("mqtt:far", 4, PAYLOAD_MAX)
        complaints = Complaints("mqtt:far", lambda level, line: self.lines.append((level, line)))
        self.server = SourceServer("mqtt:far", self.driver, encoder, health_check_s, complaints, lambda: None)
        self.server.start()

    def consume(self) -> int:
        """Has workers consume all that is queued; returns the number of batches."""
        batches = [*self.server.queue]
        self.server.queue.clear()
        self.server.finished(batches)
        return len(batches)


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs in an event loop."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def message(number: int, topic: bytes = b"t/a") -> Received:
    return Received({"n": number}, Message(topic, b"%d" % number), b"k")


@in_loop
async def test_a_batch_is_done_once_workers_have_consumed_it() -> None:
    process = Process()
    process.driver.batches.put_nowait([message(0), message(1)])
    await until(lambda: process.driver.taken)
    assert process.driver.done == []
    assert process.server.figures.named() == {"received": 2, "published": 2, "failed": 0, "acknowledged": 0, "inflight": 2}
    assert process.consume() == 1
    assert process.driver.done == [[message(0), message(1)]]
    assert process.server.figures.inflight == 0
    await process.server.close()
    assert process.driver.is_closed


@in_loop
async def test_a_driver_gets_no_room_while_too_much_is_under_way() -> None:
    process = Process()
    for number in range(INFLIGHT_RECORDS // 1000 + 2):
        process.driver.batches.put_nowait([message(number)] * 1000)
    await until(lambda: len(process.server.queue) == INFLIGHT_RECORDS // 1000)
    await asyncio.sleep(0.05)
    assert process.driver.taken == INFLIGHT_RECORDS // 1000 - 1
    process.consume()
    await until(lambda: process.driver.taken == INFLIGHT_RECORDS // 1000 + 2)
    process.consume()
    await process.server.close()


@in_loop
async def test_a_lost_server_is_tried_again_and_logged_once() -> None:
    process = Process()
    process.driver.batches.put_nowait(ConnectorError("connection reset"))
    await until(lambda: process.server.state is State.DISCONNECTED)
    assert process.server.last_error == "connection reset"
    process.driver.refusal = ConnectorError("connection refused")
    await until(lambda: process.server.last_error == "connection refused")
    process.driver.refusal = None
    process.driver.batches.put_nowait([message(0)])
    await until(lambda: process.driver.taken)
    assert process.server.state is State.CONNECTED
    assert [line.partition(" source=")[0] for _, line in process.lines] == ["source not available", "source available again"]
    process.consume()
    await process.server.close()


@in_loop
async def test_a_probe_that_fails_ends_a_driver_that_hangs() -> None:
    process = Process(health_check_s=0.02)
    await until(lambda: process.driver.runs == 1)
    process.driver.refusal = TimeoutError()
    await until(lambda: process.server.state is State.DISCONNECTED)
    process.driver.refusal = None
    await until(lambda: process.driver.runs == 2)
    await process.server.close()


@in_loop
async def test_a_stop_waits_for_what_is_under_way_and_a_start_goes_on() -> None:
    process = Process()
    process.driver.batches.put_nowait([message(0)])
    process.driver.batches.put_nowait([message(1)])
    await until(lambda: len(process.server.queue) == 2)
    process.server.stop()
    await asyncio.sleep(0.02)
    assert process.server.state is State.CONNECTED
    process.consume()
    await until(lambda: process.server.state is State.STOPPED)
    assert len(process.driver.done) == 2
    process.server.resume()
    process.driver.batches.put_nowait([message(2)])
    await until(lambda: process.driver.taken == 3)
    process.server.restart()
    await until(lambda: process.driver.runs == 3)
    process.consume()
    await process.server.close()


@in_loop
async def test_a_record_that_is_not_possible_here_fails_and_is_acknowledged() -> None:
    process = Process()
    wrong = [
        Received({}, Message(b"a/+", b"")),
        Received({}, Message(b"$SYS/brokers", b"")),
        Received({}, Message(b"\xff", b"")),
        Received({}, Message(b"", b"")),
        Received({}, Message(b"t", bytes(PAYLOAD_MAX + 1))),
        Received({}, Message(b"t", b"", properties={PropertyId.CONTENT_TYPE: b"x" * 70_000})),
    ]
    process.driver.batches.put_nowait([*wrong, message(1)])
    await until(lambda: process.driver.taken)
    assert process.server.figures.failed == len(wrong)
    assert [kind for _, _, kind in process.server.queue[0].records] == [PUBLISH]
    process.consume()
    assert len(process.driver.done) == 1
    assert [line.startswith("record not taken over source=mqtt:far") for _, line in process.lines] == [True]
    await process.server.close()


def test_records_of_a_key_have_one_worker_and_rules_see_columns_first() -> None:
    encoder = Encoder("mqtt:far", 4, PAYLOAD_MAX)
    fed, published = encoder.encode(Received({"payload": b"\x00", "qos": 1}, Message(b"t", b"x"), b"key"), is_fed=True)
    assert (fed[2], published[2]) == (FED, PUBLISH)
    assert fed[0] == published[0]
    kind, _, columns = open_record(fed[1])
    assert kind == FED
    assert cbor2.loads(columns) == {"payload": b"\x00", "qos": 1}
    assert b"$sources/mqtt:far" in fed[1]
    assert b"$source:mqtt:far" in published[1]
    assert len({encoder.encode(Received({}, Message(b"t", b""), b"%d" % key), False)[0][0] for key in range(50)}) == 4
    assert encoder.encode(Received({}, None), is_fed=False) == []


@pytest.mark.parametrize("columns", [{"a": "\ud800"}, {"a": object()}])
def test_columns_that_no_journal_can_have_fail(columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="columns"):
        Encoder("mqtt:far", 1, PAYLOAD_MAX).encode(Received(columns, None), is_fed=True)


class Failing:
    """Lanes that cannot spill the first time."""

    workers = range(2)

    def __init__(self) -> None:
        self.put: list[bytes] = []
        self.fails = True

    def try_put(self, worker: int, record: bytes, kind: int) -> bool:
        if record == b"large" and self.fails:
            self.fails = False
            raise OSError("no space left")
        self.put.append(record)
        return True

    def mark(self, worker: int) -> tuple[int, int]:
        return worker, 1

    def is_past(self, mark: tuple[int, int]) -> bool:
        return mark[0] == 1  # worker 0 has consumed nothing


def test_a_batch_waits_for_all_workers_also_after_an_error_in_the_middle() -> None:
    lanes: Any = Failing()
    sources = Sources(0, 1, lanes, PAYLOAD_MAX, cast(Any, None), lambda: None)
    done: list[int] = []
    batch = Batch([(0, b"small", PUBLISH), (1, b"large", PUBLISH)], 2, lambda: done.append(1))
    server = SimpleNamespace(queue=deque([batch]), id="mqtt:far")
    entry = sources._entries["mqtt:far"] = _Entry(cast(Any, None), cast(Any, None), cast(Any, server))
    problems: list[str] = []
    for _ in range(2):
        sources.turn(lambda where, error: problems.append(f"{where}: {error}"))
    assert problems == ["source mqtt:far: no space left"] and lanes.put == [b"small", b"large"]
    assert [sorted(marks) for _, marks in entry.pending] == [[(0, 1), (1, 1)]] and not done
