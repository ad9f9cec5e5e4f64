"""The driver of DynamoDB against DynamoDBLocal, Amazon's own; items are read back by Amazon's own client.

DynamoDBLocal checks no signature and always has capacity: a stand-in answers for those.
"""

import asyncio
import json
import threading
import tomllib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from shardbroker.config.sinks.dynamo import DynamoAction, DynamoConnector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.flows.drivers import dynamo
from shardbroker.flows.drivers.dynamo import connect, make
from shardbroker.flows.sinks.driver import Driver, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.dates import MongoDate
from shardbroker.rules.values import UNDEFINED
from tests.docs.pages import ROOT, Example, parts_of
from tests.flows.drivers.delivery import deliver, opened, run, some_rows
from tests.flows.drivers.pages import settings_of
from tests.harness.broker import free_port
from tests.servers.dynamodb import ACCOUNT, dynamodb_server, own_client, scanned

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 2.0
REGION = "eu-central-1"


def connector(port: int = 1, **more: Any) -> Any:
    settings = {"url": f"http://127.0.0.1:{port}", "region": REGION, "timeout": TIMEOUT_S, **ACCOUNT, **more}
    return connect(DynamoConnector.model_validate(settings), "connectors.dynamo.x")


def driver(over: Any, template: str = "", table: str = "rows", **more: Any) -> Driver:
    parameters = {"table": table, "template": template, **more}
    return make(DynamoAction.model_validate({"parameters": parameters}), over, "dynamo:x")


def row(key: object = "a", **values: Any) -> Row:
    return Row("0", 5, "c", {"k": key, **values}, "1F", "n1")


