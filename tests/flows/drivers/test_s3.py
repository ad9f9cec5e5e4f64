"""The driver of S3 against moto_server, a stand-in; objects are read back by Amazon's own client."""

import csv
import gzip
import io
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from shardbroker.config.sinks.definition import from_emqx
from shardbroker.config.sinks.s3 import S3Action, S3Connector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.flows.drivers import s3 as s3_driver
from shardbroker.flows.drivers.s3 import connect, make
from shardbroker.flows.sinks.driver import Refused, Unusable
from shardbroker.flows.sinks.limits import Limits
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED
from tests.flows.drivers.delivery import deliver, opened, run, some_rows
from tests.flows.drivers.pages import settings_of
from tests.flows.sinks.service import Service
from tests.servers.s3 import ACCOUNT, BUCKET, objects, own_client, reject_accounts, s3_server

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 2.0
"""Where a server stops answering."""
PATIENT_S = 30.0
"""A first request also loads what the library knows of S3: seconds on a busy machine."""
ORIGIN = "0" * 32
FOLDER = f"rows/n1/{ORIGIN}/0"


def connector(port: int = 1, **more: Any) -> Any:
    settings = {"host": "127.0.0.1", "port": port, "tls": False, "timeout": PATIENT_S, **ACCOUNT, **more}
    return connect(S3Connector.model_validate(settings), "connectors.s3.x")


def driver(over: Any, key: str = "${k}", **more: Any) -> Any:
    made = make(S3Action.model_validate({"parameters": {"bucket": BUCKET, "key": key, **more}}), over, "s3:rows")
    if hasattr(made, "cursor_key"):
        made.cursor_key = f"{ORIGIN}/n1/s3:rows"
    return made


def aggregated(over: Any, **more: Any) -> Any:
    return driver(over, "", mode="aggregated", **more)


def row(key: object = "a", position: int = 5, number: int = 0, **values: Any) -> Row:
    return Row("0", position, "c", {"k": key, **values}, "1F", "n1", number=number)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as server:
        yield server.port


@pytest.fixture
def client(port: int) -> Any:
    found = own_client(port)
    for key in objects(found):
        found.delete_object(Bucket=BUCKET, Key=key)
    return found


def write(over: Any, one: Any, *batches: Sequence[Row]) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        await opened(one)
        return [tuple(failure) for rows in batches for failure in sorted(await one.write(rows))]

    return run(scenario(), over)  # type: ignore[no-any-return]


# --- direct -------------------------------------------------------------------------------------------------------------------


def test_an_object_for_each_row(port: int, client: Any) -> None:
    over = connector(port)
    values: dict[str, Any] = {"n": 2**60, "f": 0.1, "t": "grün", "b": b"\xff", "yes": True, "none": None, "m": {"a": [1]}}
    assert write(over, driver(over, "in/${k}.json"), [row("a/b", **values), row("c")]) == []
    found = objects(client)
    assert list(found) == ["in/a/b.json", "in/c.json"]
    assert json.loads(found["in/a/b.json"]) == {**values, "k": "a/b", "b": {"$bytes": "/w=="}}
    assert client.head_object(Bucket=BUCKET, Key="in/c.json")["ContentType"] == "application/json"


def test_an_object_is_sent_without_asking_before(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        over = connector(service.port)
        one = driver(over, "in/${k}.json")

        async def scenario() -> Any:
            return await one.write([row("a", n=1)])

        assert run(scenario(), over) == []
        (request,) = service.requests()
    assert request["path"].endswith("/in/a.json") and json.loads(request["body"]) == {"k": "a", "n": 1}
    assert "Expect" not in request["headers"]


def test_content_acl_and_compression(port: int, client: Any) -> None:
    over = connector(port)
    one = driver(over, content="<${n}> ${raw}", acl="public_read", compression="gzip")
    assert write(over, one, [row("x", n=1.5, raw=b"\xff\x00")]) == []
    assert gzip.decompress(objects(client)["x"]) == b"<1.5> \xff\x00"
    assert client.head_object(Bucket=BUCKET, Key="x")["ContentEncoding"] == "gzip"
    grants = client.get_object_acl(Bucket=BUCKET, Key="x")["Grants"]
    assert any("AllUsers" in one["Grantee"].get("URI", "") and one["Permission"] == "READ" for one in grants)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a b", "in/a%20b"),
        ("a\x00\n\x7f", "in/a%00%0A%7F"),
        ("%2e%2e/..x", "in/%252e%252e/..x"),
        ("\\..\\x?y#z&", "in/%5C..%5Cx%3Fy%23z%26"),
        ("ü", "in/%C3%BC"),
        (7, "in/7"),
        (UNDEFINED, "in/undefined"),
    ],
)
def test_values_in_keys_are_encoded(port: int, client: Any, key: object, found: str) -> None:
    over = connector(port)
    assert write(over, driver(over, "in/${k}"), [row(key)]) == []
    assert list(objects(client)) == [found]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("..", "the key has a part . or .., which programs resolve as a path"),
        ("a/../../b", "the key has a part . or .., which programs resolve as a path"),
        ("x" * 1025, "the key is longer than 1024 bytes"),
        ("ü" * 200, "the key is longer than 1024 bytes"),
        ("", "the key is empty"),
        ("\ud800", "a value of the key cannot be written as text"),
    ],
)
def test_keys_that_are_not_possible_fail_alone(port: int, client: Any, key: str, reason: str) -> None:
    over = connector(port)
    assert write(over, driver(over), [row("1"), row(key), row("3")]) == [(1, reason, False)]
    assert list(objects(client)) == ["1", "3"]


