"""The driver of Cassandra against Cassandra 5; rows are read back by the library's own client."""

import datetime
import decimal
import ssl
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest, Unauthorized, WriteTimeout
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage

from shardbroker.config.sinks.cassandra import CassandraAction, CassandraConnector
from shardbroker.connectors.cassandra import Cassandra
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.flows.drivers.cassandra import connect, make
from shardbroker.flows.sinks.driver import Driver, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED
from tests.docs.pages import ROOT, Example, parts_of
from tests.edge.certificates import Authority
from tests.flows.drivers.delivery import Outage, deliver, opened, run, some_rows
from tests.flows.drivers.pages import settings_of
from tests.servers.cassandra import ACCOUNT, CassandraServer, cassandra
from tests.servers.processes import folder

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 3.0
NOWHERE = "127.0.0.1:1"
READINGS = "CREATE TABLE mqtt.rows (topic text, n int, v text, PRIMARY KEY (topic, n))"
INSERT = "INSERT INTO rows (topic, n, v) VALUES (${topic}, ${n}, ${v})"
THREADS = ("cassandra", "event_loop", "Task Scheduler", "Connection heartbeat", "ThreadPoolExecutor")


@pytest.fixture(scope="module")
def server() -> Iterator[CassandraServer]:
    with cassandra(READINGS, more="write_consistency_levels_disallowed: [ALL]\n") as one:
        yield one


@pytest.fixture(scope="module")
def session(server: CassandraServer) -> Iterator[Any]:
    with server.session() as one:
        yield one


def connector(port: int = 1, **more: Any) -> Cassandra:
    settings = {"servers": f"127.0.0.1:{port}", "username": ACCOUNT, "password": ACCOUNT, "timeout": TIMEOUT_S, **more}
    return connect(CassandraConnector.model_validate(settings), "connectors.cassandra.x")


def driver(over: Cassandra, cql: str = INSERT, **parameters: Any) -> Driver:
    return make(CassandraAction.model_validate({"parameters": {"cql": cql, **parameters}}), over, "cassandra:x")  # type: ignore[arg-type]


def rows_of(*values: Mapping[str, Any]) -> list[Row]:
    return [Row("0", at, "c", dict(one), f"{at:032x}", "n1") for at, one in enumerate(values)]


def write(server: CassandraServer, rows: list[Row], cql: str = INSERT, **parameters: Any) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = await opened(driver(over, cql, **parameters))
        return sorted(tuple(failure) for failure in await one.write(rows))

    over = connector(server.port)
    return run(scenario(), over)  # type: ignore[no-any-return]


def table(session: Any, columns: str, name: str = "t") -> None:
    session.execute(f"DROP TABLE IF EXISTS {name}")
    session.execute(f"CREATE TABLE {name} ({columns})")


# --- values -----------------------------------------------------------------------------------------------------------------------

MS = 1_700_000_000_123
MOMENT = datetime.datetime(2023, 11, 14, 22, 13, 20, 123000)
UUID = uuid.UUID("00000000-0000-1000-8000-00805f9b34fb")
TYPES: list[tuple[str, Any, Any]] = [
    ("tinyint", -128, -128),
    ("smallint", "32767", 32767),
    ("int", -(2**31), -(2**31)),
    ("int", 7.0, 7),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("varint", 2**100, 2**100),
    ("float", 1.5, 1.5),
    ("double", 3, 3.0),
    ("double", -1e300, -1e300),
    ("decimal", "1.10", decimal.Decimal("1.10")),
    ("boolean", True, True),
    ("boolean", "false", False),
    ("text", "grün 𝄞 \0", "grün 𝄞 \0"),
    ("text", {"a": [1, None]}, '{"a":[1,null]}'),
    ("text", 1.5, "1.5"),
    ("text", b"bytes", "bytes"),
    ("ascii", "plain", "plain"),
    ("blob", b"\x00\xff", b"\x00\xff"),
    ("blob", "grün", "grün".encode()),
    ("timestamp", MS, MOMENT),
    ("timestamp", "2023-11-14T23:13:20.123+01:00", MOMENT),
    ("date", MS, datetime.date(2023, 11, 14)),
    ("time", "23:59:59.5", datetime.time(23, 59, 59, 500000)),
    ("time", 1_000_000, datetime.time(0, 0, 0, 1000)),
    ("uuid", str(UUID), UUID),
    ("uuid", UUID.hex.upper(), UUID),
    ("timeuuid", str(UUID), UUID),
    ("inet", "10.0.0.1", "10.0.0.1"),
    ("inet", "2001:DB8::1", "2001:db8::1"),
    ("list<int>", [1, 2, 1], [1, 2, 1]),
    ("set<text>", ["b", "a", "b"], {"a", "b"}),
    ("map<text, double>", {"a": 1, "b": 2.5}, {"a": 1.0, "b": 2.5}),
    ("map<int, frozen<list<text>>>", {"7": ["x"]}, {7: ["x"]}),
    ("text", None, None),
]