def make_table(client: Any, name: str = "rows", **kinds: str) -> None:
    """kinds: attribute -> type, the partition key first, the sort key second; `indexed` is the key of an index."""
    names = [one for one in kinds if one != "indexed"]
    schema = [{"AttributeName": one, "KeyType": kind} for one, kind in zip(names, ("HASH", "RANGE"), strict=False)]
    types = [{"AttributeName": one, "AttributeType": kind} for one, kind in kinds.items()]
    more: dict[str, Any] = {}
    if "indexed" in kinds:
        by = [{"AttributeName": "indexed", "KeyType": "HASH"}]
        more["GlobalSecondaryIndexes"] = [{"IndexName": "other", "KeySchema": by, "Projection": {"ProjectionType": "ALL"}}]
    client.create_table(TableName=name, KeySchema=schema, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST", **more)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with dynamodb_server() as server:
        yield server.port


@pytest.fixture
def client(port: int) -> Any:
    found = own_client(port)
    for name in found.list_tables()["TableNames"]:
        found.delete_table(TableName=name)
    make_table(found, k="S")
    return found


def write(port: int, rows: list[Row], template: str = "", table: str = "rows", **more: Any) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = await opened(driver(over, template, table, **more))
        return sorted(tuple(failure) for failure in await one.write(rows))

    over = connector(port)
    return run(scenario(), over)  # type: ignore[no-any-return]


def test_a_row_as_an_item_keeps_its_types(port: int, client: Any) -> None:
    values: dict[str, Any] = {
        "int": -(2**63), "long": 10**38 - 1, "zeros": 10**125, "float": 0.1, "small": -1.5e-120, "large": 1e22, "zero": -0.0,
        "yes": True, "no": False, "none": None, "text": "grün 𝄞\x00\x01", "empty": "", "bytes": b"\xff\x00", "no bytes": b"",
        "map": {"a": [1, {"b": 2.5}, "x", None, b"\x01", []], "c": {}}, "at": MongoDate.of(0), "gone": UNDEFINED,
    }  # fmt: skip
    assert write(port, [row(**values)]) == []
    (found,) = scanned(client, "rows")
    numbers = {name: Decimal(found.pop(name)["N"]) for name in ("int", "long", "zeros", "float", "small", "large", "zero")}
    assert numbers == {
        "int": -(2**63), "long": 10**38 - 1, "zeros": 10**125, "float": Decimal("0.1"), "small": Decimal("-1.5e-120"),
        "large": 10**22, "zero": 0,
    }  # fmt: skip
    assert float(numbers["float"]) == 0.1 and float(numbers["small"]) == -1.5e-120
    assert found == {
        "k": {"S": "a"}, "yes": {"BOOL": True}, "no": {"BOOL": False}, "none": {"NULL": True}, "text": {"S": "grün 𝄞\x00\x01"},
        "empty": {"S": ""}, "bytes": {"B": b"\xff\x00"}, "no bytes": {"B": b""}, "at": {"S": "ISODate(1970-01-01T00:00:00.000Z)"},
        "gone": {"S": "undefined"},
        "map": {"M": {"a": {"L": [{"N": "1"}, {"M": {"b": {"N": "2.5"}}}, {"S": "x"}, {"NULL": True}, {"B": b"\x01"}, {"L": []}]},
                      "c": {"M": {}}}},
    }  # fmt: skip


@pytest.mark.parametrize("as_null", [False, True])
def test_a_template_keeps_types_without_quotes_and_makes_text_within(port: int, client: Any, as_null: bool) -> None:
    template = '{"k": "${id}", "n": ${n}, "shown": "${n}!", "p": ${payload}, "gone": ${gone}, "word": "${gone}", "in": "<${gone}>"}'
    values = {"n": 7, "payload": '{"a": [1.5]}'}
    assert write(port, [row(**values)], template, undefined_vars_as_null=as_null) == []
    assert scanned(client, "rows") == [
        {
            "k": {"S": "1F"}, "n": {"N": "7"}, "shown": {"S": "7!"}, "p": {"M": {"a": {"L": [{"N": "1.5"}]}}},
            "gone": {"NULL": True}, "word": {"NULL": True} if as_null else {"S": "undefined"}, "in": {"S": "<undefined>"},
        }
    ]  # fmt: skip


HOSTILE = ['"}, "k": {"S": "', "${topic}", "\\", '\\"', "\x00", "attribute_exists(k)", ":v", "#n", "\n", " "]


def test_texts_of_clients_stay_texts(port: int, client: Any) -> None:
    rows = [row(text, text=text) for text in HOSTILE]
    assert write(port, rows, '{"k": "${k}", "text": "${text}", "${text}": "<${text}>"}') == []
    found = {one["k"]["S"]: one for one in scanned(client, "rows")}
    assert found == {text: {"k": {"S": text}, "text": {"S": text}, text: {"S": f"<{text}>"}} for text in HOSTILE}


DEEP: Any = "x"
for _ in range(32):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"k": 1}, "'k': must have the type S in this table, got N"),
        ({"k": ""}, "'k': must not be empty, as a part of a key"),
        ({"k": "x" * 2049}, "'k': the value is larger than 2048 bytes, as a part of the key"),
        ({"n": float("inf")}, "a number is infinite or none"),
        ({"n": 1e126}, "a number is outside of 1E-130 to 9.99E+125"),
        ({"n": -1e-131}, "a number is outside of 1E-130 to 9.99E+125"),
        ({"n": 10**38 + 1}, "an integer has more than 38 digits"),
        ({"n": 1 << 100_000}, "an integer is above 9.99E+125"),
        ({"m": {"": 1}}, "the name of an attribute is empty, or no text"),
        ({"m": {1: 1}}, "the name of an attribute is empty, or no text"),
        ({"t": "\ud800"}, "a text is no valid Unicode"),
        ({"t": "ü" * (200 << 10)}, "the item is larger than 409600 bytes"),
        ({"t": ["x"] * 250_000}, "the item is larger than 409600 bytes"),
        ({"d": DEEP}, "the item has more than 32 levels"),
    ],
)
def test_what_dynamodb_does_not_have_fails_alone(port: int, client: Any, values: dict[str, Any], reason: str) -> None:
    assert write(port, [row("1"), Row("0", 6, "c", {"k": "2", **values}), row("3", deep=DEEP[0])]) == [(1, reason, False)]
    assert sorted(one["k"]["S"] for one in scanned(client, "rows")) == ["1", "3"]