def test_content_that_is_not_possible_fails_alone(port: int, client: Any) -> None:
    over = connector(port)
    rows = [row("1"), row("2", n=float("nan")), row("3", t="x" * (16 << 20)), row("4")]
    assert write(over, driver(over), rows) in (
        [(1, "a value cannot be written as text", False), (2, "the object is larger than 16777216 bytes", False)],
        [(2, "the object is larger than 16777216 bytes", False)],  # orjson writes null
    )
    assert {"1", "4"} <= set(objects(client))


def test_the_last_row_of_a_key_wins(port: int, client: Any) -> None:
    over = connector(port)
    assert write(over, driver(over), [row(str(number % 3), n=number) for number in range(50)]) == []
    assert [json.loads(one)["n"] for one in objects(client).values()] == [48, 49, 47]


def test_poison_among_many(port: int, client: Any) -> None:
    over = connector(port)
    rows = some_rows(1_000, lambda number: {"k": ".." if number == 777 else str(number)})
    done = run(deliver(driver(over), rows), over)
    assert [one.values["n"] for one, _ in done.failed] == [777] and len(objects(client)) == 999


# --- aggregated ---------------------------------------------------------------------------------------------------------------


def lines(client: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for one in objects(client).values() for line in one.splitlines()]


def test_rows_of_a_journal_are_one_object(port: int, client: Any) -> None:
    over = connector(port)
    rows = [row("a", 5), row("b", 5, 1, b=b"\xff"), row("c", 9)]
    assert write(over, aggregated(over), rows) == []
    ((key, content),) = objects(client).items()
    assert key == f"{FOLDER}/00000000000000000009.00000000-00000000000000000005.00000000.jsonl"
    assert [json.loads(one) for one in content.splitlines()] == [
        {"position": "n1/0/5", "k": "a"},
        {"position": "n1/0/5", "k": "b", "b": {"$bytes": "/w=="}},
        {"position": "n1/0/9", "k": "c"},
    ]


def test_csv_by_rfc_4180(port: int, client: Any) -> None:
    over = connector(port)
    container = {"type": "csv", "column_order": ["k", "t", "n", "gone", "m", "b", 'a "b"']}
    values = {"t": 'a, "b"\r\nc', "n": 1.5, "m": {"a": 1}, "b": b"\xff", 'a "b"': None}
    assert write(over, aggregated(over, container=container, compression="gzip"), [row("x", **values), row("y", 6)]) == []
    ((key, content),) = objects(client).items()
    assert key.endswith(".csv.gz")
    text = gzip.decompress(content).decode()
    assert text.startswith('k,t,n,gone,m,b,"a ""b"""\r\nx,"a, ""b""\r\nc",1.5,,"{""a"":1}",/w==,\r\n')
    assert list(csv.reader(io.StringIO(text, newline="")))[2] == ["y", *[""] * 6]


