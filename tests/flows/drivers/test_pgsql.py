"""The driver of PostgreSQL against the real server: types, NULL, hostile values, rows that fail, lost servers, exactly once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from shardbroker.config.sinks.pgsql import PgsqlAction, PgsqlConnector
from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.connectors.connector import State
from shardbroker.connectors.errors import describe
from shardbroker.flows.drivers import pgsql, timescale
from shardbroker.flows.drivers.sql_cursors import CursorMoved
from shardbroker.flows.sinks.driver import Refused, Unusable
from shardbroker.flows.sinks.row import Row
from tests.flows.drivers.core import (
    NO_RESPONSE,
    refused_rows_are_done,
    row_is_written_later,
    rows_of,
    rows_that_a_trigger_rejects_fail_alone,
    run,
    written,
    written_at_last,
)
from tests.servers.postgresql import Postgresql, postgresql

WAYS = {
    "arrays": ("INSERT INTO {t} ({columns}) VALUES ({values})", "auto"),
    "rows": ("INSERT INTO {t} ({columns}) SELECT {values}", "auto"),
    "copy": ("INSERT INTO {t} ({columns}) VALUES ({values})", "copy"),
}
"""The ways of writing, each by a statement that leads to it."""


def made(server: Postgresql, sql: str, write: str = "auto", *, timeout: float = 5, **parameters: Any) -> pgsql.PgsqlDriver:
    settings = PgsqlConnector(server=f"127.0.0.1:{server.port}", username="mqtt", timeout=timeout, pool_size=2)
    action = PgsqlAction.model_validate({"parameters": {"sql": sql, "write": write, **parameters}})
    return pgsql.PgsqlDriver(action.parameters, pgsql.connect(settings, "connectors.pgsql.x"), "pgsql:x")


def lines(printed: str) -> list[str]:
    return printed.split("\n")[:-1]


def statement(way: str, table: str, columns: str) -> tuple[str, str]:
    text, write = WAYS[way]
    values = ", ".join(f"${{{name.strip()}}}" for name in columns.split(","))
    return text.format(t=table, columns=columns, values=values), write


def with_driver(driver: pgsql.PgsqlDriver, scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await scenario()
        finally:
            await driver.close()
            await driver._connector.close()

    run(whole)


TYPED = {
    "i2": ("smallint", [1, -32768, "7", 3.0], ["1", "-32768", "7", "3"], [32768, True, "x", 1.5, "1" * 30, b"\xff", {}]),
    "i4": ("integer", [1, 2147483647], ["1", "2147483647"], [2147483648, False, "1e3", "\u0661"]),
    "i8": ("bigint", [2**63 - 1, -(2**63)], [str(2**63 - 1), str(-(2**63))], [2**63, float("inf"), float("nan"), 1e30]),
    "f4": ("real", [1.5, 2, "0.25"], ["1.5", "2", "0.25"], [1e39, 10**400, "1e99", True]),
    "f8": ("double precision", [1.1, 2, "1e300", float("inf")], ["1.1", "2", "1e+300", "Infinity"], [10**400, "1e999", [1]]),
    "nu": ("numeric", [0.1, 10**30, "123.450"], ["0.1", "1" + 30 * "0", "123.450"], ["1e999999999", "1e200000", "x", True, {}]),
    "nd": ("numeric(5,2)", [1.239, "2"], ["1.24", "2.00"], ["abc"]),
    "bo": ("boolean", [True, "false", 1], ["t", "f", "t"], ["yes?", 2, 1.0, []]),
    "te": ("text", ["Grüße 😀", 5, 1.5, True, {"a": 1}], ["Grüße 😀", "5", "1.5", "true", '{"a":1}'], ["\0", b"\xff", "\ud800"]),
    "vc": ("varchar(3)", ["abc"], ["abc"], ["a\0b"]),
    "by": ("bytea", [b"\0\xff", "é"], ["\\x00ff", "\\xc3a9"], []),
    "js": ("json", [{"a": [1]}, '{"b":  2}', [65, 66]], ['{"a":[1]}', '{"b":  2}', "[65,66]"], ["{", "nul", b"\xff", float("nan")]),
    "jb": ("jsonb", [{"a": 1}, 5, True], ['{"a": 1}', "5", "true"], ["{'a'}", ""]),
    "tz": (
        "timestamptz",
        [1_700_000_000_123, "2023-11-14T23:13:20+01:00", "2023-11-14T22:13:20.5Z"],
        ["2023-11-14 22:13:20.123+00", "2023-11-14 22:13:20+00", "2023-11-14 22:13:20.5+00"],
        [10**18, "yesterday", float("nan"), True, "9999-12-31T23:59:59-10:00"],
    ),
    "ts": ("timestamp", [1_700_000_000_000, "2023-11-14T23:13:20+01:00"], ["2023-11-14 22:13:20", "2023-11-14 22:13:20"], [[], {}]),
    "da": ("date", [1_700_000_000_000, "2023-11-14"], ["2023-11-14", "2023-11-14"], ["14.11.2023"]),
}  # fmt: skip
"""Column -> its type, values that are written, what psql shows of them, and values that fail."""


@pytest.mark.parametrize("way", WAYS)
def test_values_arrive_with_their_types_and_those_that_do_not_fit_fail_alone(way: str) -> None:
    async def scenario() -> None:
        for name, (_, good, _, bad) in TYPED.items():
            sql, write = statement(way, name, "n, " + name)
            driver = made(server, sql, write)
            values = [*good[:1], *bad, None, *good[1:]]
            failed = await written(driver, rows_of([{"n": number, name: value} for number, value in enumerate(values)]))
            assert sorted(failed) == [*range(1, 1 + len(bad))], name
            for reason in failed.values():
                assert reason.startswith(f"${{{name}}}: must be "), reason
            await driver._connector.close()

    tables = "".join(f"CREATE TABLE {name} (n integer, {name} {kind});" for name, (kind, *_) in TYPED.items())
    with postgresql(tables + "ALTER DATABASE mqtt SET timezone = 'UTC'") as server:
        run(scenario)
        for name, (_, _, shown, _) in TYPED.items():
            assert lines(server.psql(f"SELECT {name} FROM {name} ORDER BY n")) == [*shown[:1], "null", *shown[1:]]


OTHERS = {
    "interval": (["1 day", "90 min"], ["1 day", "01:30:00"]),
    "uuid": (["0" * 31 + "1"], ["00000000-0000-0000-0000-000000000001"]),
    "inet": (["10.0.0.1", "fe80::1"], ["10.0.0.1", "fe80::1"]),
    "integer[]": ([[1, None, 3], [], "{4,5}", [[1], [2]]], ["{1,NULL,3}", "{}", "{4,5}", "{{1},{2}}"]),
    "text[]": ([['a"b\\', "NULL", "", "{,}", None]], ['{"a\\"b\\\\","NULL","","{,}",NULL}']),
    "jsonb[]": ([[{"a": 1}]], ['{"{\\"a\\": 1}"}']),
    "mood": (["ok", "sad"], ["ok", "sad"]),
    "positive": ([1, "2"], ["1", "2"]),
    "time": (["23:59:59.5"], ["23:59:59.5"]),
}
"""Types that are written as text."""


def test_types_that_the_driver_does_not_know_are_read_from_text_by_the_server() -> None:
    async def scenario() -> None:
        for number, (kind, (values, _)) in enumerate(OTHERS.items()):
            for values_of in ("VALUES (${n}, ${v})", "SELECT ${n}, ${v}"):
                sql = f"INSERT INTO o{number} (n, v) {values_of}"
                driver = made(server, sql)
                rows = rows_of([{"n": at, "v": value} for at, value in enumerate([*values, None])])
                assert await written(driver, rows) == {}
                (failed,) = (await written(driver, rows_of([{"n": 90, "v": "\0"}, {"n": 100, "v": None}]))).items()
                assert failed[0] == 0
                (reason,) = (await written(driver, rows_of([{"n": 101, "v": "??? secret"}]))).values()
                assert ("SQLSTATE 22" in reason or kind == "positive") and "secret" not in reason
                await driver._connector.close()
            if kind != "positive":
                with pytest.raises(Unusable, match=r'^write: must be "auto" for the column v'):
                    await made(server, f"INSERT INTO o{number} (n, v) VALUES (${{n}}, ${{v}})", "copy").open()

    kinds = "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS integer CHECK (VALUE > 0);"
    tables = "".join(f"CREATE TABLE o{number} (n integer, v {kind});" for number, kind in enumerate(OTHERS))
    with postgresql(kinds + tables) as server:
        run(scenario)
        for number, (_, (_, shown)) in enumerate(OTHERS.items()):
            found = lines(server.psql(f"SELECT v FROM o{number} WHERE n < 90 ORDER BY n"))
            assert found == [one for one in [*shown, "null"] for _ in range(2)]


HOSTILE = [
    "'; DROP TABLE t; --", '"', "\\", "\\'", "$$", "$1", "${topic}", "%s", "{}", "a\nb\tc\r", "\u2028", "x" * 100_000, "\\N", "NULL"
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_hostile_values_are_values(way: str) -> None:
    sql, write = statement(way, "t", "n, topic, payload")

    async def scenario() -> None:
        rows = [{"n": number, "topic": text, "payload": text.encode() + b"\0\xff"} for number, text in enumerate(HOSTILE)]
        assert await written(driver, rows_of(rows)) == {}

    with postgresql("CREATE TABLE t (n integer, topic text, payload bytea)") as server:
        driver = made(server, sql, write)
        with_driver(driver, scenario)
        shown = lines(server.psql("SELECT encode(convert_to(topic, 'UTF8'), 'hex'), encode(payload, 'hex') FROM t ORDER BY n"))
        assert [one.replace("\n", "") for one in shown] == [f"{one.encode().hex()}|{one.encode().hex()}00ff" for one in HOSTILE]


@pytest.mark.parametrize("way", WAYS)
def test_one_row_among_10_000_that_the_server_refuses_is_alone(way: str) -> None:
    sql, write = statement(way, "t", "n, note")

    async def scenario() -> None:
        rows = rows_of([{"n": number, "note": "secret"} for number in range(10_000)], first=2**62)
        rows[7_000].values["n"] = -1
        failed = {}
        for at in range(0, 10_000, 1000):
            failed |= await written(driver, rows[at : at + 1000])
        assert failed == {2**62 + 7_000: "check violation (SQLSTATE 23514), constraint positive, table t"}

    with postgresql("CREATE TABLE t (n integer CONSTRAINT positive CHECK (n >= 0), note text)") as server:
        driver = made(server, sql, write)
        with_driver(driver, scenario)
        assert server.psql("SELECT count(*), min(n), max(n) FROM t") == "9999|0|9999\n"


def test_copy_of_the_first_columns_and_of_names_in_quotes() -> None:
    async def scenario() -> None:
        for sql in ("INSERT INTO t VALUES (${n}, ${c})", 'INSERT INTO "Odd"."Ta""ble" ("n o", c) VALUES (${n}, ${c})'):
            driver = made(server, sql, "copy")
            assert await written(driver, rows_of([{"n": 1, "c": "x"}])) == {}
            await driver._connector.close()
        for sql in (
            "INSERT INTO t VALUES (${n}, 1)",
            "INSERT INTO t VALUES (${n}) ON CONFLICT DO NOTHING",
            "UPDATE t SET n = ${n}",
        ):
            with pytest.raises(ValueError, match=r'^write: must be "auto" for this statement, got "copy"'):
                made(server, sql, "copy")

    tables = """
    CREATE TABLE t (n integer, c text, more text DEFAULT 'default');
    CREATE SCHEMA "Odd"; CREATE TABLE "Odd"."Ta""ble" (c text, "n o" integer);
    """
    with postgresql(tables) as server:
        run(scenario)
        assert server.psql("SELECT * FROM t") == "1|x|default\n"
        assert server.psql('SELECT * FROM "Odd"."Ta""ble"') == "x|1\n"


def test_missing_fields_are_null_or_the_text_undefined() -> None:
    async def scenario() -> None:
        sql = "INSERT INTO t (n, note) VALUES (${a.b}, ${payload.note})"
        plain, as_null = made(server, sql), made(server, sql, undefined_vars_as_null=True)
        rows = rows_of([{"a": {"b": 1}}, {}, {"a": '{"b": 3}', "payload": {"note": None}}])
        assert await written(plain, rows) == {
            1: "${a.b}: must be an integer from -2147483648 to 2147483647 for integer,"
            " got no value; undefined_vars_as_null = true writes NULL"
        }
        assert await written(as_null, rows) == {}
        for driver in (plain, as_null):
            await driver._connector.close()

    with postgresql("CREATE TABLE t (at serial, n integer, note text)") as server:
        run(scenario)
        assert lines(server.psql("SELECT n, note FROM t ORDER BY at")) == [
            "1|undefined", "3|null", "1|null", "null|null", "3|null"
        ]  # fmt: skip


EMQX_SQL = """
INSERT INTO t_mqtt_msg(msgid, topic, qos, payload, arrived)   -- as EMQX's dashboard proposes it
VALUES (${id}, ${topic}, ${qos}, ${payload}, to_timestamp((${timestamp} :: bigint)/1000))
ON CONFLICT (msgid) DO NOTHING;
"""


def test_expressions_defaults_upserts_and_other_statements() -> None:
    async def scenario() -> None:
        message = {"topic": "a/b", "qos": 1, "payload": "hello", "timestamp": 1_700_000_000_999}
        driver = made(server, EMQX_SQL)
        assert await written(driver, rows_of([message] * 3)) == {} == await written(driver, rows_of([message] * 4))
        assert driver._plan is not None and "unnest" in driver._plan.batch
        await driver._connector.close()

        upsert = made(server, "INSERT INTO last VALUES (${c}, ${n}) ON CONFLICT (client) DO UPDATE SET n = EXCLUDED.n")
        assert await written(upsert, rows_of([{"c": f"c{number % 3}", "n": number} for number in range(10)])) == {}
        assert upsert._plan is not None and not upsert._plan.batch, "row by row, since keys come twice in a batch"
        assert await written(upsert, rows_of([{"c": "c1", "n": number} for number in range(20, 30)])) == {}
        await upsert._connector.close()

        for sql in (
            "UPDATE last SET n = n + ${n} WHERE client = ${c}",
            "INSERT INTO defaults VALUES (DEFAULT, ${n})",
            "INSERT INTO defaults DEFAULT VALUES",
            "INSERT INTO defaults VALUES ('f', no_null(${n}))",
            "WITH gone AS (DELETE FROM last WHERE client = ${c} RETURNING n) INSERT INTO last SELECT 'was ' || ${c}, n FROM gone",
        ):
            driver = made(server, sql)
            await driver.open()
            await driver.probe()
            assert await written(driver, rows_of([{"c": "c2", "n": 1000}])) == {}, sql
            await driver._connector.close()

    tables = (
        "CREATE TABLE t_mqtt_msg (id serial, msgid text UNIQUE, topic text, qos smallint, payload text, arrived timestamptz);"
        "CREATE TABLE last (client text UNIQUE, n integer); CREATE TABLE defaults (client text DEFAULT 'x', n integer DEFAULT -1);"
        "CREATE FUNCTION no_null(n integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$"
        "BEGIN IF n IS NULL THEN RAISE 'NULL'; END IF; RETURN n; END $$;"
    )
    with postgresql(tables) as server:
        run(scenario)
        shown = "SELECT msgid, topic, qos, payload, extract(epoch FROM arrived)::int FROM t_mqtt_msg ORDER BY msgid"
        assert lines(server.psql(shown)) == [f"{n:032x}|a/b|1|hello|1700000000" for n in range(4)]


# --- errors -----------------------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named_and_found_again() -> None:
    async def scenario() -> None:
        values = "VALUES (${n})"
        for sql, text in (
            (f"INSERT INTO nowhere (n) {values}", 'relation "nowhere" does not exist (SQLSTATE 42P01)'),
            (f"INSERT INTO t (m) {values}", 'column "m" of relation "t" does not exist (SQLSTATE 42703)'),
            (f"INSERT INTO none.t (n) {values}", 'relation "none.t" does not exist (SQLSTATE 42P01)'),
            (f"INSERT INTO t (n) {values} garbage", 'syntax error at or near "garbage" (SQLSTATE 42601)'),
        ):
            driver = made(server, sql)
            for attempt in (driver.open, driver.probe, partial(driver.write, rows_of([{"n": 1}]))):
                with pytest.raises(Unusable) as caught:
                    await attempt()
                assert str(caught.value).endswith(text), caught.value
            await driver._connector.close()
        driver = made(server, f"INSERT INTO closed (n) {values}")
        await driver.open()
        for attempt in (driver.probe, partial(driver.write, rows_of([{"n": 1}]))):
            with pytest.raises(Unusable, match=r"^permission denied for table closed"):
                await attempt()
        await driver._connector.close()

        driver = made(server, f"INSERT INTO t (n) {values}")
        await driver.write(rows_of([{"n": 1}]))
        server.psql("ALTER TABLE t RENAME COLUMN n TO m")
        with pytest.raises(Unusable):
            await driver.write(rows_of([{"n": 2}]))
        server.psql("ALTER TABLE t ADD COLUMN n text")
        assert await written(driver, rows_of([{"n": "2"}])) == {}, "types are read again"
        await driver._connector.close()

    with postgresql("CREATE TABLE t (n integer); CREATE TABLE closed (n integer); CREATE ROLE one LOGIN SUPERUSER") as server:
        server.user = "one"
        server.psql("ALTER TABLE closed OWNER TO one; ALTER ROLE mqtt NOSUPERUSER")
        run(scenario)


def test_a_probe_says_why_the_server_cannot_be_used() -> None:
    async def probed(text: str, **settings: Any) -> None:
        keys = {"server": f"127.0.0.1:{server.port}", "username": "guarded", "password": "right", "database": "mqtt", "timeout": 3}
        connector = pgsql.connect(PgsqlConnector(**{**keys, **settings}), "k")
        action = PgsqlAction.model_validate({"parameters": {"sql": "INSERT INTO t VALUES (${n})"}})
        driver = pgsql.make(action, connector, "pgsql:x")
        for call in (driver.probe, driver.open):
            with pytest.raises(Exception) as caught:
                await call()
            shown = str(caught.value) if isinstance(caught.value, Unusable) else describe(caught.value)
            assert text in shown and "wrong" not in shown, shown
            assert text in connector.health.last_error
        assert connector.health.state is State.DISCONNECTED
        await connector.close()

    async def scenario() -> None:
        await probed('password authentication failed for user "guarded"', password="wrong")
        await probed('password authentication failed for user "none"', username="none")
        await probed('database "nothing" does not exist', database="nothing")
        await probed("connection refused", server="127.0.0.1:1")
        await probed("rejected SSL upgrade", tls=True)
        await probed("the name of the server cannot be resolved", server="nowhere.invalid:5432")

    with postgresql("CREATE ROLE guarded LOGIN PASSWORD 'right'", access="host all all 127.0.0.1/32 scram-sha-256") as server:
        run(scenario)


RAISING = """
CREATE TABLE t (n integer CONSTRAINT small CHECK (n < 99));
CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.n = 13 THEN RAISE 'secret' USING ERRCODE = 'MY001'; END IF;
    IF NEW.n = 14 THEN RAISE 'secret'; END IF;
    IF NEW.n = 15 THEN NEW.n := (SELECT g FROM generate_series(1, 2) AS g); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER reject BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION reject();
