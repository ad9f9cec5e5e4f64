"""The driver of OpenTSDB against InfluxDB's listener for its protocol; points are read back by InfluxDB's client. Answers that only
OpenTSDB itself gives are played by a stub, as OpenTSDB 2.4.1 gave them."""

import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from shardbroker.config.sinks.opents import OpentsAction, OpentsConnector
from shardbroker.connectors.errors import ConnectorError
from shardbroker.connectors.http_server import HttpServer
from shardbroker.flows.drivers.opents import REQUEST_BYTES, connect, make
from shardbroker.flows.sinks.driver import Driver, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from tests.flows.drivers.delivery import deliver, opened, run, some_rows
from tests.flows.drivers.pages import settings_of
from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.influxdb import InfluxServer, influx, influxdb_server

pytestmark = pytest.mark.own_broker
needed("influxd", "influx")
TIMEOUT_S = 2.0
AT_MS = 1_700_000_000_000
DATA = [{"metric": "m.${kind}", "tags": {"client": "${client}", "fixed": "x"}, "value": "${v}", "timestamp": "${at}"}]


def connector(port: int = 1, **more: Any) -> HttpServer:
    given = {"server": f"http://127.0.0.1:{port}/", "timeout": TIMEOUT_S, **more}
    return connect(OpentsConnector.model_validate(given), "connectors.opents.x")


def driver(over: HttpServer, data: list[dict[str, Any]] | None = None) -> Driver:
    parameters = {} if data is None else {"data": data}
    return make(OpentsAction.model_validate({"parameters": parameters}), over, "opents:x")


def row(**values: Any) -> Row:
    return Row("0", 5, "c", values, "1F", "n1", at_ms=AT_MS)


@pytest.fixture(scope="module")
def server() -> Iterator[InfluxServer]:
    with influxdb_server() as found:
        yield found


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "server" in request.fixturenames:
        influx(request.getfixturevalue("server").port, "DROP DATABASE opentsdb; CREATE DATABASE opentsdb")


def stored(server: InfluxServer, metric: str) -> list[dict[str, Any]]:
    return influx(server.port, f'SELECT * FROM "{metric}"', "opentsdb")


def write(server: InfluxServer, data: list[dict[str, Any]] | None, *rows: Row) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = await opened(driver(over, data))
        return sorted(tuple(failure) for failure in await one.write(rows))

    over = connector(server.opentsdb_port)
    return run(scenario(), over)  # type: ignore[no-any-return]


def test_points_of_templates(server: InfluxServer) -> None:
    data = [*DATA, {"metric": "c", "tags": {"${name}": "${client}", "gone": "${gone}"}, "value": 2.5}]
    values = {"kind": "temp", "client": "d-1_x.y/z", "name": "who"}
    # The listener has microseconds where a time has milliseconds.
    times = (AT_MS + 1000, str(AT_MS + 2000), float(AT_MS + 3000))
    rows = [row(v=value, at=at, **values) for value, at in zip((21.5, 7, "-3.25e1"), times, strict=True)]
    assert write(server, data, *rows) == []
    found = stored(server, "m.temp")
    assert [(one["time"] - AT_MS, one["value"]) for one in found] == [(1000, 21.5), (2000, 7), (3000, -32.5)]
    assert all((one["client"], one["fixed"]) == ("d-1_x.y/z", "x") for one in found)
    assert stored(server, "c") == [{"_name": "c", "time": AT_MS, "who": "d-1_x.y/z", "value": 2.5}]


def test_the_defaults_are_fields_of_the_row(server: InfluxServer) -> None:
    rows = [row(metric="a", tags={"x": 1}, value=1), row(metric="b", tags='{"y": "text"}', value=2)]
    assert write(server, None, *rows) == []
    assert stored(server, "a") == [{"_name": "a", "time": AT_MS, "x": "1", "value": 1}]
    assert stored(server, "b") == [{"_name": "b", "time": AT_MS, "y": "text", "value": 2}]