def shown(value: Any) -> Any:
    """Returns a value that was read as the ones of TYPES."""
    name = type(value).__name__
    if name == "Date":
        return value.date()
    if name == "Time":
        return value.time()
    if name == "OrderedMapSerializedKey":
        return dict(value)
    return set(value) if name in ("SortedSet", "sortedset") else value


def test_values_keep_their_types(server: CassandraServer, session: Any) -> None:
    table(session, "k int PRIMARY KEY, " + ", ".join(f"c{at} {kind}" for at, (kind, _, _) in enumerate(TYPES)))
    names = [f"c{at}" for at in range(len(TYPES))]
    cql = f"INSERT INTO t (k, {', '.join(names)}) VALUES (1, {', '.join(f'${{{name}}}' for name in names)})"
    assert write(server, rows_of({name: value for name, (_, value, _) in zip(names, TYPES, strict=True)}), cql) == []
    found = session.execute("SELECT * FROM t").one()
    for name, (kind, given, wanted) in zip(names, TYPES, strict=True):
        assert shown(getattr(found, name)) == wanted, (kind, given)


WRONG: list[tuple[str, Any]] = [
    ("tinyint", 128), ("smallint", 2**15), ("int", 2**31), ("int", "x"), ("int", True), ("int", 1.5), ("bigint", 2**63),
    ("varint", 2**2000), ("float", 1e39), ("double", "1e400"), ("decimal", float("nan")), ("boolean", 2), ("text", "\ud800"),
    ("text", b"\xff"), ("ascii", "ü"), ("timestamp", "noon"), ("timestamp", 2**62), ("date", "x"), ("time", "25:00:00"),
    ("time", 86_400 * 10**9), ("uuid", "x"), ("uuid", 1), ("timeuuid", str(uuid.UUID(int=4, version=4))), ("inet", "1.2.3.4.5"),
    ("inet", "fe80::1%eth0"), ("inet", "localhost"), ("list<int>", [1, "x"]), ("list<int>", [None]), ("list<int>", "1"),
    ("set<text>", {"a": 1}), ("map<int, text>", {"x": "y"}), ("map<text, int>", {"a": None}),
    ("list<frozen<list<int>>>", [1]),
]  # fmt: skip


def test_a_value_that_does_not_fit_fails_its_row_and_is_not_shown(server: CassandraServer, session: Any) -> None:
    kinds = sorted({kind for kind, _ in WRONG})
    table(session, "k int PRIMARY KEY, " + ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds)))
    for at, kind in enumerate(kinds):
        wrong = [value for one, value in WRONG if one == kind]
        rows = rows_of(*({"k": at, "v": value} for value in (*wrong, None)))
        failures = write(server, rows, f"INSERT INTO t (k, c{at}) VALUES (${{k}}, ${{v}})")
        assert [number for number, _, _ in failures] == list(range(len(wrong))), kind
        for value, (_, reason, again) in zip(wrong, failures, strict=True):
            assert reason.startswith("${v}: must be ") and not again, reason
            assert not isinstance(value, str) or "got a text" in reason
    assert session.execute("SELECT count(*) FROM t").one().count == len(kinds)


