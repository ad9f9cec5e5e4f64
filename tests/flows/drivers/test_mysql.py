"""The driver of MySQL against MariaDB: types, NULL, hostile values, rows that fail, lost servers, exactly once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from shardbroker.config.sinks.mysql import MysqlAction, MysqlConnector
from shardbroker.connectors.connector import State
from shardbroker.connectors.errors import describe
from shardbroker.flows.drivers import mysql
from shardbroker.flows.drivers.sql_cursors import CursorMoved
from shardbroker.flows.sinks.driver import Unusable
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
from tests.servers.mysql import Mariadb, mariadb

WAYS = {
    "many": "INSERT INTO {t} ({columns}) VALUES ({values})",
    "rows": "INSERT INTO {t} ({columns}) SELECT {values}",
}
"""The ways of writing, each by a statement that leads to it."""


KEEPS = "--innodb-flush-log-at-trx-commit=2"
"""A server that is killed has what it has committed."""


def made(server: Mariadb, sql: str, *, timeout: float = 5, **parameters: Any) -> mysql.MysqlDriver:
    settings = MysqlConnector(server=f"127.0.0.1:{server.port}", username="mqtt", password="dbsecret", timeout=timeout, pool_size=2)
    action = MysqlAction.model_validate({"parameters": {"sql": sql, **parameters}})
    return mysql.MysqlDriver(action.parameters, mysql.connect(settings, "connectors.mysql.x"), "mysql:x")


def statement(way: str, table: str, columns: str) -> str:
    values = ", ".join(f"${{{name.strip()}}}" for name in columns.split(","))
    return WAYS[way].format(t=table, columns=columns, values=values)


def with_driver(driver: mysql.MysqlDriver, scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await scenario()
        finally:
            await driver.close()
            await driver._connector.close()

    run(whole)


def lines(printed: str) -> list[str]:
    return printed.split("\n")[:-1]


TYPED = {
    "i1": ("TINYINT", [1, -128, "7", 3.0], ["1", "-128", "7", "3"], [128, True, "x", 1.5, b"\xff", {}]),
    "i4": ("INT", [1, 2147483647], ["1", "2147483647"], [2147483648, False, "1e3"]),
    "u8": ("BIGINT UNSIGNED", [0, 2**64 - 1], ["0", str(2**64 - 1)], [2**64, -1, float("inf"), float("nan")]),
    "f4": ("FLOAT", [1.5, 2, "0.25"], ["1.5", "2", "0.25"], [1e39, 10**400, float("inf"), True]),
    "f8": ("DOUBLE", [1.1, 2, 1e300], ["1.1", "2", "1e300"], [10**400, float("nan"), float("-inf"), [1]]),
    "de": ("DECIMAL(40,3)", [0.1, 10**30, "123.450"], ["0.100", f"{10**30}.000", "123.450"], ["1e999999", "x", float("nan")]),
    "bo": ("BOOLEAN", [1, 0], ["1", "0"], ["yes?"]),
    "te": ("TEXT", ["ß 😀", 5, 1.5, True, {"a": 1}, "a\0b"], ["ß 😀", "5", "1.5", "true", '{"a":1}', "a\\0b"], [b"\xff", "\ud800"]),
    "vc": ("VARCHAR(3)", ["abc", "😀"], ["abc", "😀"], ["abcd"]),
    "bl": ("BLOB", [b"A\xffB", "é"], ["41FF42", "C3A9"], []),
    "dt": (
        "DATETIME(3)",
        [1_700_000_000_123, "2023-11-14T23:13:20+01:00"],
        ["2023-11-14 22:13:20.123", "2023-11-14 22:13:20.000"],
        [10**18, "yesterday", float("nan"), True],
    ),
    "ts": (
        "TIMESTAMP(6) NULL",
        [1_700_000_000_123, "2023-11-14T23:13:20+01:00", 1000, 2_147_483_647_000],
        ["1700000000.123000", "1700000000.000000", "1.000000", "2147483647.000000"],
        [0, -1, 2_147_483_648_000, "yesterday", {}],
    ),
    "da": ("DATE", [1_700_000_000_000, "2023-11-14"], ["2023-11-14", "2023-11-14"], ["14.11.2023"]),
    "ti": ("TIME", ["23:59:59"], ["23:59:59"], ["noon"]),
    "en": ("ENUM('sad', 'ok')", ["ok"], ["ok"], ["glad"]),
}  # fmt: skip
"""Column -> its type, values that are written, what the client shows of them, and values that fail."""
SHOWN = {"bl": "HEX(bl)", "ts": "UNIX_TIMESTAMP(ts)"}


@pytest.mark.parametrize("options", [(), ("--default-time-zone=+07:00",)], ids=["", "other time zone"])
def test_values_arrive_with_their_types_and_those_that_do_not_fit_fail_alone(options: tuple[str, ...]) -> None:
    async def scenario() -> None:
        for name, (_, good, _, bad) in TYPED.items():
            driver = made(server, statement("many", name, "n, " + name))
            values = [*good[:1], *bad, None, *good[1:]]
            failed = await written(driver, rows_of([{"n": number, name: value} for number, value in enumerate(values)]))
            assert sorted(failed) == [*range(1, 1 + len(bad))], (name, failed)
            for reason in failed.values():
                assert reason.startswith(f"${{{name}}}: must be ") or "(error 1" in reason, reason
                assert "yesterday" not in reason and "glad" not in reason
            await driver._connector.close()

    tables = [f"CREATE TABLE {name} (n INT, {name} {kind}) CHARACTER SET utf8mb4;" for name, (kind, *_) in TYPED.items()]
    with mariadb("".join(tables), *options) as server:
        run(scenario)
        for name, (_, _, shown, _) in TYPED.items():
            found = lines(server.client(f"SELECT {SHOWN.get(name, name)} FROM mqtt.{name} ORDER BY n"))
            assert found == [*shown[:1], "NULL", *shown[1:]], name


BYTES = [b"\xff\0A", b"a\xffb", b"gr\xc3\xbcn", "text"]


@pytest.mark.parametrize("mode", ["", "STRICT_TRANS_TABLES", "ANSI_QUOTES"])
def test_bytes_that_are_no_text_fail_for_a_column_of_text_in_whatever_way_and_mode(mode: str) -> None:
    """A server without strict mode would write ? for them."""
    ways = {
        "plain": "INSERT INTO plain (n, te, bl) VALUES (${n}, ${payload}, NULL)",
        "expression": "INSERT INTO expression (n, te) VALUES (${n}, CONCAT(${payload}, ''))",
        "query": "INSERT INTO query (n, te) SELECT ${n}, ${payload}",
        "change": "INSERT INTO `change` (n, te) VALUES (${n}, '') ON DUPLICATE KEY UPDATE te = ${payload}",
        "bytes": "INSERT INTO bytes (n, bl) SELECT ${n}, ${payload}",
    }
    tables = [f"CREATE TABLE `{one}` (n INT PRIMARY KEY, te TEXT CHARACTER SET utf8mb4, bl BLOB);" for one in ways]

    async def scenario() -> None:
        for way, sql in ways.items():
            driver = made(server, sql)
            failed = await written(driver, rows_of([{"n": number, "payload": value} for number, value in enumerate(BYTES)]))
            assert list(failed) == ([] if way == "bytes" else [0, 1]), (way, failed)
            for reason in failed.values():
                assert reason in ("${payload}: must be text in UTF-8, got bytes", "wrong value (error 1366)")
            await driver.close()
            await driver._connector.close()

    old = "INSERT INTO `change` VALUES (0, '', NULL), (1, '', NULL), (2, '', NULL), (3, '', NULL);"
    with mariadb("".join(tables) + old, f"--sql-mode={mode}") as server:
        run(scenario)
        for way in ways:
            shown = lines(server.client(f"SELECT HEX(COALESCE(te, bl)) FROM mqtt.`{way}` WHERE te != '' OR bl != '' ORDER BY n"))
            assert shown == [*(["FF0041", "61FF62"] if way == "bytes" else []), "6772C3BC6E", "74657874"], way


HOSTILE = [
    "'; DROP TABLE t; --", '"', "\\", "\\'", "''", "$1", "?", "${topic}", "%s", "{}", "a\nb\tc\r", "\0", "\x1a", "\u2028",
    "x" * 100_000, "\\N", "NULL", "/*", "`", "\xbf\x27",
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES",),
        ("--skip-character-set-client-handshake", "--character-set-server=gbk", "--collation-server=gbk_chinese_ci"),
    ],
    ids=["as it comes", "other quotes", "GBK"],
)
def test_hostile_values_are_values(way: str, options: tuple[str, ...]) -> None:
    async def scenario() -> None:
        rows = [{"n": number, "topic": text, "payload": text.encode() + b"\0\xff\xbf'"} for number, text in enumerate(HOSTILE)]
        assert await written(driver, rows_of(rows)) == {}

    with mariadb("CREATE TABLE t (n INT, topic MEDIUMTEXT CHARACTER SET utf8mb4, payload MEDIUMBLOB)", *options) as server:
        driver = made(server, statement(way, "t", "n, topic, payload"))
        with_driver(driver, scenario)
        shown = lines(server.client("SELECT LOWER(HEX(topic)), LOWER(HEX(payload)) FROM mqtt.t ORDER BY n"))
        assert shown == [f"{one.encode().hex()}\t{one.encode().hex()}00ffbf27" for one in HOSTILE]


@pytest.mark.parametrize("way", WAYS)
def test_one_row_among_10_000_that_the_server_refuses_is_alone(way: str) -> None:
    async def scenario() -> None:
        rows = rows_of([{"n": number, "note": "secret"} for number in range(10_000)], first=2**62)
        rows[7_000].values["n"] = -1
        failed = {}
        for at in range(0, 10_000, 999):
            failed |= await written(driver, rows[at : at + 999])
        assert failed == {2**62 + 7_000: "CONSTRAINT `positive` failed for `mqtt`.`t` (error 4025)"}

    with mariadb("CREATE TABLE t (n INT, note TEXT, CONSTRAINT positive CHECK (n >= 0))") as server:
        driver = made(server, statement(way, "t", "n, note"))
        with_driver(driver, scenario)
        assert server.client("SELECT count(*), min(n), max(n) FROM mqtt.t") == "9999\t0\t9999\n"


def test_missing_fields_are_null_or_the_text_undefined() -> None:
    async def scenario() -> None:
        sql = "INSERT INTO t (n, note) VALUES (${a.b}, ${payload.note})"
        plain, as_null = made(server, sql), made(server, sql, undefined_vars_as_null=True)
        rows = rows_of([{"a": {"b": 1}}, {}, {"a": '{"b": 3}', "payload": {"note": None}}])
        failed = await written(plain, rows)
        assert [*failed] == [1] and failed[1].endswith("got no value; undefined_vars_as_null = true writes NULL")
        assert await written(as_null, rows) == {}
        for driver in (plain, as_null):
            await driver._connector.close()

    with mariadb("CREATE TABLE t (at SERIAL, n INT, note TEXT)") as server:
        run(scenario)
        assert lines(server.client("SELECT n, note FROM mqtt.t ORDER BY at")) == [
            "1\tundefined", "3\tNULL", "1\tNULL", "NULL\tNULL", "3\tNULL"
        ]  # fmt: skip


def test_expressions_keys_and_other_statements() -> None:
    async def scenario() -> None:
        message = {"id": "x", "topic": "a/b", "qos": 1, "payload": "hello", "timestamp": 1_700_000_000_000}
        emqx = (
            "insert into mqtt_msg(msgid, topic, qos, payload, arrived)"
            " values (${id}, ${topic}, ${qos}, ${payload}, FROM_UNIXTIME(${timestamp}/1000))"
        )
        for sql, count in (
            (emqx.replace("insert", "insert IGNORE"), 5),
            (emqx + " on duplicate key update qos = qos + VALUES(qos)", 5),
            (emqx.replace("insert", "REPLACE"), 3),
            (emqx + " on duplicate key update qos = qos + ${qos} -- for each row", 2),
            ("UPDATE mqtt_msg SET payload = concat(payload, ${payload}) WHERE msgid = ${id}", 2),
            ("INSERT INTO mqtt_msg SET msgid = ${topic}, qos = 9", 1),
            ("DELETE FROM mqtt_msg WHERE msgid = ${topic}", 1),
            ("INSERT INTO mqtt_msg () VALUES ()", 2),
        ):
            driver = made(server, sql)
            await driver.open()
            await driver.probe()
            assert await written(driver, rows_of([{**message, "qos": 1}] * count)) == {}, sql
            await driver._connector.close()

    with mariadb("CREATE TABLE mqtt_msg (msgid VARCHAR(64) UNIQUE, topic TEXT, qos INT, payload TEXT, arrived DATETIME)") as server:
        run(scenario)
        shown = "SELECT msgid, topic, qos, payload, UNIX_TIMESTAMP(arrived) FROM mqtt.mqtt_msg ORDER BY msgid"
        assert lines(server.client(shown)) == [
            "NULL\tNULL\tNULL\tNULL\tNULL", "NULL\tNULL\tNULL\tNULL\tNULL", "x\ta/b\t3\thellohellohello\t1700000000"
        ]  # fmt: skip


def test_batches_respect_the_limit_of_a_packet() -> None:
    async def scenario() -> None:
        rows = rows_of([{"n": number, "payload": "ü" * (number % 7) * 5000} for number in range(300)])
        rows[150].values["payload"] = "x" * 2_000_000
        assert await written(driver, rows) == {150: "a row is longer than max_allowed_packet of the server, 1048576 bytes"}

    with mariadb("CREATE TABLE t (n INT, payload MEDIUMTEXT CHARACTER SET utf8mb4)", "--max-allowed-packet=1M") as server:
        driver = made(server, statement("many", "t", "n, payload"))
        with_driver(driver, scenario)
        assert server.client("SELECT count(*), max(length(payload)) FROM mqtt.t") == "299\t60000\n"


# --- errors -----------------------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named_and_found_again() -> None:
    async def scenario() -> None:
        values = "VALUES (${n})"
        for sql, text in (
            (f"INSERT INTO nowhere (n) {values}", "Table 'mqtt.nowhere' doesn't exist (error 1146)"),
            (f"INSERT INTO t (m) {values}", "Unknown column 'm' in"),
            (f"INSERT INTO t (n) {values} garbage", "near 'garbage' at line 1 (error 1064)"),
            (f"INSERT INTO closed.t (n) {values}", "command denied to user 'mqtt'@'localhost' for table `closed`.`t` (error 1142)"),
        ):
            driver = made(server, sql)
            for attempt in (driver.open, driver.probe, partial(driver.write, rows_of([{"n": 1}]))):
                with pytest.raises(Unusable) as caught:
                    await attempt()
                assert text in str(caught.value), caught.value
            await driver._connector.close()
        driver = made(server, f"INSERT INTO t (n) {values}")
        await driver.write(rows_of([{"n": 1}]))
        server.client("ALTER TABLE mqtt.t CHANGE n m INT")
        with pytest.raises(Unusable):
            await driver.write(rows_of([{"n": 2}]))
        server.client("ALTER TABLE mqtt.t ADD n TEXT")
        assert await written(driver, rows_of([{"n": "text"}])) == {}, "types are read again"
        await driver._connector.close()

    with mariadb("CREATE TABLE t (n INT); CREATE DATABASE closed; CREATE TABLE closed.t (n INT)") as server:
        run(scenario)


def test_a_probe_says_why_the_server_cannot_be_used() -> None:
    async def probed(text: str, **settings: Any) -> None:
        keys = {"server": f"127.0.0.1:{server.port}", "username": "mqtt", "password": "dbsecret", "database": "mqtt", "timeout": 3}
        connector = mysql.connect(MysqlConnector(**{**keys, **settings}), "k")
        action = MysqlAction.model_validate({"parameters": {"sql": "INSERT INTO t VALUES (${n})"}})
        driver = mysql.make(action, connector, "mysql:x")
        for call in (driver.probe, driver.open):
            with pytest.raises(Exception) as caught:
                await call()
            shown = str(caught.value) if isinstance(caught.value, Unusable) else describe(caught.value)
            assert text in shown and "another" not in shown, shown
            assert text in connector.health.last_error
        assert connector.health.state is State.DISCONNECTED
        await connector.close()

    async def scenario() -> None:
        await probed("Access denied for user 'mqtt'@'localhost' (using password: YES) (error 1045)", password="another")
        await probed("nothing", database="nothing")
        await probed("Can't connect to MySQL server on '127.0.0.1'", server="127.0.0.1:1")
        await probed("SSL", tls=True)
        await probed("nowhere.invalid", server="nowhere.invalid:5432")

    with mariadb("", "--skip-ssl") as server:
        run(scenario)


SIGNALLING = """
CREATE TABLE t (n INT, CONSTRAINT small CHECK (n < 99));
DELIMITER //
CREATE TRIGGER reject BEFORE INSERT ON t FOR EACH ROW BEGIN
    IF NEW.n = 13 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'secret'; END IF;
    IF NEW.n = 14 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'secret', MYSQL_ERRNO = 30001; END IF;