"""


@pytest.mark.parametrize("once", [False, True])
def test_a_row_with_an_error_that_is_in_no_list_fails_alone(once: bool) -> None:
    """A SQLSTATE of a trigger's own, RAISE without one, a subquery of two rows (class 21), CHECK."""
    bad = {
        13: "error raised in the database (SQLSTATE MY001)",
        14: "raise (SQLSTATE P0001)",
        15: "cardinality violation (SQLSTATE 21000)",
        99: "check violation (SQLSTATE 23514), constraint small, table t",
    }
    with postgresql(RAISING) as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=once)
        again = partial(server.psql, "DROP TRIGGER reject ON t")
        with_driver(driver, lambda: rows_that_a_trigger_rejects_fail_alone(driver, again, bad))
        assert server.psql("SELECT count(*) FROM t") == ("96\n" if once else "97\n")


async def _one_fails(driver: pgsql.PgsqlDriver) -> None:
    batch = rows_of([{"n": number} for number in range(100)])
    assert await written(driver, batch) == {13: "error raised in the database (SQLSTATE MY001)"}


def test_a_function_that_takes_no_null_does_not_fail_the_probe_of_a_suspected_row() -> None:
    """EXPLAIN evaluates it, with an error of its own SQLSTATE; within the transaction of exactly_once, too."""
    function = (
        "CREATE TABLE t (n integer); CREATE FUNCTION picky(n integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$"
        "BEGIN IF n IS NULL OR n = 13 THEN RAISE 'secret' USING ERRCODE = 'MY001'; END IF; RETURN n; END $$;"
    )
    with postgresql(function) as server:
        for once in (False, True):
            driver = made(server, "INSERT INTO t (n) VALUES (picky(${n}))", exactly_once=once)
            with_driver(driver, partial(_one_fails, driver))
        assert server.psql("SELECT count(*) FROM t") == "198\n"


