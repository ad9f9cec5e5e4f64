"""The driver of MongoDB against mongo-java-server, which speaks its protocol; documents are read back by pymongo."""

import datetime
from collections.abc import Iterator
from typing import Any

import bson
import pymongo
import pymongo.errors
import pytest

from shardbroker.config.sinks.mongodb import MongodbAction, MongodbConnector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.mongodb import Mongodb
from shardbroker.flows.drivers.mongodb import connect, make
from shardbroker.flows.sinks.driver import Driver, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.dates import MongoDate
from tests.flows.drivers.delivery import Outage, deliver, opened, run, some_rows
from tests.flows.drivers.pages import settings_of
from tests.servers.mongodb import mongodb_server

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 2.0


def connector(port: int = 1, **more: Any) -> Mongodb:
    settings = {"server": f"127.0.0.1:{port}", "timeout": TIMEOUT_S, **more}
    return connect(MongodbConnector.model_validate(settings), "connectors.mongodb.x")


def driver(over: Mongodb, template: str = "", collection: str = "rows") -> Driver:
    parameters = {"collection": collection, "payload_template": template}
    return make(MongodbAction.model_validate({"parameters": parameters}), over, "mongodb:x")


def row(id: str = "1F", position: int = 5, **values: Any) -> Row:
    return Row("0", position, "c", values, id, "n1")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with mongodb_server() as server:
        yield server.port


@pytest.fixture
def database(port: int) -> Iterator[Any]:
    with pymongo.MongoClient("127.0.0.1", port) as client:
        client.drop_database("mqtt")
        yield client.mqtt


def write(port: int, rows: list[Row], template: str = "", collection: str = "rows") -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = await opened(driver(over, template, collection))
        return sorted(tuple(failure) for failure in await one.write(rows))

    over = connector(port)
    return run(scenario(), over)  # type: ignore[no-any-return]


def test_a_row_as_a_document_keeps_its_types(port: int, database: Any) -> None:
    values: dict[str, Any] = {
        "int": 2**31 - 1, "long": -(2**63), "float": 1.0, "yes": True, "none": None, "text": "grün 𝄞", "bytes": b"\xff\x00",
        "map": {"a": [1, {"b": 2.5}], "": 1}, "at": MongoDate.of(1_700_000_000_123), "far": MongoDate.of(-(10**13)),
    }  # fmt: skip
    assert write(port, [row(**values)]) == []
    options = bson.codec_options.CodecOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_AUTO)
    (found,) = database.rows.with_options(options).find()
    assert found == {**values, "_id": "1F", "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 123000), "far": found["far"]}
    assert [type(found[name]) for name in ("int", "long", "float", "bytes")] == [int, bson.Int64, float, bytes]
    assert int(found["far"].timestamp() * 1000) == -(10**13) or found["far"] == bson.datetime_ms.DatetimeMS(-(10**13))


def test_a_template_keeps_types_without_quotes_and_makes_text_within(port: int, database: Any) -> None:
    template = """{"t": "${topic}", "n": ${n}, "shown": "${n} of ${all.0}", 
        "fixed": {"a": [1, 2.5, null, true, "x"], "${topic}": ${n}},
        "nested": ${payload}, "raw": "${raw}", "deep": ${payload.a.b}, "gone": ${gone}, "gone text": "${gone}", "word": ${word},
        "quoted \\"${topic}\\"": "\\u00fc\\n"}"""
    values = {"topic": "a/b", "n": 7, "payload": '{"a": {"b": [1.5]}}', "raw": b"\x00\xff", "word": "no JSON"}
    assert write(port, [row(**values)], template) == []
    (found,) = database.rows.find()
    assert found == {
        "_id": "1F", "t": "a/b", "n": 7, "shown": "7 of undefined", "fixed": {"a": [1, 2.5, None, True, "x"], "a/b": 7},
        "nested": {"a": {"b": [1.5]}}, "raw": b"\x00\xff", "deep": [1.5], "gone": None, "gone text": "undefined", "word": "no JSON",
        'quoted "a/b"': "ü\n",
    }  # fmt: skip


HOSTILE = ['"}, "admin": true, {"x": "', "${topic}", "\\", '\\"', "$where", "\x00", "{$gt: ''}", "\ue000b0\ue001", "\n", ""]


def test_texts_of_clients_stay_texts(port: int, database: Any) -> None:
    rows = [row(f"{at}", text=text) for at, text in enumerate(HOSTILE)]
    assert write(port, rows, '{"text": "${text}", "within": "<${text}>", "bare": ${text}}') == []
    for at, text in enumerate(HOSTILE):
        found = database.rows.find_one({"_id": str(at)})
        assert found == {"_id": str(at), "text": text, "within": f"<{text}>", "bare": text}


def test_operators_in_documents_are_data(port: int, database: Any) -> None:
    payload = {"$where": "sleep(1000)", "a.b": 1, "$set": {"$inc": 1}, "x": {"$ne": None}}
    assert write(port, [row(payload=payload)]) == []
    assert database.rows.find_one()["payload"] == payload


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"n": 2**63}, "an integer has more than 64 bits"),
        ({"m": {"a\x00b": 1}}, "a key or a value is not possible in BSON"),
        ({"m": {1: 1}}, "a key or a value is not possible in BSON"),
        ({"text": "\ud800"}, "a key or a value is not possible in BSON"),
        ({"text": "x" * (16 << 20)}, "the document is larger than 16777216 bytes"),
    ],
)
def test_what_bson_does_not_have_fails_alone(port: int, database: Any, values: dict[str, Any], reason: str) -> None:
    assert write(port, [row("1", a=1), row("2", **values), row("3", a=2)]) == [(1, reason, False)]
    assert [one["_id"] for one in database.rows.find()] == ["1", "3"]