def test_missing_fields(server: CassandraServer, session: Any) -> None:
    table(session, "k int PRIMARY KEY, a text, b int")
    cql = "INSERT INTO t (k, a, b) VALUES (${k}, ${a}, ${b})"
    reason = (
        "${b}: must be an integer from -2147483648 to 2147483647 for int, got no value; undefined_vars_as_null = true writes NULL"
    )
    assert write(server, rows_of({"k": 1}, {"k": 2, "b": 1}, {"k": 3, "a": "x", "b": None}), cql) == [(0, reason, False)]
    assert write(server, rows_of({"k": 4}, {"k": 5, "a": UNDEFINED, "b": 6}), cql, undefined_vars_as_null=True) == []
    found = {one.k: (one.a, one.b) for one in session.execute("SELECT * FROM t")}
    assert found == {2: ("undefined", 1), 3: ("x", None), 4: (None, None), 5: (None, 6)}


HOSTILE = ["'", "''; DROP TABLE rows; --", "${topic}", "$$", "?", ":v", "\\", '"', "/*", "", "\n\0", "%s", "x" * 70_000]


def test_texts_of_clients_stay_texts(server: CassandraServer, session: Any) -> None:
    session.execute("TRUNCATE rows")
    assert write(server, rows_of(*({"topic": f"t{text}"[:60_000], "n": at, "v": text} for at, text in enumerate(HOSTILE)))) == []
    found = {one.n: (one.topic, one.v) for one in session.execute("SELECT * FROM rows")}
    assert found == {at: (f"t{text}"[:60_000], text) for at, text in enumerate(HOSTILE)}