STATES = {
    "read-only": (
        "ALTER DATABASE mqtt SET default_transaction_read_only = on",
        "SET default_transaction_read_only = off; ALTER DATABASE mqtt RESET default_transaction_read_only",
        "cannot execute INSERT in a read-only transaction (SQLSTATE 25006)",
    ),
    "disk": ("SELECT state('53100')", "SELECT state('')", "secret (SQLSTATE 53100)"),
    "conflict": ("SELECT state('40001')", "SELECT state('')", "serialization (SQLSTATE 40001)"),
    "ended": ("SELECT state('57014')", "SELECT state('')", "secret (SQLSTATE 57014)"),
    "internal": ("SELECT state('XX000')", "SELECT state('')", "internal server (SQLSTATE XX000)"),
}
"""What begins a state of the server that passes, what ends it, and the error. All but the first stand in for the real state: a
trigger raises the SQLSTATE of a full disk, a conflict, a query that was ended, and an internal error."""
RAISE_STATE = """
CREATE TABLE t (n integer); CREATE TABLE raised (state text); INSERT INTO raised VALUES ('');
CREATE FUNCTION state(s text) RETURNS void LANGUAGE sql AS 'UPDATE raised SET state = s';
CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE s text; BEGIN
    SELECT state INTO s FROM raised;
    IF s <> '' THEN RAISE 'secret' USING ERRCODE = s; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER reject BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION reject();
"""