def test_a_row_without_the_key_of_the_table_fails_alone(port: int, client: Any) -> None:
    make_table(client, "pairs", device="S", at="N", indexed="S")
    rows = [
        Row("0", number, "c", values)
        for number, values in enumerate(
            [
                {"device": "d", "at": 1},
                {"device": "d"},
                {"device": "d", "at": "2"},
                {"device": "d", "at": 3, "indexed": 3},
                {"device": "d", "at": 4, "indexed": ""},
                {"device": "d", "at": 5, "indexed": "i"},
                {"at": 1},
            ]
        )
    ]
    assert write(port, rows, table="pairs") == [
        (1, "the item has no 'at', which is part of the key of the table", False),
        (2, "'at': must have the type N in this table, got S", False),
        (3, "'indexed': must have the type S in this table, got N", False),
        (4, "'indexed': must not be empty, as a part of a key", False),
        (6, "the item has no 'device', which is part of the key of the table", False),
    ]
    assert sorted(one["at"]["N"] for one in scanned(client, "pairs")) == ["1", "5"]


def test_the_last_row_of_a_key_wins_within_a_batch(port: int, client: Any) -> None:
    make_table(client, "numbers", k="N")
    rows = [Row("0", number, "c", {"k": number % 7 if number % 2 else float(number % 7), "n": number}) for number in range(500)]
    for _ in range(2):
        assert write(port, rows, table="numbers") == []
        found = {int(one["k"]["N"]): int(one["n"]["N"]) for one in scanned(client, "numbers")}
        assert found == {number % 7: number for number in range(493, 500)}