def test_the_protocol_of_cassandra_3(server: CassandraServer, session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbroker.connectors.cassandra.PROTOCOL", 4)
    session.execute("TRUNCATE rows")
    assert write(server, rows_of(*({"topic": f"t{at % 7}", "n": at, "v": None} for at in range(100)))) == []
    assert {(one.topic, one.n) for one in session.execute("SELECT * FROM rows")} == {(f"t{at % 7}", at) for at in range(100)}
    over = connector(server.port, keyspace="nope")
    with pytest.raises(Unusable, match="Keyspace 'nope' does not exist"):
        run(over.probe(), over)


# --- keys and batches -------------------------------------------------------------------------------------------------------------


def test_the_last_row_of_a_key_stays(server: CassandraServer, session: Any) -> None:
    session.execute("TRUNCATE rows")
    rows = rows_of(*({"topic": f"t{at % 3}", "n": at % 2, "v": f"{9999 - at}"} for at in range(600)))
    for _ in range(3):
        assert write(server, rows) == []
        found = {(one.topic, one.n): one.v for one in session.execute("SELECT * FROM rows")}
        assert found == {(f"t{at % 3}", at % 2): f"{9999 - at}" for at in range(594, 600)}


def test_rows_of_a_partition_are_few_batches_without_complaints_of_the_node(server: CassandraServer, session: Any) -> None:
    session.execute("TRUNCATE rows")
    counted: list[int] = []
    over = connector(server.port)

    async def scenario() -> None:
        one = await opened(driver(over))
        execute = over.execute

        async def counting(session: Any, statements: Any) -> Any:
            counted.append(len(statements))
            return await execute(session, statements)

        over.execute = counting  # type: ignore[method-assign]
        rows = rows_of(*({"topic": f"t{at % 10}", "n": at, "v": "x" * 200} for at in range(1000)))
        assert await one.write(rows) == []

    run(scenario(), over)
    assert counted == [20]
    assert session.execute("SELECT count(*) FROM rows").one().count == 1000
    assert "exceeding specified threshold" not in server.log()


KEYED = "k text, c int, v int, PRIMARY KEY (k, c)"
LAST = {("a", 1, 5), ("b", 1, 3)}
FIRST = {("a", 1, 1), ("b", 1, 3)}


@pytest.mark.parametrize(
    ("cql", "columns", "wanted"),
    [
        ("UPDATE t SET v = ${v} WHERE k = ${k} AND c = ${c}", KEYED, LAST),
        ("INSERT INTO t (k, c, v) VALUES (${k}, ${c}, ${v}) IF NOT EXISTS", KEYED, FIRST),
        ("INSERT INTO t (k, c, v) VALUES (${k}, ${c}, ${v}) USING TIMESTAMP ${late} AND TTL ${ttl}", KEYED, FIRST),
        ("INSERT INTO t (k, c, v) VALUES ('all', ${c}, ${v}) -- ${no}", KEYED, {("all", 1, 5)}),
        ("INSERT INTO t JSON ${.}", f"late bigint, ttl int, {KEYED}", LAST),
        ("INSERT INTO mqtt.t (k, c, v, d) VALUES (${k}, ${c}, ${v}, toDate((timestamp)${late}))",
         "k text, c int, v int, d date, PRIMARY KEY ((k, d), c)", {*FIRST, *LAST}),
        ('INSERT INTO t ("K", c, v) VALUES (${k}, ${c}, ${v})', '"K" text, c int, v int, PRIMARY KEY ("K", c)', LAST),
    ],
)  # fmt: skip
def test_statements(server: CassandraServer, session: Any, cql: str, columns: str, wanted: set[Any]) -> None:
    table(session, columns)
    day = 86_400_000
    values = [("a", 1, 3 * day), ("b", 3, 2 * day), ("a", 5, day)]
    rows = rows_of(*({"k": k, "c": 1, "v": v, "late": late, "ttl": 1000} for k, v, late in values))
    assert write(server, rows, cql) == []
    name = '"K"' if '"K"' in columns else "k"
    assert {tuple(one) for one in session.execute(f"SELECT {name}, c, v FROM t")} == wanted


def test_conditions_hold_in_the_order_of_rows(server: CassandraServer, session: Any) -> None:
    table(session, "k int PRIMARY KEY, v int")
    session.execute("INSERT INTO t (k, v) VALUES (0, 0)")
    session.execute("INSERT INTO t (k, v) VALUES (1, 0)")
    rows = rows_of(*({"k": at % 2, "was": at // 2, "v": at // 2 + 1} for at in range(40)))
    assert write(server, rows, "UPDATE t SET v = ${v} WHERE k = ${k} IF v = ${was}") == []
    assert {(one.k, one.v) for one in session.execute("SELECT * FROM t")} == {(0, 20), (1, 20)}


TIMED = "INSERT INTO t (k, v, w) VALUES (${k}, ${v}, ${w}) USING TIMESTAMP ${at}"


def test_of_rows_of_one_key_and_one_time_the_last_one_stays_as_a_whole(server: CassandraServer, session: Any) -> None:
    async def scenario() -> Any:
        one = await opened(driver(over, TIMED))
        for batch in (rows[:5], rows[5:9], rows[9:], rows[:3]):
            assert await one.write(batch) == []

    table(session, "k text PRIMARY KEY, v int, w int")
    rows = rows_of(*({"k": "a", "v": at, "w": 100 - at, "at": 1000} for at in range(8)))  # in two batches
    rows += rows_of(*({"k": k, "v": v, "w": v, "at": at} for k, v, at in (("b", 1, 2000), ("a", 9, 999), ("b", 0, 1))))
    over = connector(server.port)
    run(scenario(), over)
    assert {tuple(one) for one in session.execute("SELECT k, v, w FROM t")} == {("a", 2, 98), ("b", 1, 1)}
    session.execute("DELETE FROM t WHERE k = 'a'")  # those times are in the past
    assert [one.k for one in session.execute("SELECT k FROM t")] == ["b"]


DELETED = {"delete": {"cql": "DELETE FROM t WHERE k = ${k} AND c = ${c}"}}


def test_a_row_chooses_a_statement(server: CassandraServer, session: Any) -> None:
    table(session, KEYED)
    rows = rows_of(*({"k": k, "c": 1, "v": at} for at, k in enumerate("abbca")))
    for at in (2, 4):
        rows[at].values["statement"] = "delete"
    rows += rows_of({"k": "a", "c": 1, "v": 9}, {"k": "a", "c": 2, "v": 9, "statement": "other"})
    failures = write(server, rows, "INSERT INTO t (k, c, v) VALUES (${k}, ${c}, ${v})", statements=DELETED)
    assert failures == [(6, "statement: must be one of parameters.statements, got another text", False)]
    assert {tuple(one) for one in session.execute("SELECT k, c, v FROM t")} == {("a", 1, 9), ("c", 1, 3)}


def test_a_statement_for_each_row_that_a_query_finds(server: CassandraServer, session: Any) -> None:
    table(session, "k text, c int, v int, at timestamp, PRIMARY KEY (k, c)")
    count = 2500  # more than two pages
    for at in range(count):
        session.execute("INSERT INTO t (k, c, v, at) VALUES (%s, %s, 0, 1000)", ("a" if at else "b", at))
    select = "SELECT c, at FROM t WHERE k = ${k}"
    update = "UPDATE t SET v = ${v}, at = ${at} WHERE k = ${k} AND c = ${c}"
    rows = rows_of({"k": "a", "v": 1}, {"k": "none", "v": 2}, {"k": "a" * 70_000, "v": 3}, {"k": "b", "v": "x"})
    failures = write(server, rows, update, select=select)
    assert [(at, again) for at, _, again in failures] == [(2, False), (3, False)]
    assert "Key length of 70000 is longer than maximum" in failures[0][1] and "must be" in failures[1][1]
    found = {tuple(one) for one in session.execute("SELECT k, v, at FROM t")}
    at = datetime.datetime(1970, 1, 1, 0, 0, 1)
    assert found == {("a", 1, at), ("b", 0, at)}
    with pytest.raises(Unusable, match="gone"):
        write(server, rows, update, select="SELECT c FROM gone WHERE k = ${k}")


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"select": "DELETE FROM t WHERE k = ${k}"}, "select: must be SELECT, got DELETE"),
        ({"select": "SELECT '${k}' FROM t"}, "select: must have placeholders outside of quotes"),
        ({"statements": {"x": {}}}, "statements.x.cql: must be a statement such as"),
        ({"statements": {"x": {"cql": INSERT, "select": "x"}}}, "statements.x.select: must be SELECT, got X"),
    ],
)
def test_other_statements_that_cannot_work(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as raised:
        driver(connector(), **parameters)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(
    ("cql", "text"),
    [
        ("", "cql: must be a statement such as INSERT INTO t (topic) VALUES (${topic}), got an empty text"),
        ("SELECT * FROM t WHERE k = ${k}", "cql: must be INSERT, UPDATE or DELETE, got SELECT"),
        ("TRUNCATE t", "cql: must be INSERT, UPDATE or DELETE, got TRUNCATE"),
        ("INSERT INTO t (k) VALUES (1)", "cql: must have a placeholder such as ${topic}, got none: all rows would be the same one"),
        ("INSERT INTO t (k) VALUES ('${k}')", "cql: must have placeholders outside of quotes, got ${k} in a string at line 1,"),
        ("INSERT INTO t (k) VALUES ($$${k}$$)", "cql: must have placeholders outside of quotes, got ${k} in a string"),
        ('INSERT INTO t ("${k}") VALUES (1)', "cql: must have placeholders outside of quotes, got ${k} in a quoted name"),
        ("INSERT INTO ${t} (k) VALUES (1)", "cql: must have placeholders for values only, got ${t} for a name"),
        ("INSERT INTO t (k) VALUES (${k}); DROP TABLE t", "cql: must be one statement, got another behind line 1, column 32"),
        ("INSERT INTO t (k) VALUES (${k}) // ${x}\n; x", "cql: must be one statement"),
        ("INSERT INTO t (k) VALUES (${k}) /* x", "cql: must close what it opens, got /*"),
    ],
)  # fmt: skip
def test_statements_that_cannot_work(cql: str, text: str) -> None:
    with pytest.raises(ValueError) as raised:
        driver(connector(), cql)
    assert str(raised.value).startswith(text)


# --- poison -----------------------------------------------------------------------------------------------------------------------


def test_poison_among_ten_thousand(server: CassandraServer, session: Any) -> None:
    session.execute("TRUNCATE rows")
    wrong = {
        77: ("", "x", "the node rejects the row: Key may not be empty"),
        777: ("t/0", 5, ""),
        2222: (None, "x", "the node rejects the row: Invalid null value in condition for column topic"),
        7777: ("k" * 70_000, "x", "the node rejects the row: Key length of 70000 is longer than maximum of 65535"),
        8000: ("t/1", "x" * (5 << 20), "the node rejects the row: CQL Message of size 52429"),
        8001: ("t/1", "x" * (16 << 20), "the row is larger than 16777216 bytes"),
        9998: ("t/1", b"\xff", "${v}: must be text in UTF-8, got bytes"),
    }  # fmt: skip
    rows = some_rows(10_000, lambda number: {"v": "x"})
    for at, (topic, value, _) in wrong.items():
        rows[at].values |= {"topic": topic, "v": value}
    over = connector(server.port, timeout=20)

    async def scenario() -> Any:
        return await deliver(await opened(driver(over)), rows)

    done = run(scenario(), over)
    reasons = {row.values["n"]: text for row, text in done.failed}
    assert not done.attempts and sorted(reasons) == sorted(set(wrong) - {777})
    for at in reasons:
        assert reasons[at].startswith(wrong[at][2]), reasons[at]
    found = {one.n for one in session.execute("SELECT n FROM rows")}
    assert found == set(range(10_000)) - set(reasons)


def test_texts_of_nodes_about_a_row_are_not_shown(server: CassandraServer, session: Any) -> None:
    table(session, "k text PRIMARY KEY, v int")
    rows = rows_of({"json": '{"k": "a", "v": 1}'}, {"json": '{"k": "s3cret", "v": "s3cret"}'}, {"json": "s3cret"})
    failures = write(server, rows, "INSERT INTO t JSON ${json}")
    assert failures == [(1, "the node rejects the row as invalid", False), (2, "the node rejects the row as invalid", False)]
    assert [one.k for one in session.execute("SELECT k FROM t")] == ["a"]


# --- what is wrong with a server --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "cql", "kind", "text"),
    [
        ({"password": "wrong"}, INSERT, Unusable, "{server}: the server rejects username or password"),
        ({"username": ""}, INSERT, Unusable, "{server}: the server requires username and password"),
        ({"keyspace": "nope"}, INSERT, Unusable, "Keyspace 'nope' does not exist"),
        ({"keyspace": 'a"b'}, INSERT, Unusable, "Keyspace 'a\"b' does not exist"),
        ({"datacenter": "nope"}, INSERT, ConnectorError, "{server}: no node of the data center 'nope' can be reached"),
        ({"servers": "127.0.0.1:1"}, INSERT, ConnectorError, "127.0.0.1:1: connection refused"),
        ({"servers": "no-such-host.invalid"}, INSERT, ConnectorError,
         "no-such-host.invalid:9042: the name of the server cannot be resolved"),
        ({"username": "reader", "password": "reader"}, INSERT, Unusable,
         "User reader has no MODIFY permission on <table mqtt.rows> or any of its parents"),
        ({}, "INSERT INTO nope (k) VALUES (${k})", Unusable, "table nope does not exist"),
        ({}, "INSERT INTO rows (topic, n, w) VALUES (${a}, ${b}, ${c})", Unusable, "Undefined column name w in table mqtt.rows"),
        ({}, "INSERT INTO rows (topic) VALUES (${a})", Unusable, "Some clustering keys are missing: n"),
        ({}, "INSERT INTO rows topic VALUES (${a})", Unusable, "line 1:17 no viable alternative at input 'topic'"),
        ({}, "INSERT INTO rows (topic, n) VALUES (${a}, ?)", Unusable,
         "cql: must have placeholders such as ${topic} only, got a marker such as ? or :name"),
        ({}, "UPDATE hits SET n = n + ${n} WHERE k = ${k}", Unusable,
         "the table mqtt.hits has counters: a row that is written again would count twice"),
        ({}, "INSERT INTO spans (k, d) VALUES (${k}, ${d})", Unusable, "${d}: values of the type duration cannot be written"),
    ],
)  # fmt: skip
def test_a_probe_says_what_is_wrong(
    server: CassandraServer, session: Any, settings: dict[str, Any], cql: str, kind: type[Exception], text: str
) -> None:
    session.execute("CREATE TABLE IF NOT EXISTS hits (k text PRIMARY KEY, n counter)")
    session.execute("CREATE TABLE IF NOT EXISTS spans (k text PRIMARY KEY, d duration)")
    session.execute("CREATE ROLE IF NOT EXISTS reader WITH PASSWORD = 'reader' AND LOGIN = true")
    over = connector(server.port, **settings)
    with pytest.raises(ConnectorError) as raised:
        run(driver(over, cql).probe(), over)
    said = str(raised.value)
    assert type(raised.value) is kind and said.startswith(
        text.format(server=f"127.0.0.1:{server.port}") if "{server}" in text else text
    )
    assert over.health.last_error == said


