"""The connector of MySQL against MariaDB: what is cancelled, killed, out of step, encoded, and refused."""

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncmy
import pytest
import uvloop

from shardbroker.config.connectors import MysqlConnection
from shardbroker.connectors.connector import State
from shardbroker.connectors.errors import describe
from shardbroker.connectors.mysql import Mysql, literal
from tests.access import servers
from tests.connectors.test_servers import Proxy
from tests.edge.certificates import Authority

TEXTS = ("", "Grüße €", "😀", "\\", "'; DROP TABLE x; --", '"', "%s", "?", "\0", "a\nb", "x" * 65536)
"""Values of placeholders; with other modes of the server, some of them end a string in quotes."""
PASSWORD = "pässwörd €"


@contextmanager
def mariadb(sql: str = "", *options: str) -> Iterator[int]:
    """A server with one more account, boss, whose statements can end connections."""
    more = "CREATE USER boss@'%' IDENTIFIED BY 'dbsecret'; GRANT ALL ON *.* TO boss@'%';"
    with servers.mariadb(more + sql, *options) as port:
        yield port


def made(port: int, **more: Any) -> Mysql:
    settings = {"server": f"127.0.0.1:{port}", "username": "mqtt", "password": "dbsecret", "pool_size": 1, "timeout": 5}
    return Mysql(MysqlConnection(**{**settings, **more}), "k")


async def value(connector: Mysql, expression: str) -> Any:
    """Returns the value of an expression."""
    async with connector.connection() as lent, lent.cursor() as cursor:
        await cursor.execute(f"SELECT {expression} AS said")
        (row,) = await cursor.fetchall()
        return row["said"]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as integrations has
        runner.run(asyncio.wait_for(scenario(), 60))


async def until_shown(boss: Mysql, query: str) -> int:
    """Returns the id of the connection that executes a query."""
    while True:
        async with boss.connection() as lent, lent.cursor() as cursor:
            await cursor.execute("SHOW PROCESSLIST")
            for row in await cursor.fetchall():
                if query in (row["Info"] or ""):
                    return int(row["Id"])
        await asyncio.sleep(0.01)


def test_a_cancelled_query_leaves_no_answer_behind() -> None:
    async def scenario() -> None:
        connector, boss = made(port), made(port, username="boss")
        before = await value(connector, "CONNECTION_ID()")
        for number in range(3):
            late = asyncio.create_task(value(connector, f"SLEEP(0.3) + {number + 100}"))
            await until_shown(boss, f"SLEEP(0.3) + {number + 100}")
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            for own in range(20):
                assert await value(connector, str(own)) == own
                await asyncio.sleep(0.02)
            before, after = await value(connector, "CONNECTION_ID()"), before
            assert before != after
        assert connector.health.state is State.CONNECTED
        await connector.close()
        await boss.close()

    with mariadb() as port:
        run(scenario)


def test_connections_that_the_server_ends_are_replaced() -> None:
    async def scenario() -> None:
        connector, boss = made(port), made(port, username="boss")

        async def kill(number: int) -> None:
            async with boss.connection() as lent, lent.cursor() as cursor:
                await cursor.execute(f"KILL {number}")

        idle = await value(connector, "CONNECTION_ID()")
        await kill(idle)
        await asyncio.sleep(0.2)
        assert await value(connector, "CONNECTION_ID()") != idle, "an idle one is found out without an error"

        asked = asyncio.create_task(value(connector, "SLEEP(30)"))
        await kill(await until_shown(boss, "SLEEP(30)"))
        with pytest.raises(asyncmy.MySQLError):
            await asked
        assert connector.health.state is State.DISCONNECTED
        assert await value(connector, "7") == 7
        assert connector.health.state is State.CONNECTED

        async with connector.connection() as lent, lent.cursor() as cursor:
            await cursor.execute("SET SESSION wait_timeout = 1")
        await asyncio.sleep(2.5)
        assert await value(connector, "8") == 8
        await connector.close()
        await boss.close()

    with mariadb() as port:
        run(scenario)


def test_a_connection_that_is_out_of_step_is_not_lent_again() -> None:
    async def scenario() -> None:
        connector = made(port)
        before = await value(connector, "CONNECTION_ID()")
        with pytest.raises(asyncmy.MySQLError):
            await value(connector, "nothing")
        assert await value(connector, "CONNECTION_ID()") == before, "a refused query does no harm"
        with pytest.raises(asyncmy.InternalError):
            async with connector.connection() as lent, lent.cursor() as cursor:
                await _with_wrong_number(lent, cursor)
        assert connector.health.state is State.DISCONNECTED
        assert await value(connector, "CONNECTION_ID()") != before
        await connector.close()

    async def _with_wrong_number(lent: Any, cursor: Any) -> None:
        await lent._execute_command(3, "SELECT 1")  # COM_QUERY
        lent._next_seq_id = 9
        await lent.read_packet()

    with mariadb() as port:
        run(scenario)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--skip-character-set-client-handshake", "--character-set-server=latin1", "--collation-server=latin1_swedish_ci"),
        ("--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH",),
    ],
    ids=["as it comes", "Latin-1", "other quotes"],
)
def test_texts_arrive_whatever_the_modes_of_the_server(options: tuple[str, ...]) -> None:
    async def scenario() -> None:
        connector = made(port, username="other", password=PASSWORD)
        for text in TEXTS:
            assert await value(connector, literal(text)) == text
            assert await value(connector, f"HEX({literal(text)})") == text.encode().hex().upper()
        assert await value(connector, literal(None)) is None
        assert await value(connector, "X'00FF27'") == b"\0\xff'"
        assert await value(connector, "CAST(1 AS UNSIGNED)") == 1
        assert await value(connector, "(SELECT name FROM names WHERE name = " + literal("Grüße 😀") + ")") == "Grüße 😀"
        await connector.close()

    sql = (
        f"SET NAMES utf8mb4; CREATE USER other@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON mqtt.* TO other@'%';"
        "CREATE TABLE names (name VARCHAR(100) CHARACTER SET utf8mb4); INSERT INTO names VALUES ('Grüße 😀');"
    )
    with mariadb(sql, *options) as port:
        run(scenario)