def test_a_document_that_is_too_deep_fails_alone(port: int, database: Any) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert write(port, [row("1", x=deep), row("2", x=[[1]])]) == [(0, "the document has more than 100 levels", False)]
    assert [one["_id"] for one in database.rows.find()] == ["2"]
    while type(deep) is list:  # else its end would be recursive
        deep = deep[0]


def test_collections_by_template(port: int, database: Any) -> None:
    names = ["a", "b", "x$y", "", "system.users", ".x", "x.", "a..b", "a\x00", "z" * 300, "ok.deep"]
    rows = [row(str(at), name=name) for at, name in enumerate(names)]
    failures = write(port, rows, collection="${name}")
    wrong = "the name of the collection is not allowed"
    assert failures == [
        *((at, wrong, False) for at in range(2, 9)),
        (9, "the name of the collection is longer than 200 bytes", False),
    ]
    assert sorted(database.list_collection_names()) == ["a", "b", "ok.deep"]
    assert write(port, [row(topic="a/b")], collection="t_${topic}") == []
    assert database["t_a/b"].count_documents({}) == 1


def test_repeats_change_nothing_and_rows_of_one_message_are_all_there(port: int, database: Any) -> None:
    rows = [row("A", n=1), row("A", n=2), row("A", n=3), row("B", n=1), row("B", other="rule"), row("", 7, n=1), row("", 8, n=1)]
    for _ in range(3):
        assert write(port, rows) == []
        assert write(port, rows[1:3] + rows[4:]) == []
    found = list(database.rows.find())
    assert len(found) == len(rows)
    ids = [one["_id"] for one in found]
    assert {"A", "B", "n1/0/7", "n1/0/8"} <= set(ids)
    assert sum(one.startswith("A-") and len(one) == 18 for one in ids) == 2


def test_an_id_of_the_template(port: int, database: Any) -> None:
    rows = [row("1", device="d1", n=1), row("2", device="d2", n=2), row("3", device="d1", n=3)]
    assert write(port, rows, '{"_id": "${device}", "n": ${n}}') == []
    assert {one["_id"]: one["n"] for one in database.rows.find()} == {"d1": 1, "d2": 2}