def test_rows_wait_while_their_consistency_is_not_allowed(server: CassandraServer, session: Any) -> None:
    session.execute("CREATE ROLE IF NOT EXISTS writer WITH PASSWORD = 'writer' AND LOGIN = true")
    session.execute("GRANT MODIFY ON rows TO writer")
    over = connector(server.port, username="writer", password="writer")
    text = "Guardrail write_consistency_levels violated"

    async def scenario() -> None:
        one = await opened(driver(over, consistency="all"))
        for call in (one.probe(), one.write(rows_of({"topic": "t", "n": 1, "v": "x"}))):
            with pytest.raises(Unusable, match=text):
                await call

    run(scenario(), over)


def test_a_probe_has_no_effect(server: CassandraServer, session: Any) -> None:
    session.execute("TRUNCATE rows")
    over = connector(server.port)
    for cql in (
        INSERT,
        "UPDATE rows SET v = 'x' WHERE topic = ${topic} AND n = ${n} IF EXISTS",
        "DELETE FROM rows WHERE topic = ${topic}",
    ):
        fresh = connector(server.port)
        run(driver(fresh, cql).probe(), fresh)
    run(over.probe(), over)
    assert list(session.execute("SELECT * FROM rows")) == []


def test_servers_must_be_named() -> None:
    with pytest.raises(ConnectionSettingError) as raised:
        connector(servers="")
    assert str(raised.value) == 'connectors.cassandra.x.servers: must be a list of HOST:PORT, such as ["a:9042", "b:9042"], got []'
    assert CassandraConnector(servers="a, b:1,[::1]").servers == ["a:9042", "b:1", "[::1]:9042"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (WriteTimeout("s3cret", write_type=0), ConnectorError, f"{NOWHERE}: Cassandra error WriteTimeout"),
        (OverloadedErrorMessage(0x1001, "s3cret", None), ConnectorError, f"{NOWHERE}: Cassandra error Coordinator node overloaded"),
        (NoHostAvailable("s3cret", {}), ConnectorError, f"{NOWHERE}: no node can be reached"),
        (NoHostAvailable("", {"a": ConnectionResetError(104, "s3cret")}), ConnectorError, f"{NOWHERE}: connection reset by peer"),
        (NoHostAvailable("s3cret", {"a": "Pool is shutdown"}), ConnectorError, f"{NOWHERE}: no node can be reached"),
        (InvalidRequest('code=2200 [Invalid query] message="no table"'), Unusable, "no table"),
        (Unauthorized('code=2100 [Unauthorized] message="no right"'), Unusable, "no right"),
    ],
)  # fmt: skip
def test_errors_that_one_node_does_not_have(error: Exception, kind: type[Exception], text: str) -> None:
    explained = connector().explained(error)  # type: ignore[attr-defined]
    assert type(explained) is kind and str(explained) == text


