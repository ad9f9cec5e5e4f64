"""The driver of InfluxDB against InfluxDB 1; points are read back by its own client. Versions 2 and 3 are played by a stub."""

import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardbroker.config.sinks.influxdb import InfluxdbAction, InfluxdbConnector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.http_server import HttpServer
from shardbroker.flows.drivers.influxdb import connect, make
from shardbroker.flows.drivers.line_protocol import line_protocol
from shardbroker.flows.sinks.driver import Driver, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from tests.flows.drivers.delivery import deliver, opened, run, some_rows
from tests.flows.drivers.pages import settings_of
from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.influxdb import PASSWORD, influx, influxdb_server

pytestmark = pytest.mark.own_broker
needed("influxd", "influx")
TIMEOUT_S = 2.0
AT_MS = 1_700_000_000_000


def connector(port: int = 1, **more: Any) -> HttpServer:
    given = {"server": f"127.0.0.1:{port}", "influxdb_type": "influxdb_api_v1", "timeout": TIMEOUT_S, **more}
    return connect(InfluxdbConnector.model_validate(given), "connectors.influxdb.x")


def driver(over: HttpServer, syntax: str, precision: str = "ms") -> Driver:
    parameters = {"write_syntax": syntax, "precision": precision}
    return make(InfluxdbAction.model_validate({"parameters": parameters}), over, "influxdb:x")


def row(**values: Any) -> Row:
    return Row("0", 5, "c", values, "1F", "n1", at_ms=AT_MS)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with influxdb_server() as server:
        yield server.port


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "port" in request.fixturenames:
        influx(request.getfixturevalue("port"), "DROP DATABASE mqtt; CREATE DATABASE mqtt")


def write(port: int, syntax: str, *rows: Row, precision: str = "ms") -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = await opened(driver(over, syntax, precision))
        return [tuple(failure) for failure in await one.write(rows)]

    over = connector(port)
    return run(scenario(), over)  # type: ignore[no-any-return]


def test_values_of_all_types(port: int) -> None:
    syntax = (
        "all,tag=${text},fixed=x\\ y,gone=${gone},empty=${empty} float=${float},whole=${whole},int=${whole}i,from_text=${digits}i,"
        'yes=${yes},text=${text},quoted="${whole} of ${text}",map=${map},constant=1.5,count=7i,on=true,said="x \\"y\\"",'
        "null=${null},nan=${nan},none=${gone},${text}=${whole},raw=${raw} ${time}"
    )  # fmt: skip
    values = {
        "text": "grün, a=b", "empty": "", "float": 0.1, "whole": 3, "digits": "-17", "yes": True, "map": {"a": ['"']},
        "null": None, "nan": math.nan, "time": AT_MS + 5, "raw": b"\xff",
    }  # fmt: skip
    assert write(port, syntax, row(**values)) == []
    (found,) = influx(port, 'SELECT * FROM "all"')
    text = "grün, a=b"
    assert found == {
        "_name": "all", "time": AT_MS + 5, "tag": text, "fixed": "x y", "float": 0.1, "whole": 3, "int": 3, "from_text": -17,
        "yes": True, "text": text, "quoted": f"3 of {text}", "map": '{"a":["\\""]}', "constant": 1.5, "count": 7, "on": True,
        "said": 'x "y"', text: 3, "raw": "\ufffd",
    }  # fmt: skip
    types = {one["fieldKey"]: one["fieldType"] for one in influx(port, "SHOW FIELD KEYS")}
    assert types | {"float": "float", "whole": "float", "int": "integer", "yes": "boolean", "text": "string"} == types