def test_rows_that_are_written_again_are_there_once_whatever_the_batches(port: int, client: Any) -> None:
    rows = [row(str(number), 100 + number // 3, number % 3) for number in range(90)]
    for batches in ([rows[:40], rows[40:50]], [rows[:45]], [rows[30:60]], [rows[33:90]], [rows]):
        over = connector(port)
        assert write(over, aggregated(over), *batches) == []
    assert [int(one["k"]) for one in lines(client)] == list(range(90))


def test_a_row_that_has_failed_fails_again_though_later_ones_are_there(port: int, client: Any) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    rows = [row("1", 1), row("2", 2, d=deep), row("3", 3)]
    for begin in (0, 1):
        over = connector(port)
        assert write(over, aggregated(over), rows[begin:]) == [(1 - begin, "a value cannot be written as text", False)]
    assert [one["k"] for one in lines(client)] == ["1", "3"]
    while deep:  # else its end would be recursive
        deep = deep[0]


def test_objects_have_a_bound(port: int, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_driver, "OBJECT_MAX", 1000)
    over = connector(port)
    rows = [row(str(number), number, t="x" * (2000 if number == 5 else 100)) for number in range(20)]
    assert write(over, aggregated(over), rows) == [(5, "the line is larger than an object of 1000 bytes", False)]
    found = objects(client)
    assert len(found) == 3 and all(len(one) <= 1000 for one in found.values())
    assert [int(one["k"]) for one in lines(client)] == [number for number in range(20) if number != 5]


def test_another_data_directory_or_node_has_names_of_its_own(port: int, client: Any) -> None:
    for key in (f"{ORIGIN}/n1/s3:rows", f"{'1' * 32}/n1/s3:rows", f"{ORIGIN}/../s3:rows"):
        over = connector(port)
        one = driver(over, "plant 1/${node}/${action}", mode="aggregated")
        one.cursor_key = key
        if "/../" in key:
            with pytest.raises(ValueError, match=r"a part \. or \.\."):
                write(over, one, [row()])
        else:
            assert write(over, one, [row()]) == []
    assert [one.split("/")[:4] for one in objects(client)] == [["plant 1", "n1", "rows", "n1"]] * 2


def test_limits_of_aggregation() -> None:
    one = aggregated(connector(), aggregation={"time_interval": "1m", "max_records": 50_000, "max_bytes": "32MB"})
    found = one.limits(Limits(by_journal=True))
    assert (found.batch_size, found.batch_bytes, found.batch_time_s) == (50_000, 32 << 20, 60.0)
    assert (found.buffer_records, found.buffer_bytes, found.by_journal) == (100_000, 64 << 20, True)


# --- settings and probes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"bucket": ""}, "s3:rows: parameters.bucket: must be the name of a bucket, got ''"),
        ({"key": ""}, "s3:rows: parameters.key: must be a template such as ${clientid}/${id}.json, got ''"),
        ({"key": "a\nb"}, "s3:rows: parameters.key: must have no control characters"),
        (
            {"key": "${clientid}/x", "mode": "aggregated"},
            "s3:rows: parameters.key: "
            "must have the placeholders ${action} and ${node} only with mode = aggregated, got '${clientid}'",
        ),
        (
            {"key": "a/../b", "mode": "aggregated"},
            "s3:rows: parameters.key: the key has a part . or .., which programs resolve as a path",
        ),
        (
            {"mode": "aggregated", "container": {"type": "csv"}},
            "s3:rows: parameters.container.column_order: must be a list of fields of the row with csv, got []",
        ),
    ],
)
def test_parameters_that_cannot_work(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as raised:
        driver(connector(), **{"key": "rows", **parameters})
    assert str(raised.value) == text


@pytest.mark.parametrize("name", ["access_key_id", "secret_access_key"])
def test_settings_that_can_never_work(name: str) -> None:
    with pytest.raises(ConnectionSettingError) as raised:
        connector(**{name: "s3cret\n"})
    assert str(raised.value) == f"connectors.s3.x.{name}: must be text of printable ASCII, got 'other text'"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"port": 1}, "127.0.0.1:1: connection refused"),
        ({"host": "no-such-host.invalid"}, "no-such-host.invalid:PORT: the name of the server cannot be resolved"),
        ({}, ""),
    ],
)
def test_a_probe_says_what_is_wrong(port: int, settings: dict[str, Any], text: str) -> None:
    over = connector(**{"port": port, **settings})
    if not text:
        run(over.probe(), over)
        return
    with pytest.raises(ConnectorError) as raised:
        run(over.probe(), over)
    assert str(raised.value) == text.replace("PORT", str(port)) == over.health.last_error


@pytest.mark.parametrize("mode", ["direct", "aggregated"])
def test_a_bucket_that_is_not_there(port: int, client: Any, mode: str) -> None:
    over = connector(port)
    with pytest.raises(Unusable) as raised:
        run(driver(over, "rows", mode=mode, bucket="other").open(), over)
    assert str(raised.value) == f"127.0.0.1:{port}: there is no bucket 'other'"