def test_a_table_that_changes(server: CassandraServer, session: Any) -> None:
    """Rows wait while the table is not there, and are written with the types that it has then."""
    over = connector(server.port)

    async def scenario() -> None:
        one = await opened(driver(over, "INSERT INTO t (k, v) VALUES (${k}, ${v})"))
        assert await one.write(rows_of({"k": 1, "v": "7"}, {"k": 2, "v": "7"})) == []
        session.execute("DROP TABLE t")
        for _ in range(2):
            with pytest.raises(Unusable, match="table t does not exist"):
                await one.write(rows_of({"k": 3, "v": "8"}, {"k": 4, "v": "8"}))
        session.execute("CREATE TABLE t (k bigint PRIMARY KEY, v int)")
        done = await deliver(one, rows_of({"k": 3, "v": "8"}, {"k": 4, "v": "8"}))
        assert not done.failed

    table(session, "k int PRIMARY KEY, v text")
    run(scenario(), over)
    assert {(one.k, one.v) for one in session.execute("SELECT * FROM t")} == {(3, 8), (4, 8)}


def test_no_thread_is_left(server: CassandraServer) -> None:
    def of_drivers() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name.startswith(THREADS)}

    before = of_drivers()
    for settings in ({}, {}, {"password": "wrong"}, {"servers": "127.0.0.1:1"}):
        over = connector(**{"port": server.port, **settings})
        try:
            run(over.probe(), over)
        except ConnectorError:
            pass
    left = of_drivers() - before
    for one in left:
        one.join(5)
    assert not [one.name for one in of_drivers() - before]