@pytest.mark.parametrize(("precision", "unit_ns"), [("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)])
def test_times(port: int, precision: str, unit_ns: int) -> None:
    time = (AT_MS + 1000) * 10**6 // unit_ns
    rows = [row(n=1, time=time), row(n=2), row(n=3, time=str(time + 1)), row(n=4, time=float(AT_MS // 1000 - 5))]
    assert write(port, "times n=${n} ${time}", *rows, precision=precision) == []
    found = {one["n"]: one["time"] for one in influx(port, "SELECT * FROM times", precision="ns")}
    assert found == {1: time * unit_ns, 2: AT_MS * 10**6, 3: (time + 1) * unit_ns, 4: (AT_MS // 1000 - 5) * unit_ns}


HOSTILE = [
    "a b", "a,b=c", "a=b", 'a"b', "a\\", "a\\\\", "a\\,b", "a\\\\,b", "\\", "\\ ", "x\ny,t=evil v=1i 1", "x\r\ny", "\t\f", "${x}",
    "#x", ",", " ", "=", '"', "a\\ b v=1", "grün 𝄞", "x v=1i 1\nevil", '" 1\nevil v="1', "\\\nevil v=1", "'", "a" * 5000,
]  # fmt: skip


def without_lost(text: str) -> str:
    """A measurement or tag as it is stored: see line_protocol.py."""
    shown = line_protocol("m,t=${x} v=1", "ms").write(row(x=text)).partition(",t=")[2].rpartition(" v=1")[0]
    for special in ",= ":
        shown = shown.replace("\\" + special, special)
    return shown


def test_hostile_texts_stay_where_they_are(port: int) -> None:
    for number, text in enumerate(HOSTILE):
        failures = write(port, "m,tag=${x} text=${x},n=${n}i,${name}=1i", row(x=text, n=number, name=f"k{text}"))
        assert failures == []
        (found,) = influx(port, f"SELECT * FROM m WHERE n = {number}")
        assert found["text"] == text.replace("\n", "\\n")
        assert (found.get("tag") or "") == without_lost(text)
        (key,) = set(found) - {"_name", "time", "tag", "text", "n"}
        assert key.startswith("k")
        influx(port, "DROP MEASUREMENT m")
        measurement = [] if text[0] == "#" or not without_lost(text) else [without_lost(text)]
        assert len(write(port, "${x} v=1i", row(x=text))) == 1 - len(measurement)
        assert [one["name"] for one in influx(port, "SHOW MEASUREMENTS")] == measurement
        influx(port, "DROP DATABASE mqtt; CREATE DATABASE mqtt")


TEXTS = st.text(st.sampled_from('ab\\, ="\n\r\t#'), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=20))
def test_any_text_makes_one_point_with_its_tags_and_fields(port: int, texts: list[tuple[str, str, str]]) -> None:
    influx(port, "DROP DATABASE mqtt; CREATE DATABASE mqtt")
    rows = [row(a=a, b=b, c=c, n=number) for number, (a, b, c) in enumerate(texts)]
    assert write(port, "m,first=${a},last=${b} n=${n}i,text=${c},after=1i", *rows) == []
    found = {}
    for at in range(len(rows)):  # points of the same tags replace each other
        (one,) = influx(port, f"SELECT * FROM m WHERE n = {at}") or [{}]
        found[at] = one
    last = {(without_lost(a), without_lost(b)): number for number, (a, b, _) in enumerate(texts)}
    for (first, second), number in last.items():
        one = found[number]
        assert set(one) <= {"_name", "time", "first", "last", "n", "text", "after"}
        assert (one.get("first") or "", one.get("last") or "", one["text"]) == (
            first,
            second,
            texts[number][2].replace("\n", "\\n"),
        )


@pytest.mark.parametrize(
    ("syntax", "values", "reason"),
    [
        ("m v=${x}", {}, "no field has a value"),
        ("m v=${x}", {"x": math.inf}, "no field has a value"),
        ("${x} v=1", {}, "the measurement must not be empty or begin with #"),
        ("${x} v=1", {"x": "#comment"}, "the measurement must not be empty or begin with #"),
        ("m v=${x}i", {"x": 1.5}, "v: must be an integer from -9223372036854775808 to 9223372036854775807"),
        ("m v=${x}i", {"x": 2**63}, "v: must be an integer from -9223372036854775808 to 9223372036854775807"),
        ("m v=${x}i", {"x": True}, "v: must be an integer from -9223372036854775808 to 9223372036854775807"),
        ("m v=${x}u", {"x": -1}, "v: must be an integer from 0 to 18446744073709551615"),
        ("m v=1 ${x}", {"x": "1i\nevil v=1"}, "time: must be an integer from -9223372036854775808 to 9223372036854775807"),
        ("m,t=${x} v=1", {"x": "a" * 70_000}, "a measurement, a tag or a name is longer than 65536 characters"),
    ],
)  # fmt: skip
def test_rows_without_a_point_fail_alone(port: int, syntax: str, values: dict[str, Any], reason: str) -> None:
    assert write(port, syntax, row(**values)) == [(0, reason, False)]
    assert write(port, "other v=1i", row(), row()) == []


@pytest.mark.parametrize(
    "syntax",
    [
        "",
        "m",
        "m v",
        "m v=",
        "m v=${a}${b}",
        "m v=x",
        "m v=1 2 3",
        "m v=1 x",
        "m,t v=1",
        'm v="x',
        "m v=${a}j",
        "m v=1 ${a}1",
        "\ue000",
    ],
)
def test_templates_that_cannot_work(syntax: str) -> None:
    with pytest.raises(ValueError, match=r"^influxdb:x: parameters.write_syntax: "):
        driver(connector(), syntax)


def test_lines_of_a_template(port: int) -> None:
    syntax = "\n  temp,d=${d} v=${t} ${at}\n\n  hum,d=${d} v=${h} ${at}\n"
    assert write(port, syntax, row(d="x", t=1.5, h=2.5, at=AT_MS)) == []
    found = influx(port, "SELECT * FROM temp, hum")
    assert [(one["_name"], one["d"], one["v"]) for one in sorted(found, key=lambda one: one["v"])] == [
        ("temp", "x", 1.5),
        ("hum", "x", 2.5),
    ]


def test_poison_among_ten_thousand(port: int) -> None:
    write(port, "m,c=${n} v=${v}", row(n=-1, v=0.5))
    rows = some_rows(10_000, lambda number: {"v": "text" if number == 7_777 else float(number), "at": AT_MS + number})

    async def scenario() -> Any:
        return await deliver(await opened(driver(over, "m,c=${topic} v=${v} ${at}")), rows, 2000)

    over = connector(port)
    done = run(scenario(), over)
    reason = "the server rejects the line: field type conflict"
    assert [(one.values["n"], text) for one, text in done.failed] == [(7_777, reason)]
    assert not done.attempts and 0 < done.refused <= 12
    found = influx(port, "SELECT v FROM m WHERE c <> '-1'")
    assert sorted(int(one["v"]) for one in found) == [number for number in range(10_000) if number != 7_777]


def test_a_batch_without_a_good_row_fails_at_once(port: int) -> None:
    write(port, "m v=${v}", row(v=0.5))
    failures = write(port, "m v=${v} ${at}", *[row(v="text", at=AT_MS + number) for number in range(1000)])
    assert failures == [(at, "the server rejects the line: field type conflict", False) for at in range(1000)]


@pytest.fixture(scope="module")
def guarded_port() -> Iterator[int]:
    with influxdb_server(with_login=True) as server:
        yield server.port


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"username": "writer", "password": "s3cret"}, Unusable, "{server}: the server rejects username, password or token"),
        ({}, Unusable, "{server}: the server rejects username, password or token"),
        ({"username": "writer", "password": PASSWORD, "database": "other"}, Unusable, "{server}: there is no database 'other'"),
        ({"username": "reader", "password": PASSWORD}, Unusable, "{server}: the account may not write to database 'mqtt'"),
        ({"influxdb_type": "influxdb_api_v2"}, Unusable, "{server}: the server has no /api/v2/write; another influxdb_type?"),
        ({"server": "127.0.0.1:1"}, ConnectorError, "127.0.0.1:1: connection refused"),
        ({"server": "no-such-host.invalid:1"}, ConnectorError, "no-such-host.invalid:1: the name of the server cannot be resolved"),
        ({"tls": True}, ConnectorError, "{server}: TLS fails: "),
    ],
)  # fmt: skip
def test_a_probe_says_what_is_wrong(guarded_port: int, settings: dict[str, Any], kind: type[Exception], text: str) -> None:
    influx(guarded_port, f"CREATE USER reader WITH PASSWORD '{PASSWORD}'")
    server = f"127.0.0.1:{guarded_port}"
    over = connector(guarded_port, **settings)
    with pytest.raises(kind) as raised:
        run(over.probe(), over)
    assert str(raised.value).startswith(text.format(server=server))
    assert "s3cret" not in str(raised.value)


def test_with_a_login(guarded_port: int) -> None:
    over = connector(guarded_port, username="writer", password=PASSWORD)
    run(deliver(driver(over, "m,c=${topic} n=${n}i"), some_rows(5)), over)
    assert len(influx(guarded_port, "SELECT * FROM m")) == 5


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"server": ""}, "connectors.influxdb.x.server: must be HOST:PORT, got ''"),
        ({"database": ""}, "connectors.influxdb.x.database: must be the name of a database, got ''"),
        ({"influxdb_type": "influxdb_api_v2", "bucket": ""}, "connectors.influxdb.x.bucket: must be the name of a bucket, got ''"),
        ({"token": "a\nb"}, "connectors.influxdb.x.token: must be printable ASCII, got 'other characters'"),
    ],
)
def test_settings_that_can_never_work(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConnectionSettingError) as raised:
        connector(**settings)
    assert str(raised.value) == text