def test_a_wrong_account() -> None:
    with s3_server() as server:
        reject_accounts(server.port)
        for call in (lambda over: over.probe(), lambda over: driver(over).open()):
            over = connector(server.port)
            with pytest.raises(Unusable) as raised:
                run(call(over), over)
            assert str(raised.value) == f"127.0.0.1:{server.port}: the server rejects access_key_id or secret_access_key"


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("SignatureDoesNotMatch", Unusable, "x: the server rejects access_key_id or secret_access_key"),
        ("RequestTimeTooSkewed", Unusable, "x: the clock of this machine differs from that of the server"),
        ("PermanentRedirect", Unusable, "x: the bucket 'b' is not in the region 'us-east-1' or not at this server"),
        ("AccessDenied", Unusable, "x: the account has no right for s3:PutObject of the bucket 'b'"),
        ("SlowDown", ConnectorError, "x: S3 error SlowDown"),
        ("KeyTooLongError", Refused, "the server rejects the object: KeyTooLongError"),
    ],
)
def test_errors_that_the_stand_in_does_not_have(code: str, kind: type[Exception], text: str) -> None:
    over = connector()
    over.where = "x"
    explained = over.explained(ClientError({"Error": {"Code": code, "Message": "s3cret"}}, "PutObject"), "b", "s3:PutObject")
    assert type(explained) is kind and str(explained) == text


def test_definitions_of_emqx() -> None:
    given = {
        "host": "s3.example", "port": 9000, "access_key_id": "a", "secret_access_key": "b", "url_expire_time": "1h",
        "transport_options": {"connect_timeout": "15s", "pool_size": 4, "pool_type": "random", "max_retries": 3,
                              "ssl": {"enable": True, "verify": "verify_none"}},
        "resource_opts": {"health_check_interval": "15s"},
    }  # fmt: skip
    found = S3Connector.model_validate(from_emqx("connectors", "s3", given))
    assert (found.host, found.port, found.pool_size, found.tls, found.tls_verify) == ("s3.example", 9000, 4, True, False)
    action = {
        "connector": "x",
        "parameters": {"mode": "aggregated", "bucket": "b", "key": "${action}/${node}", "acl": "private", "min_part_size": "5MB",
                       "container": {"type": "csv", "column_order": ["a"]},
                       "aggregation": {"time_interval": "30s", "max_records": 100}},
    }  # fmt: skip
    assert S3Action.model_validate(from_emqx("actions", "s3", action)).parameters.aggregation.max_records == 100
    plain = from_emqx("connectors", "s3", {"transport_options": {"ssl": {"enable": False}}})
    assert S3Connector.model_validate(plain).tls is False


# --- servers that stop --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["direct", "aggregated"])
def test_a_server_that_stops_answering_loses_no_row_and_repeats_none(mode: str) -> None:
    rows, timers = some_rows(1_000, lambda number: {"k": str(number)}), []
    with s3_server() as server:
        over = connector(server.port, timeout=TIMEOUT_S)

        def after(batch: int) -> None:
            if batch == 3:
                server.pause()
                timers.append(threading.Timer(2 * TIMEOUT_S, server.resume))
                timers[0].start()

        one = driver(over, "${k}" if mode == "direct" else "rows", mode=mode)
        done = run(deliver(one, rows, 100, after), over)
        timers[0].join()
        assert not done.failed and any("no response in time" in text for text in done.attempts), done.attempts
        found = lines(own_client(server.port))
        assert sorted(line["n"] for line in found) == list(range(1_000))


@pytest.mark.parametrize("mode", ["direct", "aggregated"])
def test_a_killed_server_gets_the_rows_that_it_has_not_answered(mode: str) -> None:
    """The stand-in loses what it had."""
    rows, starts = some_rows(1_000, lambda number: {"k": str(number)}), []
    with s3_server() as server:
        over = connector(server.port)

        def after(batch: int) -> None:
            if batch == 4:
                server.kill()
                starts.append(threading.Timer(1.0, server.start))
                starts[0].start()

        one = driver(over, "${k}" if mode == "direct" else "rows", mode=mode)
        done = run(deliver(one, rows, 100, after), over)
        starts[0].join()
        assert not done.failed and done.attempts
        found = lines(own_client(server.port))
        assert sorted(line["n"] for line in found) == list(range(500, 1_000))


def test_the_page(port: int, client: Any) -> None:
    server, action = settings_of("sink-s3.md", "s3")
    local = {"host": "127.0.0.1", "port": port, "tls": False, **ACCOUNT}
    over = connector(port, **{name: value for name, value in server.items() if name not in local})
    action["parameters"]["bucket"] = BUCKET
    one = make(S3Action.model_validate(action), over, "s3:readings")
    one.cursor_key = f"{ORIGIN}/n1/s3:readings"
    run(deliver(one, some_rows(2, lambda number: {"clientid": "c", "temp": 21.5})), over)
    ((key, content),) = objects(client).items()
    assert key.startswith(f"sensors/readings/n1/{ORIGIN}/0/") and key.endswith(".jsonl.gz")
    assert [json.loads(line)["temp"] for line in gzip.decompress(content).splitlines()] == [21.5, 21.5]