def test_what_only_the_server_rejects_is_found_alone(port: int, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbroker.flows.drivers.dynamo_items.ITEM_MAX", 10 << 20)
    rows = [row(str(number), text="x" * (410 << 10) if number in (3, 77) else "") for number in range(100)]
    reason = "the server rejects the item: it is larger than allowed"
    assert write(port, rows) == [(3, reason, False), (77, reason, False)]
    assert len(scanned(client, "rows")) == 98


def test_large_items_are_in_requests_that_are_small_enough(port: int, client: Any) -> None:
    rows = [row(str(number), text="\x01" * (390 << 10)) for number in range(12)]
    assert write(port, rows) == []
    assert len(scanned(client, "rows")) == 12


def test_poison_among_ten_thousand(port: int, client: Any) -> None:
    rows = some_rows(10_000, lambda number: {"k": 3 if number == 7_777 else str(number)})

    async def scenario() -> Any:
        return await deliver(await opened(driver(over)), rows)

    over = connector(port)
    done = run(scenario(), over)
    assert [(one.values["n"], text) for one, text in done.failed] == [(7_777, "'k': must have the type S in this table, got N")]
    assert not done.attempts and len(scanned(client, "rows")) == 9_999


# --- settings and probes ------------------------------------------------------------------------------------------------------


NEWER = "attribute_not_exists(#k) OR #at <= ${at}"
TIMED = '{"k": "${k}", "at": ${at}, "v": "${v}"}'


def kept(client: Any) -> set[tuple[str, str, str]]:
    return {(one["k"]["S"], one["at"]["N"], one["v"]["S"]) for one in scanned(client, "rows")}


def test_a_condition_keeps_back_old_rows_and_is_no_failure(port: int, client: Any) -> None:
    rows = [row(k, at=at, v=f"{k}{at}") for k, at in (("a", 2), ("a", 1), ("b", 1), ("a", 3), ("b", 1), ("c", 1))]
    rows += [row("a", at=[4], v=""), row("", at=1, v=""), row("a", at="4", v="text")]
    for _ in range(2):
        failed = write(port, rows, TIMED, condition=NEWER)
        assert failed == [
            (6, "the server rejects the item: it is not valid", False),
            (7, "'k': must not be empty, as a part of a key", False),
        ]
        assert kept(client) == {("a", "3", "a3"), ("b", "1", "b1"), ("c", "1", "c1")}


def test_a_row_chooses_a_statement_in_order(port: int, client: Any) -> None:
    make_table(client, "others", k="S")
    delete = {"operation": "delete", "table": "rows", "template": '{"k": "${k}"}', "condition": "#at <= ${at}"}
    other = {"table": "others", "template": '{"k": "${k}"}'}
    rows = [row(k, at=at, v="v") for k, at in (("a", 1), ("b", 1), ("a", 2), ("b", 0), ("a", 3), ("c", 1), ("none", 1))]
    for at in (2, 3, 6):
        rows[at].values["statement"] = "delete"
    rows += [row("o", statement="other"), row("x", at=1, statement="gone")]
    failed = write(port, rows, TIMED, statements={"delete": delete, "other": other})
    assert failed == [(8, "statement: must be one of parameters.statements, got another text", False)]
    assert kept(client) == {("a", "3", "v"), ("b", "1", "v"), ("c", "1", "v")}
    assert [one["k"]["S"] for one in scanned(client, "others")] == ["o"]


def test_each_item_that_an_index_has_is_changed(port: int, client: Any) -> None:
    make_table(client, "many", k="S", indexed="S")
    large = "x" * 300_000  # a page has 1 MB
    items = [(f"{at}", "n1" if at % 2 else "n2", at) for at in range(16)]
    for k, indexed, at in items:
        item = {"k": {"S": k}, "indexed": {"S": indexed}, "at": {"N": f"{at}"}, "large": {"S": large}, "half": {"N": "0.5"}}
        client.put_item(TableName="many", Item=item)
    template = '{"k": "${k}", "indexed": "${indexed}", "at": ${at}, "large": "${large}", "half": ${half}, "now": ${now}}'
    more = {"table": "many", "index": "other", "filter": "#at < ${most}", "condition": "#at <> ${at} OR #at > ${least}"}
    values = {"indexed": "n1", "now": 7, "most": 12, "least": 3}
    rows = [Row("0", 5, "c", values, "1F", "n1"), row(indexed="none", most=1, least=1)]
    assert write(port, rows, template, **more) == []
    found = {one["k"]["S"]: one for one in scanned(client, "many")}
    assert {k for k, one in found.items() if "now" in one} == {"5", "7", "9", "11"}
    assert found["5"]["half"] == {"N": "0.5"} and found["5"]["large"] == {"S": large}
    with pytest.raises(Unusable, match=r"the table 'many' has no index 'gone' with a partition key alone"):
        write(port, rows, template, **{**more, "index": "gone"})


@pytest.mark.parametrize("part", ["condition", "filter"])
def test_a_condition_that_the_server_rejects_has_rows_wait(port: int, client: Any, part: str) -> None:
    make_table(client, "many", k="S", indexed="S")
    client.put_item(TableName="many", Item={"k": {"S": "a"}, "indexed": {"S": "a"}})
    with pytest.raises(Unusable, match="the server rejects a condition of the action, or its filter"):
        write(port, [row(indexed="a")], "", table="many", index="other", **{part: "#a <="})


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"condition": "#a < :x"}, "dynamo:x: parameters.condition: must have placeholders such as ${at} for values, got a colon"),
        ({"index": "i", "filter": ":"}, "dynamo:x: parameters.filter: must have placeholders such as ${at} for values, got a"),
        ({"filter": "#a < ${x}"}, "dynamo:x: parameters.filter: must be empty without dynamo:x: parameters.index"),
        ({"statements": {"y": {"table": "/"}}}, "dynamo:x: parameters.statements.y.table: must be 3 to 255 letters"),
        ({"statements": {"y": {"table": "rows", "template": "["}}}, "dynamo:x: parameters.statements.y.template: must"),
    ],
)
def test_statements_that_cannot_work(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as raised:
        driver(connector(), **parameters)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize("is_first", [True, False])
def test_changes_that_the_table_has_no_capacity_for_are_made_again(monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    """Every second request is refused, or all up to the fourth attempt."""
    monkeypatch.setattr(dynamo, "PAUSES_S", (0.001,) * 2)
    written: list[int] = []
    requests = 0

    def answer(request: web.Request, action: str, payload: Any) -> tuple[int, Any]:
        nonlocal requests
        if action == "DescribeTable":
            return 200, {"Table": TABLE}
        assert action == "PutItem" and payload["ExpressionAttributeNames"] == {"#k": "k", "#at": "at"}
        requests += 1
        if (requests < 16 if is_first else requests % 2):
            return 400, {"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "s3cret"}
        written.append(int(payload["Item"]["at"]["N"]))
        return 200, {}

    rows = [Row("0", number, "c", {"k": "a", "at": number, "v": ""}) for number in range(20)]
    done = standing_in(answer, lambda over: deliver(driver(over, TIMED, condition=NEWER), rows))
    assert not done.failed and written == list(range(20))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"url": "http://127.0.0.1:1"}, "127.0.0.1:1: connection refused"),
        ({"url": "http://no-such-host.invalid"}, "no-such-host.invalid: the name of the server cannot be resolved"),
        ({"aws_access_key_id": "a-b!"}, "127.0.0.1:PORT: the server rejects aws_access_key_id or aws_secret_access_key"),
        ({}, ""),
    ],
)
def test_a_probe_says_what_is_wrong(port: int, settings: dict[str, Any], text: str) -> None:
    over = connector(port, **settings)
    if not text:
        run(over.probe(), over)
        return
    with pytest.raises(ConnectorError) as raised:
        run(over.probe(), over)
    assert str(raised.value) == text.replace("PORT", str(port)) == over.health.last_error


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"table": "none"}, "127.0.0.1:PORT: the table 'none' is not there, in the region 'eu-central-1'"),
        ({"hash_key": "other"}, "parameters.hash_key: must be that of the table 'rows', which is 'k', got 'other'"),
        ({"range_key": "k"}, "parameters.range_key: must be that of the table 'rows', which is none, got 'k'"),
        ({"hash_key": "k"}, ""),
    ],
)
def test_an_action_on_the_wrong_table(port: int, client: Any, parameters: dict[str, str], text: str) -> None:
    over = connector(port)
    one = driver(over, **parameters)
    if not text:
        run(one.probe(), over)
        return
    with pytest.raises(Unusable) as raised:
        run(one.open(), over)
    assert str(raised.value) == text.replace("PORT", str(port))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"url": "http://127.0.0.1:1/x"},
            "x.url: must be http://HOST:PORT or https://HOST:PORT, without a path, got 'http://127.0.0.1:1/x'",
        ),
        ({"region": ""}, "x.region: must be the name of a region, such as eu-central-1, got ''"),
        ({"aws_access_key_id": ""}, "x.aws_access_key_id: must be text of printable ASCII, got ''"),
        ({"aws_secret_access_key": "s3cret\n"}, "x.aws_secret_access_key: must be text of printable ASCII, got 'other text'"),
    ],
)
def test_settings_that_can_never_work(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConnectionSettingError) as raised:
        connector(**settings)
    assert str(raised.value) == f"connectors.dynamo.{text}"