def test_poison_among_ten_thousand(port: int, database: Any) -> None:
    database.rows.create_index("key", unique=True)
    rows = some_rows(10_000, lambda number: {"key": 3 if number == 7_777 else number})

    async def scenario() -> Any:
        return await deliver(await opened(driver(over)), rows)

    over = connector(port)
    done = run(scenario(), over)
    reason = "another document has the same key of a unique index"
    assert [(one.values["n"], text) for one, text in done.failed] == [(7_777, reason)]
    assert not done.attempts
    assert sorted(one["n"] for one in database.rows.find()) == [number for number in range(10_000) if number != 7_777]
    again = run(deliver(driver(second := connector(port)), rows), second)
    assert [one.values["n"] for one, _ in again.failed] == [7_777] and database.rows.count_documents({}) == 9_999


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', '{"a": ${b} ${c}}', '{"a": NaN}', '{"a": "\ue000"}', "${.}"])
def test_templates_that_cannot_work(text: str) -> None:
    with pytest.raises(ValueError, match=r"^mongodb:x: parameters.payload_template: must"):
        driver(connector(), text)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"server": "127.0.0.1:1"}, "127.0.0.1:1: connection refused"),
        ({"server": "no-such-host.invalid:1"}, "no-such-host.invalid:1: the name of the server cannot be resolved"),
        ({"mongo_type": "sharded", "servers": "127.0.0.1:1"}, "127.0.0.1:1: connection refused"),
    ],
)
def test_a_probe_says_what_is_wrong(settings: dict[str, Any], text: str) -> None:
    over = connector(**settings)
    with pytest.raises(ConnectorError) as raised:
        run(over.probe(), over)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"server": ""}, "connectors.mongodb.x.server: must be HOST:PORT, got ''"),
        ({"mongo_type": "rs"}, "connectors.mongodb.x.servers: must be a list of HOST:PORT, got []"),
        (
            {"mongo_type": "rs", "servers": "a:1"},
            "connectors.mongodb.x.replica_set_name: must be the name of a replica set, got ''",
        ),
    ],
)
def test_settings_that_can_never_work(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConnectionSettingError) as raised:
        connector(**settings)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (pymongo.errors.OperationFailure("user s3cret", 18), Unusable, "127.0.0.1:1: the server rejects username or password"),
        (pymongo.errors.OperationFailure("s3cret", 13), Unusable, "127.0.0.1:1: the user may not write to the database 'mqtt'"),
        (pymongo.errors.OperationFailure("s3cret", 2), Refused, "MongoDB error 2"),
        (pymongo.errors.OperationFailure("s3cret", 91), ConnectorError, "127.0.0.1:1: MongoDB error 91"),
        (pymongo.errors.NotPrimaryError("s3cret"), ConnectorError, "127.0.0.1:1: the server is not the primary"),
        (pymongo.errors.NetworkTimeout("s3cret"), ConnectorError, "127.0.0.1:1: no response in time"),
    ],
)
def test_errors_that_the_stand_in_does_not_have(error: Exception, kind: type[Exception], text: str) -> None:
    explained = connector().explained(error)  # type: ignore[attr-defined]
    assert type(explained) is kind and str(explained) == text


def test_a_server_that_stops_answering_loses_no_row_and_repeats_none() -> None:
    rows = some_rows(10_000)
    with mongodb_server() as server:
        over, outage = connector(server.port), Outage(3, server.pause, server.resume, 2 * TIMEOUT_S)

        async def scenario() -> Any:
            return await deliver(await opened(driver(over)), rows, after=outage)

        done = run(scenario(), over)
        outage.join()
        assert not done.failed and any("no response in time" in text for text in done.attempts), done.attempts
        with pymongo.MongoClient("127.0.0.1", server.port) as client:
            assert sorted(one["n"] for one in client.mqtt.rows.find()) == list(range(10_000))


def test_a_killed_server_gets_the_rows_that_it_has_not_answered() -> None:
    """The stand-in loses what it had."""
    rows = some_rows(10_000)
    with mongodb_server() as server:
        over, outage = connector(server.port), Outage(4, server.kill, server.start, 1.0)

        async def scenario() -> Any:
            return await deliver(await opened(driver(over)), rows, after=outage)

        done = run(scenario(), over)
        outage.join()
        assert not done.failed and done.attempts
        with pymongo.MongoClient("127.0.0.1", server.port) as client:
            assert sorted(one["n"] for one in client.mqtt.rows.find()) == list(range(5_000, 10_000))