def test_states_of_the_server_that_pass_fail_no_row() -> None:
    with postgresql(RAISE_STATE) as server:
        for begin, end, shown in STATES.values():
            server.psql(begin)
            driver = made(server, "INSERT INTO t (n) VALUES (${n})")

            def ended(sql: str = end) -> None:
                server.psql(sql)
                server.psql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'mqtt'"
                )

            with_driver(driver, partial(row_is_written_later, driver, ended, shown))
        assert server.psql("SELECT count(*) FROM t") == f"{2 * len(STATES)}\n"


def test_an_error_without_rows_fails_none() -> None:
    """The literal does not fit its column, which the server finds when it reads the statement."""

    async def scenario() -> None:
        for attempt in (driver.open, driver.probe, partial(driver.write, rows_of([{"n": 1}]))):
            with pytest.raises(Unusable, match=r"SQLSTATE 22P02"):
                await attempt()

    with postgresql("CREATE TABLE t (n integer, m integer)") as server:
        driver = made(server, "INSERT INTO t (n, m) VALUES (${n}, 'x')")
        with_driver(driver, scenario)


def test_a_server_that_is_killed_or_paused_is_found_again_without_a_missing_row() -> None:
    sql = "INSERT INTO t (n) VALUES (${n})"
    errors: list[str] = []

    def failed(error: Exception) -> None:
        errors.append(describe(error))
        if errors[-1] == NO_RESPONSE:
            server.server.resume()

    async def scenario() -> None:
        rows = rows_of([{"n": number} for number in range(2000)])
        for at in range(0, 2000, 100):
            if at in (500, 1000):
                server.server.kill()
                asyncio.get_running_loop().call_later(1, lambda: asyncio.create_task(asyncio.to_thread(server.server.start)))
            if at in (700, 1500):
                server.server.pause()
            assert await written_at_last(driver, rows[at : at + 100], failed) == {}

    with postgresql("CREATE TABLE t (n integer)") as server:
        driver = made(server, sql, timeout=0.5)
        with_driver(driver, scenario)
        assert server.psql("SELECT count(DISTINCT n) FROM t") == "2000\n"
    assert errors.count(NO_RESPONSE) >= 2 and len(set(errors)) > 1, errors