def test_the_region_and_the_server_of_each_other() -> None:
    by_region = connector(url="", region="eu-west-3")
    assert by_region.where == "dynamodb.eu-west-3.amazonaws.com"
    by_url = connector(url="https://dynamodb.us-east-2.amazonaws.com", region="")
    assert by_url.region == "us-east-2"


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": NaN}'])
def test_templates_that_cannot_work(text: str) -> None:
    with pytest.raises(ValueError, match=r"^dynamo:x: parameters.template: must"):
        driver(connector(), text)


def test_a_name_that_no_table_can_have() -> None:
    with pytest.raises(ValueError, match=r"^dynamo:x: parameters.table: must be 3 to 255 letters, digits, _, \. and -, got 'a/b'"):
        driver(connector(), table="a/b")


# --- a stand-in for answers that DynamoDBLocal does not give ------------------------------------------------------------------

Answer = Callable[[web.Request, str, dict[str, Any]], tuple[int, Any]]
TABLE = {
    "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
    "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
}


async def _standing_in(answer: Answer, scenario: Callable[[int], Any]) -> Any:
    async def handle(request: web.Request) -> web.Response:
        action = request.headers["X-Amz-Target"].rpartition(".")[2]
        body = await request.read()
        status, found = answer(request, action, json.loads(body))
        return web.Response(status=status, body=found if isinstance(found, bytes) else json.dumps(found).encode())

    application = web.Application(client_max_size=32 << 20)
    application.router.add_post("/", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        return await scenario(port)
    finally:
        await runner.cleanup()


def standing_in(answer: Answer, scenario: Callable[[Any], Any]) -> Any:
    """Runs a scenario with a connector to a server with these answers."""

    async def connected(port: int) -> Any:
        over = connector(port)
        try:
            return await scenario(over)
        finally:
            await over.close()

    return asyncio.run(_standing_in(answer, connected))


def test_requests_are_signed_as_by_amazons_own_client() -> None:
    seen: list[tuple[Any, bytes]] = []

    def answer(request: web.Request, action: str, payload: Any) -> tuple[int, Any]:
        seen.append((request.headers.copy(), json.dumps(payload, separators=(",", ":")).encode()))
        return 200, {"TableNames": []}

    standing_in(answer, lambda over: over.probe())
    ((headers, body),) = seen
    request = AWSRequest("POST", f"http://{headers['Host']}/", data=body)
    for name in ("Content-Type", "X-Amz-Date", "X-Amz-Target"):
        request.headers[name] = headers[name]
    request.context["timestamp"] = headers["X-Amz-Date"]
    signer = SigV4Auth(Credentials(ACCOUNT["aws_access_key_id"], ACCOUNT["aws_secret_access_key"]), "dynamodb", REGION)
    signature = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    assert headers["Authorization"].endswith(f"SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature={signature}")


@pytest.mark.parametrize("throttled", [False, True])
def test_what_the_table_has_no_capacity_for_is_written_again_in_order(monkeypatch: pytest.MonkeyPatch, throttled: bool) -> None:
    """Two items a request are taken, or every second request is refused; rows of one key stay in order."""
    monkeypatch.setattr(dynamo, "PAUSES_S", (0.001,) * 6)
    written: list[tuple[str, int]] = []
    requests = 0

    def answer(request: web.Request, action: str, payload: Any) -> tuple[int, Any]:
        nonlocal requests
        if action == "DescribeTable":
            return 200, {"Table": TABLE}
        requests += 1
        (items,) = payload["RequestItems"].values()
        keys = [one["PutRequest"]["Item"]["k"]["S"] for one in items]
        assert len(set(keys)) == len(keys) <= 25
        if throttled and requests % 2:
            return 400, {"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException", "message": "s3cret"}
        taken = len(items) if throttled else 2
        written.extend((one["PutRequest"]["Item"]["k"]["S"], int(one["PutRequest"]["Item"]["n"]["N"])) for one in items[:taken])
        return 200, {"UnprocessedItems": {"rows": items[taken:]} if items[taken:] else {}}

    rows = [Row("0", number, "c", {"k": str(number % 40), "n": number}) for number in range(200)]
    done = standing_in(answer, lambda over: deliver(driver(over), rows))
    assert not done.failed and len(written) == 200
    if not throttled:
        assert set(done.attempts) == {"the table has not enough capacity"}
    for key in range(40):
        assert [number for one, number in written if one == str(key)] == list(range(key, 200, 40))


@pytest.mark.parametrize(
    ("status", "found", "kind", "text"),
    [
        (400, "UnrecognizedClientException", Unusable, "the server rejects aws_access_key_id or aws_secret_access_key"),
        (400, "InvalidSignatureException", Unusable, "the server rejects aws_access_key_id or aws_secret_access_key"),
        (403, "AccessDeniedException", Unusable, "the account has no right for dynamodb:DescribeTable of the table 'rows'"),
        (400, "ThrottlingException", ConnectorError, "the table has not enough capacity"),
        (400, "LimitExceededException", ConnectorError, "DynamoDB error LimitExceededException"),
        (500, "InternalServerError", ConnectorError, "DynamoDB error InternalDynamoError"),
        (503, b"<html>", ConnectorError, "DynamoDB error ServiceUnavailable"),
        (404, b"<html>s3cret", Unusable, "the server is not DynamoDB; another url?"),
        (200, b"<html>s3cret", ConnectorError, "the answer is no JSON"),
        (200, {"ok": True}, Unusable, "the server is not DynamoDB; another url?"),
    ],
)
def test_errors_of_accounts_and_servers(status: int, found: Any, kind: type[Exception], text: str) -> None:
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{found}", "message": "s3cret"} if isinstance(found, str) else found
    seen = []

    async def scenario(over: Any) -> None:
        with pytest.raises(ConnectorError) as raised:
            await driver(over).open()
        seen.append((isinstance(raised.value, Unusable), str(raised.value).partition(": ")[2]))

    standing_in(lambda request, action, payload: (status, body), scenario)
    assert seen == [(kind is Unusable, text)]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Credential should be scoped to a valid region, not 'eu-central-1'.", "the region of the server is not 'eu-central-1'"),
        ("Signature not yet current: 2026", "the key has expired, or the clock of this machine is wrong"),
    ],
)
def test_a_wrong_region_or_clock(message: str, text: str) -> None:
    async def scenario(over: Any) -> str:
        with pytest.raises(Unusable) as raised:
            await over.probe()
        return str(raised.value)

    body = {"__type": "com.amazon.coral.service#InvalidSignatureException", "message": message}
    assert standing_in(lambda request, action, payload: (400, body), scenario).endswith(text)