def test_a_killed_server_loses_no_row() -> None:
    rows, starts = some_rows(20_000, lambda number: {"at": AT_MS + number}), []
    with influxdb_server() as server:
        over = connector(server.port)

        def after(batch: int) -> None:
            if batch in (5, 12):
                server.service.kill()
                starts.append(threading.Timer(1.0, server.service.start))
                starts[-1].start()

        async def scenario() -> Any:
            return await deliver(await opened(driver(over, "m,c=${topic} n=${n}i ${at}")), rows, after=after)

        done = run(scenario(), over)
        for one in starts:
            one.join()
        assert not done.failed and any("connection refused" in text for text in done.attempts), done.attempts
        assert sorted(one["n"] for one in influx(server.port, "SELECT n FROM m")) == list(range(20_000))


def test_a_server_that_stops_answering_loses_no_row(port: int) -> None:
    rows, timers = some_rows(10_000, lambda number: {"at": AT_MS + number}), []
    with influxdb_server() as server:
        over = connector(server.port)

        def after(batch: int) -> None:
            if batch == 3:
                server.service.pause()
                timers.append(threading.Timer(2 * TIMEOUT_S, server.service.resume))
                timers[0].start()

        async def scenario() -> Any:
            return await deliver(await opened(driver(over, "m,c=${topic} n=${n}i ${at}")), rows, after=after)

        done = run(scenario(), over)
        timers[0].join()
        assert not done.failed and any("no response in time" in text for text in done.attempts), done.attempts
        assert sorted(one["n"] for one in influx(server.port, "SELECT n FROM m")) == list(range(10_000))