END //
DELIMITER ;
"""


@pytest.mark.parametrize("once", [False, True])
def test_a_row_with_an_error_that_is_in_no_list_fails_alone(once: bool) -> None:
    """SIGNAL with and without a number of the trigger's own, and CHECK."""
    bad = {
        13: "refused by the server (error 1644)",
        14: "refused by the server (error 30001)",
        99: "CONSTRAINT `small` failed for `mqtt`.`t` (error 4025)",
    }
    bad = bad if once else {14: bad.pop(14), **bad}
    with mariadb(SIGNALLING) as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=once)
        again = partial(server.client, "DROP TRIGGER mqtt.reject")
        with_driver(driver, lambda: rows_that_a_trigger_rejects_fail_alone(driver, again, bad))
        assert server.client("SELECT count(*) FROM mqtt.t") == ("97\n" if once else "98\n")


def test_states_of_the_server_that_pass_fail_no_row() -> None:
    """A server that is read-only, and a table in memory that is full."""
    table = "CREATE TABLE t (n INT); CREATE TABLE small (n INT, filler CHAR(250) DEFAULT '') ENGINE=MEMORY;"
    fill = "USE mqtt; INSERT INTO small (n) SELECT seq FROM seq_1_to_60;"
    with mariadb(table, "--max-heap-table-size=16K") as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})")
        server.client("SET GLOBAL read_only = 1")
        with_driver(driver, partial(row_is_written_later, driver, partial(server.client, "SET GLOBAL read_only = 0"), "read-only"))
        server.client(fill, "--force")
        driver = made(server, "INSERT INTO small (n) VALUES (${n})")
        empty = partial(server.client, "DELETE FROM mqtt.small")
        with_driver(driver, partial(row_is_written_later, driver, empty, "The table 'small' is full (error 1114)"))
        assert server.client("SELECT count(*) FROM mqtt.t UNION ALL SELECT count(*) FROM mqtt.small") == "2\n2\n"