# --- exactly once -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_exactly_once_over_kills_pauses_and_lost_answers(way: str) -> None:
    sql, write = statement(way, "t", "n, note")
    errors: list[Exception] = []

    async def lost_answer(driver: pgsql.PgsqlDriver, rows: list[Row]) -> None:
        """Cancels a write somewhere between its first statement and the answer of its COMMIT; of each tenth, only the answer."""
        task = asyncio.create_task(driver.write(rows))
        if rows[0].position // 100 % 10:
            await asyncio.sleep(0.001 * (rows[0].position % 7))
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task

    async def scenario() -> None:
        first = 2**62
        for journal in ("0", "1"):
            rows = rows_of([{"n": n, "note": journal} for n in range(3000)], first, journal)
            for at in range(0, 3000, 100):
                batch = rows[at : at + 100]
                if at == 1000:
                    server.server.kill()
                    asyncio.get_running_loop().call_later(0.5, lambda: asyncio.create_task(asyncio.to_thread(server.server.start)))
                if at == 2000:
                    server.server.pause()
                    asyncio.get_running_loop().call_later(1.2, server.server.resume)
                await lost_answer(driver, batch)
                assert await written_at_last(driver, batch, errors.append) == {}
        await driver.open()
        assert await driver.stored() == {"0": first + 3000, "1": first + 3000}

    with postgresql("CREATE TABLE t (n integer, note text)") as server:
        driver = made(server, sql, write, timeout=0.5, exactly_once=True)
        assert driver.stores_cursor
        driver.cursor_key = "pgsql:x@n1/ab"
        with_driver(driver, scenario)
        counts = "SELECT note, count(*), count(DISTINCT n) FROM t GROUP BY 1 ORDER BY 1"
        assert lines(server.psql(counts)) == ["0|3000|3000", "1|3000|3000"]
        assert lines(server.psql("SELECT DISTINCT key FROM shardbroker_cursors")) == ["pgsql:x@n1/ab"]
    assert any(isinstance(error, CursorMoved) for error in errors), "an answer was lost, though the rows were written"