def test_the_page(port: int, database: Any) -> None:
    server, action = settings_of("sink-mongodb.md", "mongodb")
    over = connector(**server | {"server": f"127.0.0.1:{port}", "username": "", "password": ""})
    one = make(MongodbAction.model_validate(action), over, "mongodb:readings")
    at = MongoDate.of(1_700_000_000_000)
    run(deliver(one, some_rows(1, lambda number: {"clientid": "c", "temp": 21.5, "at": at})), over)
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20)
    assert list(database.readings.find()) == [{"_id": "0" * 32, "device": "c", "temp": 21.5, "at": moment}]


OLDER = '{"clientid": "${clientid}", "at": {"$lte": ${at}}}'
STATE = '{"$set": {"state": ${state}, "at": ${at}}}'


def changed(port: int, rows: list[Row], **parameters: Any) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = await opened(make(MongodbAction.model_validate({"parameters": parameters}), over, "mongodb:x"))
        return sorted(tuple(failure) for failure in await one.write(rows))

    over = connector(port)
    found: list[tuple[int, str, bool]] = run(scenario(), over)
    return found


def states(*rows: tuple[str, int, int]) -> list[Row]:
    return [row(str(at), at, clientid=client, at=at, state=state) for client, at, state in rows]


def test_an_upsert_changes_a_document_unless_it_is_newer(port: int, database: Any) -> None:
    database.rows.create_index("clientid", unique=True)
    rows = states(("a", 1, 1), ("b", 2, 1), ("a", 5, 0), ("a", 3, 1), ("b", 2, 1), ("c", 1, 1))
    for _ in range(2):
        assert not changed(port, rows, collection="rows", operation="upsert", filter_template=OLDER, payload_template=STATE)
    found = {one["clientid"]: (one["state"], one["at"]) for one in database.rows.find()}
    assert found == {"a": (0, 5), "b": (1, 2), "c": (1, 1)}


def test_statements_are_carried_out_in_order_and_a_value_is_no_operator(port: int, database: Any) -> None:
    found = '{"clientid": "${clientid}"}'
    delete = {"operation": "delete", "collection": "rows", "filter_template": found}
    update = {"operation": "update", "collection": "rows", "filter_template": found, "payload_template": '{"$set": {"seen": 1}}'}
    rows = states(("a", 1, 1), ("b", 2, 1), ('{"$ne": ""}', 3, 0), ("b", 4, 0), ("b", 5, 1))
    rows[2].values["statement"] = rows[3].values["statement"] = "delete"
    rows.append(row("6", 6, clientid="a", statement="update"))
    parameters = {"collection": "rows", "operation": "upsert", "filter_template": found, "payload_template": STATE}
    assert not changed(port, rows, statements={"delete": delete, "update": update}, **parameters)
    assert sorted((one["clientid"], one["at"], one.get("seen")) for one in database.rows.find()) == [("a", 1, 1), ("b", 5, None)]


def test_a_change_that_fails_costs_no_other(port: int, database: Any) -> None:
    rows = [*states(("a", 1, 1)), row("2", 2, clientid="b", at=2**70, state=1), *states(("c", 3, 1))]
    failed = changed(port, rows, collection="rows", operation="upsert", filter_template=OLDER, payload_template=STATE)
    assert failed == [(1, "an integer has more than 64 bits", False)]
    assert sorted(one["clientid"] for one in database.rows.find()) == ["a", "c"]


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"operation": "upsert", "payload_template": STATE}, "parameters.filter_template: must be a JSON object"),
        ({"operation": "delete", "filter_template": OLDER, "payload_template": STATE}, "payload_template: must be empty"),
        ({"operation": "update", "filter_template": OLDER}, "parameters.payload_template: must be operators"),
        ({"filter_template": OLDER}, "parameters.filter_template: must be empty with operation = insert"),
        ({"statements": {"x": {"operation": "delete"}}}, r"parameters.statements.x.filter_template: must be a JSON object"),
    ],
)
def test_templates_that_do_not_fit_the_operation_are_named(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make(MongodbAction.model_validate({"parameters": parameters}), connector(), "mongodb:x")