def test_an_account_that_may_not_list_tables_is_a_right_one() -> None:
    body = {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": "no"}
    standing_in(lambda request, action, payload: (400, body), lambda over: over.probe())


# --- servers that stop --------------------------------------------------------------------------------------------------------


def test_a_server_that_stops_answering_loses_no_row_and_repeats_none() -> None:
    rows, timers = some_rows(10_000, lambda number: {"k": str(number)}), []
    with dynamodb_server() as server:
        client = own_client(server.port)
        make_table(client, k="S")
        over = connector(server.port)

        def after(batch: int) -> None:
            if batch == 3:
                server.pause()
                timers.append(threading.Timer(2 * TIMEOUT_S, server.resume))
                timers[0].start()

        async def scenario() -> Any:
            return await deliver(await opened(driver(over)), rows, after=after)

        done = run(scenario(), over)
        timers[0].join()
        assert not done.failed and any("no response in time" in text for text in done.attempts), done.attempts
        assert sorted(int(one["n"]["N"]) for one in scanned(client, "rows")) == list(range(10_000))


def test_a_killed_server_gets_what_it_has_not_acknowledged() -> None:
    rows, starts = some_rows(1_000, lambda number: {"k": str(number)}), []
    with dynamodb_server(on_disk=True) as server:
        client = own_client(server.port)
        make_table(client, k="S")
        over = connector(server.port)

        def after(batch: int) -> None:
            if batch == 4:
                server.kill()
                starts.append(threading.Timer(1.0, server.start))
                starts[0].start()

        async def scenario() -> Any:
            return await deliver(await opened(driver(over)), rows, 100, after)

        done = run(scenario(), over)
        starts[0].join()
        assert not done.failed and done.attempts
        assert sorted(int(one["n"]["N"]) for one in scanned(client, "rows")) == list(range(1_000))


def test_the_states_of_the_page(port: int, client: Any) -> None:
    parts = parts_of(ROOT / "docs" / "sink-dynamodb.md")
    text = next(one.text for one in parts if isinstance(one, Example) and "statements.remove" in one.text)
    action = tomllib.loads(text)["actions"]["dynamo"]["states"]
    make_table(client, "states", device="S")
    one = make(DynamoAction.model_validate(action), over := connector(port), "dynamo:states")
    rows = [row(clientid=device, timestamp=at, payload=f"{at}") for device, at in (("a", 2), ("a", 1), ("b", 1), ("b", 1))]
    rows[3].values["statement"] = "remove"

    async def scenario() -> None:
        await one.open()
        assert await one.write(rows) == []

    run(scenario(), over)
    assert scanned(client, "states") == [{"device": {"S": "a"}, "at": {"N": "2"}, "state": {"S": "2"}}]


def test_the_page(port: int, client: Any) -> None:
    server, action = settings_of("sink-dynamodb.md", "dynamo")
    over = connector(port, **{name: value for name, value in server.items() if name not in ("url", *ACCOUNT)})
    make_table(client, "readings", device="S", at="N")
    one = make(DynamoAction.model_validate(action), over, "dynamo:readings")
    run(deliver(one, some_rows(1, lambda number: {"clientid": "c", "temp": 21.5, "timestamp": 1_700_000_000_000})), over)
    (found,) = scanned(client, "readings")
    assert found == {"device": {"S": "c"}, "at": {"N": "1700000000000"}, "temp": {"N": "21.5"}, "id": {"S": "0" * 32}}