def test_exactly_once_finds_refused_rows_and_counts_them_as_done() -> None:
    async def scenario() -> None:
        await refused_rows_are_done(driver, "check violation (SQLSTATE 23514), constraint positive, table t")

    with postgresql("CREATE TABLE t (n integer CONSTRAINT positive CHECK (n >= 0))") as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=True)
        with_driver(driver, scenario)
        assert server.psql("SELECT count(*), count(n) FROM t") == "997|996\n"


def test_exactly_once_finds_rows_that_are_refused_at_the_end_of_the_transaction() -> None:
    """A constraint that is deferred: the rows of one record, which have one position, are not written apart."""

    async def scenario() -> None:
        rows = rows_of([{"n": number} for number in range(100)])
        for row in rows[40:60]:
            row.position = 40
        failures = {failure.at: failure.reason for failure in await driver.write(rows)}
        assert failures == {50: "foreign key violation (SQLSTATE 23503), constraint known, table t"}

    tables = (
        "CREATE TABLE k (n integer PRIMARY KEY); INSERT INTO k SELECT g FROM generate_series(0, 99) AS g WHERE g <> 50;"
        "CREATE TABLE t (n integer CONSTRAINT known REFERENCES k DEFERRABLE INITIALLY DEFERRED)"
    )
    with postgresql(tables) as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=True)
        with_driver(driver, scenario)
        assert server.psql("SELECT count(*), (SELECT position FROM shardbroker_cursors) FROM t") == "99|100\n"