def test_a_server_that_is_killed_or_paused_is_found_again_without_a_missing_row() -> None:
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

    with mariadb("CREATE TABLE t (n INT)", KEEPS) as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", timeout=0.5)
        with_driver(driver, scenario)
        assert server.client("SELECT count(DISTINCT n) FROM mqtt.t") == "2000\n"
    assert errors.count(NO_RESPONSE) >= 2 and len(set(errors)) > 1, errors


# --- exactly once -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_exactly_once_over_kills_pauses_and_lost_answers(way: str) -> None:
    errors: list[Exception] = []

    async def lost_answer(driver: mysql.MysqlDriver, rows: list[Row]) -> None:
        """Cancels a write somewhere between its first statement and the answer of its COMMIT; of each tenth, only the answer."""
        task = asyncio.create_task(driver.write(rows))
        if rows[0].position // 100 % 10:
            await asyncio.sleep(0.001 * (rows[0].position // 100 % 9))
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

    with mariadb("CREATE TABLE t (n INT, note TEXT)", KEEPS) as server:
        driver = made(server, statement(way, "t", "n, note"), timeout=0.5, exactly_once=True)
        assert driver.stores_cursor
        driver.cursor_key = "mysql:x@n1/ab"
        with_driver(driver, scenario)
        counts = "SELECT note, count(*), count(DISTINCT n) FROM mqtt.t GROUP BY 1 ORDER BY 1"
        assert lines(server.client(counts)) == ["0\t3000\t3000", "1\t3000\t3000"]
        assert lines(server.client("SELECT DISTINCT `key` FROM mqtt.shardbroker_cursors")) == ["mysql:x@n1/ab"]
    assert any(isinstance(error, CursorMoved) for error in errors), "an answer was lost, though the rows were written"


def test_exactly_once_finds_refused_rows_and_counts_them_as_done() -> None:
    async def scenario() -> None:
        await refused_rows_are_done(driver, "CONSTRAINT `positive` failed for `mqtt`.`t` (error 4025)")

    with mariadb("CREATE TABLE t (n INT, CONSTRAINT positive CHECK (n >= 0))") as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=True)
        with_driver(driver, scenario)
        assert server.client("SELECT count(*), count(n) FROM mqtt.t") == "997\t996\n"


def test_exactly_once_needs_its_table_and_transactions() -> None:
    async def scenario() -> None:
        with pytest.raises(Unusable, match=r"^exactly_once: must have the table shardbroker_cursors, got CREATE command") as caught:
            await driver.open()
        server.client("USE mqtt; " + str(caught.value).partition("create it: ")[2])
        server.client("GRANT ALL ON mqtt.shardbroker_cursors TO mqtt@'%'")
        await driver.write(rows_of([{"n": 1}]))
        await driver.open()
        assert await driver.stored() == {"0": 1}
        other = made(server, "INSERT INTO old (n) VALUES (${n})", exactly_once=True)
        with pytest.raises(Unusable, match=r"^exactly_once: must be a table with transactions, got old with the engine MyISAM$"):
            await other.open()
        await other._connector.close()

    sql = "CREATE TABLE t (n INT); CREATE TABLE old (n INT) ENGINE=MyISAM; REVOKE ALL ON mqtt.* FROM mqtt@'%';"
    with mariadb(sql + "GRANT SELECT, INSERT, UPDATE ON mqtt.* TO mqtt@'%'") as server:
        driver = made(server, "INSERT INTO t (n) VALUES (${n})", exactly_once=True)
        with_driver(driver, scenario)