GOOD = {"kind": "k", "client": "c", "v": 1, "at": AT_MS}
VALUE, TIME = "value must be a finite number of 64 bits", "timestamp must be an integer from 1 to 9999999999999"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        *(
            ({"v": value}, VALUE)
            for value in (math.nan, math.inf, True, None, "", "1,2", "0x1", "nan", [], 2**63, "9" * 400, "1\n")
        ),
        *(({"at": at}, TIME) for at in (0, -1, 1.5, "now", 10**13, True)),
        *(
            ({"kind": kind}, "the metric must be 1 to 255 letters, digits, -, _, . and /")
            for kind in ("a b", 'a"', "a\n", "x" * 254)
        ),
        *(
            ({"client": client}, "the value of a tag must be 1 to 255 letters, digits, -, _, . and /")
            for client in ("a b", "a=b", "a,b", 'a"}', "a\n", "x" * 256)
        ),
    ],
)
def test_rows_without_a_point_fail_alone(server: InfluxServer, values: dict[str, Any], reason: str) -> None:
    assert write(server, DATA, row(**GOOD), row(**GOOD | values), row(**GOOD | {"at": AT_MS + 1})) == [(1, reason, False)]
    assert len(stored(server, "m.k")) == 2


@pytest.mark.parametrize("tags", [{}, "text", [], None, {"a": None}, {f"t{number}": 1 for number in range(9)}, "[" * 100_000])
def test_tags_that_are_none(server: InfluxServer, tags: Any) -> None:
    ((at, reason, again),) = write(server, None, row(metric="m", value=1, tags=tags))
    assert at == 0 and not again and reason in ("a point must have 1 to 8 tags", "tags must be a map")