def test_exactly_once_has_no_batch_divided_by_others() -> None:
    """An error of the end of a transaction that is no row's to find: all of it is written again."""

    async def scenario() -> None:
        await driver.open()
        late = "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED"
        server.psql(f"{late} FOR EACH ROW EXECUTE FUNCTION no()")
        with pytest.raises(Exception) as caught:
            await driver.write(rows_of([{"n": number} for number in range(10)]))
        assert not isinstance(caught.value, Refused)
        failures = await driver.write(rows_of([{"n": number} for number in range(10)]))
        assert [failure.at for failure in failures] == [5]

    sql = (
        "CREATE TABLE t (n integer); CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.n = 5 THEN RAISE 'no' USING ERRCODE = 'MY001'; END IF; RETURN NULL; END $$;"
    )
    with postgresql(sql) as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=True)
        with_driver(driver, scenario)
        assert server.psql("SELECT count(*) FROM t") == "9\n"


def test_exactly_once_waits_for_a_transaction_that_has_not_ended() -> None:
    async def scenario() -> None:
        await driver.open()
        await driver.write(rows_of([{"n": 1}]))
        async with driver._connector.connection() as other:
            transaction = other.transaction()
            await transaction.start()
            assert await other.execute(pgsql.MOVE, "pgsql:x", "0", 1, 50) == "INSERT 0 1"
            opening = asyncio.create_task(driver.open())
            await asyncio.sleep(0.5)
            assert not opening.done()
            await transaction.commit()
            await opening
        assert await driver.stored() == {"0": 50}

    with postgresql("CREATE TABLE t (n integer)") as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=True)
        with_driver(driver, scenario)