# --- versions 2 and 3, and answers that version 1 does not give -------------------------------------------------------------------


@asynccontextmanager
async def stub(answer: web.Response, seen: list[dict[str, Any]]) -> AsyncIterator[int]:
    async def serve(request: web.Request) -> web.Response:
        login = request.headers.get("Authorization", "")
        seen.append({"path": request.path, "query": dict(request.query), "login": login, "body": await request.text()})
        return web.Response(status=answer.status, text=answer.text)

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


def asked(
    answer: web.Response, rows: list[Row], syntax: str = "m,c=${topic} n=${n}i 5", **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """What the driver made of an answer, and the request."""
    seen: list[dict[str, Any]] = []

    async def scenario() -> Any:
        async with stub(answer, seen) as port:
            over = connector(port, **settings)
            try:
                return await driver(over, syntax, "us").write(rows)
            except Exception as error:
                return error
            finally:
                await over.close()

    return run(scenario()), seen[-1]


def test_version_2() -> None:
    login = {"influxdb_type": "influxdb_api_v2", "bucket": "b/1", "org": "o&x", "token": "s3cret"}
    result, request = asked(web.Response(status=204), some_rows(2), **login)
    assert result == []
    assert request == {
        "path": "/api/v2/write", "query": {"bucket": "b/1", "org": "o&x", "precision": "us"}, "login": "Token s3cret",
        "body": "m,c=t/0 n=0i 5\nm,c=t/1 n=1i 5",
    }  # fmt: skip
    for status, text in (
        (404, "there is no bucket 'b/1' of the organization 'o&x'"),
        (401, "the server rejects username"),
        (403, "may not"),
    ):
        result, _ = asked(web.Response(status=status, text='{"code":"not found"}'), some_rows(2), **login)
        assert isinstance(result, Unusable) and text in str(result)


def test_version_3_names_the_lines() -> None:
    login = {"influxdb_type": "influxdb_api_v3", "database": "d", "token": "s3cret"}
    answer = (
        '{"error":"partial write of line protocol occurred","data":[{"original_line":"m,c=t/1 n","line_number":2,'
        '"error_message":"invalid column type for column \'n\'"}]}'
    )
    result, request = asked(web.Response(status=400, text=answer), some_rows(3), **login)
    assert [tuple(one) for one in result] == [(1, "the server rejects the line: invalid column type", False)]
    assert request["path"] == "/api/v3/write_lp" and request["query"] == {"db": "d", "precision": "microsecond"}
    assert request["login"] == "Bearer s3cret"
    two_lines = "m,c=${topic} n=${n}i 5\no,c=${topic} text=${text} 5"
    rows = some_rows(3, lambda number: {"text": "a"})
    for number, at in ((1, 0), (2, 0), (3, 1), (6, 2)):
        result, _ = asked(web.Response(status=400, text=answer.replace('number":2', f'number":{number}')), rows, two_lines, **login)
        assert [one.at for one in result] == [at]


@pytest.mark.parametrize(
    ("status", "text", "kind", "said"),
    [
        (500, '{"error":"timeout s3cret"}', ConnectorError, "the server answers with status 500"),
        (503, "", ConnectorError, "the server answers with status 503"),
        (429, "", ConnectorError, "the server answers with status 429"),
        (301, "", ConnectorError, "the server answers with status 301"),
        (413, "", Refused, "the server rejects the size of the request"),
        (400, "s3cret", Refused, "the server rejects the line with status 400"),
        (200, '{"error":"partial write"}', Refused, "the server rejects the line with status 200"),
    ],
)
def test_other_answers(status: int, text: str, kind: type[Exception], said: str) -> None:
    result, _ = asked(web.Response(status=status, text=text), some_rows(2))
    assert isinstance(result, kind) and str(result).endswith(said)


def test_the_page(port: int) -> None:
    server, action = settings_of("sink-influxdb.md", "influxdb")
    over = connector(**server | {"server": f"127.0.0.1:{port}", "username": "", "password": ""})
    one = make(InfluxdbAction.model_validate(action), over, "influxdb:readings")
    values = {"clientid": "c", "temp": 21.5, "count": 3, "timestamp": AT_MS}
    run(deliver(one, some_rows(1, lambda number: values)), over)
    point = {"_name": "readings", "time": AT_MS, "device": "c", "topic": "t/0", "temp": 21.5, "count": 3}
    assert influx(port, "SELECT * FROM readings") == [point]