@pytest.mark.parametrize(
    ("point", "text"),
    [
        ({"value": "${a}${b}"}, "value: must be one placeholder"),
        ({"value": "x"}, "value: must be a placeholder or a number"),
        ({"tags": "x"}, "tags: must be a placeholder"),
        ({"timestamp": "soon"}, "timestamp: must be a placeholder or a number"),
    ],
)
def test_templates_that_cannot_work(point: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=rf"^opents:x: parameters.data\[1\].{text}"):
        driver(connector(), [{}, point])


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"server": "127.0.0.1:1"}, ConnectorError, "127.0.0.1:1: connection refused"),
        ({"server": "no-such-host.invalid:1"}, ConnectorError, "no-such-host.invalid:1: the name of the server cannot be resolved"),
    ],
)
def test_a_probe_says_what_is_wrong(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    over = connector(**given)
    with pytest.raises(kind) as raised:
        run(over.probe(), over)
    assert str(raised.value) == text


def test_a_server_without_the_path(server: InfluxServer) -> None:
    over = connector(server.port)
    with pytest.raises(Unusable, match=r"the server has no /api/put, or demands a login; status 404$"):
        run(driver(over, DATA).write([row(**GOOD)]), over)


def test_a_killed_and_a_stopped_server_lose_no_row() -> None:
    rows, timers = some_rows(10_000, lambda number: {"kind": "k", "client": "c", "v": number, "at": AT_MS + number}), []
    with influxdb_server() as server:
        over = connector(server.opentsdb_port)

        def after(batch: int) -> None:
            if batch == 3:
                server.service.kill()
                timers.append(threading.Timer(1.0, server.service.start))
                timers[-1].start()
            if batch == 7:
                server.service.pause()
                timers.append(threading.Timer(2 * TIMEOUT_S, server.service.resume))
                timers[-1].start()

        async def scenario() -> Any:
            return await deliver(await opened(driver(over, DATA)), rows, after=after)

        done = run(scenario(), over)
        for one in timers:
            one.join()
        assert not done.failed
        assert any("connection refused" in text for text in done.attempts) and any("no response" in text for text in done.attempts)
        found = {int(one["value"]) for one in stored(server, "m.k")}
        assert found >= set(range(4_000, 10_000)), "the listener answers before its points are on disk"


# --- answers of OpenTSDB 2.4.1 ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stub(answer: Any, seen: list[dict[str, Any]]) -> AsyncIterator[int]:
    async def serve(request: web.Request) -> web.Response:
        body = await request.read()
        points = json.loads(body)
        seen.append({"path": request.path, "query": dict(request.query), "points": points, "size": len(body)})
        status, text = answer(points) if callable(answer) else answer
        return web.Response(status=status, text=text if isinstance(text, str) else json.dumps(text))

    app = web.Application()
    app.router.add_post("/{tail:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def asked(answer: Any, rows: list[Row], **settings: Any) -> tuple[Any, list[dict[str, Any]]]:
    """What the driver made of answers, and the requests."""
    seen: list[dict[str, Any]] = []

    async def scenario() -> Any:
        async with stub(answer, seen) as port:
            over = connector(port, **settings)
            try:
                return await deliver(driver(over, DATA), rows) if callable(answer) else await driver(over, DATA).write(rows)
            except Exception as error:
                return error
            finally:
                await over.close()

    return run(scenario()), seen


def points(count: int, poison: int = -1) -> list[Row]:
    return some_rows(
        count,
        lambda number: {"kind": "bad" if number == poison else "k", "client": f"c{number % 5}", "v": number, "at": AT_MS + number},
    )


def details(points: list[dict[str, Any]]) -> tuple[int, Any]:
    """As the real server: the value of a rejected point is text."""
    errors = [
        {"datapoint": {**one, "value": str(one["value"])}, "error": "Unknown metric s3cret"}
        for one in points
        if one["metric"] == "m.bad"
    ]
    summary = {"success": len(points) - len(errors), "failed": len(errors)}
    return (400 if errors else 200), {"errors": errors, **summary}


def test_poison_among_ten_thousand() -> None:
    done, requests = asked(details, points(10_000, 7_777))
    assert [(one.values["n"], reason) for one, reason in done.failed] == [(7_777, "the server rejects the point: Unknown metric")]
    assert not done.refused
    sent = [one["value"] for request in requests for one in request["points"]]
    assert sent == list(range(10_000))
    assert all(request["size"] <= REQUEST_BYTES for request in requests)
    assert requests[0]["path"] == "/api/put" and requests[0]["query"] == {"summary": "true", "details": "true"}


def test_without_details_a_batch_is_halved() -> None:
    def summary(points: list[dict[str, Any]]) -> tuple[int, Any]:
        status, answer = details(points)
        return status, {"success": answer["success"], "failed": answer["failed"]}

    done, requests = asked(summary, points(1_000, 777), details=False, sync=True, sync_timeout="1500ms")
    assert [one.values["n"] for one, _ in done.failed] == [777] and 0 < done.refused <= 11
    assert requests[0]["query"] == {"summary": "true", "sync": "true", "sync_timeout": "1500"}


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ((500, "s3cret"), ConnectorError, "the server answers with status 500"),
        ((503, {"error": {"message": "Please try again"}}), ConnectorError, "the server answers with status 503"),
        ((413, ""), Refused, "the server rejects the point with status 413"),
        ((400, {"error": {"code": 400, "message": "s3cret"}}), Refused, "the server rejects the point with status 400"),
        ((400, "[" * 100_000), Refused, "the server rejects the point with status 400"),
        (
            (200, {"failed": 1, "success": 1, "errors": [{"datapoint": {}}]}),
            Refused,
            "the server rejects the point with status 200",
        ),
    ],
)
def test_other_answers(answer: Any, kind: type[Exception], text: str) -> None:
    result, _ = asked(answer, points(2))
    assert isinstance(result, kind) and str(result).endswith(text)


def test_the_page(server: InfluxServer) -> None:
    settings, action = settings_of("sink-opentsdb.md", "opents")
    over = connector(**settings | {"server": f"127.0.0.1:{server.opentsdb_port}"})
    one = make(OpentsAction.model_validate(action), over, "opents:readings")
    values = {"clientid": "c", "temp": 21.5, "timestamp": AT_MS}
    run(deliver(one, some_rows(1, lambda number: values)), over)
    found = stored(server, "sensors.temp")
    assert found == [{"_name": "sensors.temp", "time": AT_MS, "device": "c", "topic": "t/0", "value": 21.5}]