# --- losses -----------------------------------------------------------------------------------------------------------------------


def test_a_server_that_stops_answering_loses_no_row(server: CassandraServer, session: Any) -> None:
    session.execute("TRUNCATE rows")
    rows = some_rows(10_000, lambda number: {"v": "x"})
    over, outage = connector(server.port), Outage(3, server.pause, server.resume, 3 * TIMEOUT_S)

    async def scenario() -> Any:
        return await deliver(await opened(driver(over)), rows, after=outage)

    try:
        done = run(scenario(), over)
    finally:
        server.resume()
    outage.join()
    assert not done.failed and any("no response in time" in text for text in done.attempts), done.attempts
    assert {one.n for one in session.execute("SELECT n FROM rows")} == set(range(10_000))


def test_a_killed_server_has_all_rows() -> None:
    rows = some_rows(10_000, lambda number: {"v": "x"})
    with cassandra(READINGS) as server:
        over, outage = connector(server.port), Outage(4, server.kill, server.start, 1.0)

        async def scenario() -> Any:
            return await deliver(await opened(driver(over)), rows, after=outage)

        done = run(scenario(), over)
        outage.join()
        assert not done.failed and any("connection refused" in text for text in done.attempts), done.attempts
        with server.session() as session:
            assert {one.n for one in session.execute("SELECT n FROM rows")} == set(range(10_000))