def test_exactly_once_without_the_right_to_create_its_table_names_the_statement() -> None:
    async def scenario() -> None:
        with pytest.raises(Unusable, match=r"^exactly_once: must have the table shardbroker_cursors, got permission") as caught:
            await driver.open()
        ddl = str(caught.value).partition("create it: ")[2].replace("the user", "mqtt")
        server.psql(ddl)
        await driver.write(rows_of([{"n": 1}]))
        await driver.open()
        assert await driver.stored() == {"0": 1}

    with postgresql("CREATE TABLE t (n integer); CREATE ROLE one LOGIN SUPERUSER; ALTER DATABASE mqtt OWNER TO one") as server:
        server.psql("ALTER TABLE t OWNER TO one; GRANT ALL ON t TO mqtt; ALTER ROLE mqtt NOSUPERUSER")
        server.user = "one"
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=True)
        with_driver(driver, scenario)


# --- TimescaleDB ------------------------------------------------------------------------------------------------------------------

STUB = "CREATE FUNCTION create_hypertable(relation regclass, time_column name) RETURNS void LANGUAGE sql AS '';"
"""Debian has no TimescaleDB: only the SQL is tried."""


def test_statements_of_timescaledb() -> None:
    async def scenario() -> None:
        rows = [{"payload": {"location": "hall", "temp": 21.5 + number, "humidity": number}} for number in range(100)]
        assert await written(driver, rows_of(rows)) == {}

    sql = """
    INSERT INTO sensor_data (time, location, temperature, humidity)
    VALUES (NOW(), ${payload.location}, ${payload.temp}, ${payload.humidity})
    """
    table = "CREATE TABLE sensor_data (time timestamptz, location text, temperature double precision, humidity double precision);"
    with postgresql(f"{STUB}{table} SELECT create_hypertable('sensor_data', 'time')") as server:
        kind = SINK_TYPES["timescale"]
        connector = timescale.connect(kind.connector(server=f"127.0.0.1:{server.port}", username="mqtt"), "k")
        driver = timescale.make(kind.action.model_validate({"parameters": {"sql": sql}}), connector, "timescale:x")
        with_driver(driver, scenario)
        assert server.psql("SELECT count(*), max(temperature), max(humidity), location FROM sensor_data GROUP BY location") == (
            "100|120.5|99|hall\n"
        )