def test_what_the_server_refuses_is_told_from_a_server_that_is_lost() -> None:
    async def scenario() -> None:
        connector = made(port)
        await connector.probe()
        for query in ("INSERT INTO mqtt.few VALUES (5)", "SELECT 1 + ROW(1, 2)", "SELECT x FROM nowhere", "SELECT POINT(1, 1) + 1"):
            with pytest.raises(asyncmy.MySQLError) as refused:
                async with connector.connection() as lent, lent.cursor() as cursor:
                    await cursor.execute(query)
            assert connector.health.state is State.CONNECTED, refused.value
            assert connector.health.last_error == describe(refused.value)
        await connector.close()
        for user, password in (("locked", "dbsecret"), ("mqtt", "wrong"), ("ciphered", "dbsecret"), ("many", "dbsecret")):
            connector = made(port, username=user, password=password, pool_size=2)
            with suppress(asyncmy.MySQLError):
                async with connector.connection() as _, connector.connection() as _:
                    pass
            assert connector.health.state is State.DISCONNECTED, user
            await connector.close()

    sql = (
        "CREATE TABLE few (number INT CHECK (number < 5));"
        "CREATE USER locked@'%' IDENTIFIED BY 'dbsecret' ACCOUNT LOCK;"
        "CREATE USER ciphered@'%' IDENTIFIED BY 'dbsecret' REQUIRE SSL;"
        "CREATE USER many@'%' IDENTIFIED BY 'dbsecret' WITH MAX_USER_CONNECTIONS 1; GRANT ALL ON mqtt.* TO locked@'%', many@'%';"
    )
    with mariadb(sql) as port:
        run(scenario)


def test_tls_to_a_server_without_it_sends_no_password_and_keeps_no_socket() -> None:
    async def scenario() -> None:
        heard = bytearray()

        class Listening(Proxy):
            async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while data := await reader.read(65536):
                    heard.extend(data)
                    writer.write(data)
                    await writer.drain()
                raise ConnectionError

        proxy = Listening(port)
        await proxy.start()
        connector = made(proxy.port, tls=True, timeout=0.5, username="plainly")
        fds = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises((asyncmy.MySQLError, TimeoutError)):
                await connector.probe()
            assert connector.health.state is State.DISCONNECTED
        assert heard and b"plainly" not in heard
        await connector.close()
        await proxy.cut()
        await asyncio.sleep(0.2)
        assert len(os.listdir("/proc/self/fd")) <= fds

    with mariadb("", "--skip-ssl") as port:
        run(scenario)


def test_close_ends_idle_connections_over_tls_to_a_server_that_has_stopped() -> None:
    async def scenario(ca: Path) -> None:
        proxy = Proxy(port)
        await proxy.start()
        settings = {"tls": True, "tls_ca": str(ca), "pool_size": 3, "timeout": 1, "server": f"localhost:{proxy.port}"}
        connector = made(port, **settings)
        async with connector.connection() as _, connector.connection() as _, connector.connection() as _:
            assert proxy.connections == 3
        lent = list(connector._lent)
        assert len(lent) == 3 and all(one.connected for one in lent)
        proxy.silent = True
        await connector.close()
        assert not any(one.connected for one in lent)
        proxy.silent = False
        await proxy.cut()

    with servers.folder() as where:
        authority = Authority(where, "ours")
        certificate = authority.issue("server", "server", ("localhost",))
        for file in where.iterdir():
            file.chmod(0o644)
        options = [f"--ssl-ca={authority.cafile}", f"--ssl-cert={certificate}", f"--ssl-key={certificate}"]
        with mariadb("", *options) as port:
            run(lambda: scenario(Path(authority.cafile)))


def test_no_other_library_of_mysql_is_needed() -> None:
    code = "import sys, shardbroker.connectors.mysql, shardbroker.integrations.auth.mysql; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "asyncmy" in modules and not {"aiomysql", "pymysql", "MySQLdb"} & set(modules)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = " ".join(text for extra in project["optional-dependencies"].values() for text in extra).lower()
    assert "asyncmy" in wanted and "aiomysql" not in wanted and "pymysql" not in wanted