# --- TLS --------------------------------------------------------------------------------------------------------------------------


@contextmanager
def over_tls(where: Path, certificate: Path, authority: Path) -> Iterator[CassandraServer]:
    """A node that accepts clients with a certificate of the authority only."""
    options = {
        "enabled": "true",
        "optional": "false",
        "require_client_auth": "true",
        "ssl_context_factory": "{class_name: org.apache.cassandra.security.PEMBasedSslContextFactory}",
        "keystore": certificate,
        "truststore": authority,
    }
    more = "client_encryption_options:\n" + "".join(f"  {name}: {value}\n" for name, value in options.items())
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False
    context.load_cert_chain(where / "client.pem")
    with cassandra(READINGS, more=more, ssl_context=context) as server:
        yield server


@pytest.mark.parametrize("name", ["127.0.0.1", "elsewhere"])
def test_tls(name: str) -> None:
    with folder() as where:
        ours, other = Authority(where, "ours"), Authority(where, "other")
        certificate = ours.issue("server", "server", (name,))
        client = ours.issue("client", "client", ("client",))
        tls = {"tls": True, "tls_ca": str(ours.cafile), "tls_cert": str(client)}
        with over_tls(where, certificate, ours.cafile) as server:
            where_it_is = f"127.0.0.1:{server.port}"

            def failure(**settings: Any) -> str:
                over = connector(server.port, **settings)
                try:
                    run(driver(over).probe(), over)
                except ConnectorError as error:
                    return str(error)
                return ""

            refused = f"{where_it_is}: the certificate of the server is not accepted: "
            if name == "elsewhere":
                assert failure(**tls) == f"{refused}IP address mismatch, certificate is not valid for '127.0.0.1'."
                assert failure(**tls | {"tls_verify": False}) == ""
                return
            assert failure(**tls) == ""
            assert failure(**tls | {"tls_ca": str(other.cafile)}) == f"{refused}unable to get local issuer certificate"
            assert failure(**tls | {"tls_cert": ""}).startswith(f"{where_it_is}: ")
            assert failure().startswith(f"{where_it_is}: ")


def test_the_page(server: CassandraServer, session: Any) -> None:
    settings, action = settings_of("sink-cassandra.md", "cassandra")
    texts = [one.text for one in parts_of(ROOT / "docs/sink-cassandra.md") if isinstance(one, Example)]
    ddl = next(one for one in texts if "CREATE TABLE" in one)
    for text in filter(str.strip, ddl.split(";")):
        session.execute(text)
    over = connector(**settings | {"servers": f"127.0.0.1:{server.port}", "password": "s3cret"})
    one = make(CassandraAction.model_validate(action), over, "cassandra:readings")  # type: ignore[arg-type]
    values = {"clientid": "c", "timestamp": MS, "payload": '{"temp": 21.5}', "day": "2023-11-14"}
    run(deliver(one, some_rows(1, lambda number: values)), over)
    found = session.execute("SELECT * FROM readings").one()
    assert (found.device, found.at, found.temp, found.payload) == ("c", MOMENT, 21.5, b'{"temp": 21.5}')
    assert found.id == uuid.UUID(int=0)
