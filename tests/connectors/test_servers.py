"""Every connector against the real server: lost and found again, slow, refusing, closed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from shardbroker.config import connectors as keys
from shardbroker.connectors.connector import Connector, State
from shardbroker.connectors.errors import ConnectionSettingError, describe
from shardbroker.connectors.server import address_of, tls_of
from tests.access import servers
from tests.edge.certificates import Authority
from tests.harness.broker import free_port
from tests.harness.needed import needed_module
from tests.servers.mongodb import mongodb
from tests.servers.redis import redis

TIMEOUT_S = 1.0
CONNECTIONS = 8
"""`*.pool_size`, the default."""
MONITORS = {"mongodb": 1}
"""The connection on which a library watches its server, beside the pool."""
BORROWERS, SLOW_S, ONE_MORE_S = 20, 0.01, 0.2
"""Requests at a time, what the server takes for each message, and for how long one connection too many is looked for."""
PATIENCE_S = 20.0
LDIF = """dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
dc: example
o: example

"""


class Proxy:
    """Between a connector and its server: can be cut, and can swallow what passes."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.silent = False
        self.delay_s = 0.0
        self.most = 0
        """Connections at a time."""
        self._target = target
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._tasks)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.most = max(self.most, self.connections)
        far: asyncio.StreamWriter | None = None
        try:
            answers, far = await asyncio.open_connection("127.0.0.1", self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far))
                group.create_task(self._pump(answers, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            while self.silent:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()
        raise ConnectionError


Echo = Callable[[Any, str], Awaitable[str]]


class Case:
    """`echo` has the server repeat a text where it can; `refused` is a request that the server answers with an error."""

    def __init__(self, connector: Callable[[int], Connector[Any]], echo: Echo, refused: Callable[[Any], Awaitable[object]]) -> None:
        self.connector, self.echo, self.refused = connector, echo, refused


def _postgresql() -> Case:
    from shardbroker.connectors.postgresql import Postgresql

    async def echo(lent: Any, text: str) -> str:
        return str(await lent.fetchval("SELECT $1::text", text))

    def connector(port: int) -> Postgresql:
        return Postgresql(keys.PostgresqlConnection(server=f"127.0.0.1:{port}", username="mqtt", timeout=TIMEOUT_S), "k")

    return Case(connector, echo, lambda lent: lent.fetch("SELECT x FROM nowhere"))


def _mysql() -> Case:
    from shardbroker.connectors.mysql import Mysql, literal

    async def echo(lent: Any, text: str) -> str:
        async with lent.cursor() as cursor:
            await cursor.execute(f"SELECT {literal(text)} AS said")
            (row,) = await cursor.fetchall()
            return str(row["said"])

    async def refused(lent: Any) -> None:
        async with lent.cursor() as cursor:
            await cursor.execute("SELECT nothing FROM (SELECT 1 AS x) AS y")

    def connector(port: int) -> Mysql:
        settings = keys.MysqlConnection(server=f"127.0.0.1:{port}", username="mqtt", password="dbsecret", timeout=TIMEOUT_S)
        return Mysql(settings, "k")

    return Case(connector, echo, refused)


def _redis() -> Case:
    from shardbroker.connectors.redis import Redis

    async def echo(lent: Any, text: str) -> str:
        return str(await lent.execute_command("ECHO", text))

    def connector(port: int) -> Redis:
        return Redis(keys.RedisConnection(server=f"127.0.0.1:{port}", password="dbsecret", timeout=TIMEOUT_S), "k")

    return Case(connector, echo, lambda lent: lent.execute_command("HGET", "x"))


def _mongodb() -> Case:
    from shardbroker.connectors.mongodb import Mongodb

    async def echo(lent: Any, text: str) -> str:
        await lent.said.insert_one({"text": text})
        found = await lent.said.find_one({"text": text})
        assert found is not None
        return str(found["text"])

    def connector(port: int) -> Mongodb:
        return Mongodb(keys.MongodbConnection(server=f"127.0.0.1:{port}", timeout=TIMEOUT_S), "k")

    return Case(connector, echo, lambda lent: lent.command("no_such_command"))


def _ldap() -> Case:
    bonsai = needed_module("bonsai")
    from shardbroker.connectors.ldap import Ldap

    async def echo(lent: Any, text: str) -> str:
        found = await lent.search("dc=example,dc=org", bonsai.LDAPSearchScope.SUBTREE, f"(|(dc=example)(dc={text}))")
        assert len(found) == 1
        return text

    def connector(port: int) -> Ldap:
        settings = keys.LdapConnection(
            server=f"127.0.0.1:{port}", username="cn=admin,dc=example,dc=org", password="dbsecret", timeout=TIMEOUT_S
        )
        return Ldap(settings, "k")

    return Case(connector, echo, lambda lent: lent.search("no name", bonsai.LDAPSearchScope.BASE))


def _http() -> Case:
    from shardbroker.connectors.http import Http, read_body

    async def echo(lent: Any, text: str) -> str:
        async with lent.get(f"{url[0]}/{text}") as answer:
            return (await read_body(answer, 100)).decode()

    async def refused(lent: Any) -> None:
        async with lent.get(f"{url[0]}/long") as answer:
            await read_body(answer, 3)

    def connector(port: int) -> Http:
        url[0] = f"http://127.0.0.1:{port}"
        return Http(keys.HttpConnection(url=url[0], timeout=TIMEOUT_S), "k")

    url = [""]
    return Case(connector, echo, refused)


@contextmanager
def server_of(kind: str) -> Iterator[int]:
    """A port; 0: the scenario serves by itself."""
    if kind == "http":
        yield 0
        return
    made: dict[str, Any] = {
        "postgresql": lambda: servers.postgresql(""),
        "mysql": lambda: servers.mariadb(""),
        "redis": lambda: redis(),
        "mongodb": lambda: mongodb([{"username": "a"}], [{"username": "a"}]),
        "ldap": lambda: servers.slapd(LDIF),
    }
    with made[kind]() as port:
        yield port


async def web_server() -> tuple[web.AppRunner, int]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.path.lstrip("/"))

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner, port


async def many_at_a_time(case: Case, connector: Connector[Any], proxy: Proxy) -> None:
    """More requests than connections; where a request borrows one, it keeps it until all are lent."""
    served = 0
    enough = asyncio.Event()

    async def borrow(text: str) -> None:
        nonlocal served
        async with connector.connection() as lent:
            assert await case.echo(lent, text) == text
            served += 1
            await enough.wait()

    connector._timeout_s, proxy.delay_s = PATIENCE_S, SLOW_S
    async with asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE_S):
        for number in range(BORROWERS):
            group.create_task(borrow(f"text{number}"))
        while served < CONNECTIONS:
            await asyncio.sleep(0.01)
        await asyncio.sleep(ONE_MORE_S)
        enough.set()
    connector._timeout_s, proxy.delay_s = TIMEOUT_S, 0


async def scenario(case: Case, port: int, connections: int) -> None:
    runner = None
    if not port:
        runner, port = await web_server()
    proxy = Proxy(port)
    await proxy.start()
    connector = case.connector(proxy.port)
    health = connector.health

    async def echo(text: str) -> None:
        async with connector.connection() as lent:
            assert await case.echo(lent, text) == text

    assert health.state is State.CONNECTING
    await connector.probe()
    assert health.state is State.CONNECTED and not health.last_error
    await many_at_a_time(case, connector, proxy)
    assert CONNECTIONS <= proxy.most <= connections

    with pytest.raises(Exception) as refused:
        async with connector.connection() as lent:
            await case.refused(lent)
    assert health.state is State.CONNECTED, "the server refuses one request, not the connector"
    assert health.last_error == describe(refused.value)

    proxy.silent = True
    began = time.monotonic()
    with pytest.raises(Exception):  # noqa: B017 - its library's, or TimeoutError
        await echo("late")
    assert time.monotonic() - began < 2 * TIMEOUT_S + 1
    assert health.state is State.DISCONNECTED
    proxy.silent = False
    await asyncio.wait_for(connector.reconnect(), 10)
    for number in range(10):
        await echo(f"own{number}")  # and not the answer that came too late

    await proxy.cut()
    for _ in range(20):
        with suppress(Exception):
            await echo("lost")
        if health.state is State.DISCONNECTED:
            break
    assert health.state is State.DISCONNECTED and health.last_error
    with pytest.raises(Exception):  # noqa: B017
        await connector.probe()
    back = asyncio.create_task(connector.reconnect())
    await asyncio.sleep(0.3)
    assert not back.done()
    await proxy.start()
    await asyncio.wait_for(back, 20)
    assert health.state is State.CONNECTED
    await echo("again")

    await connector.close()
    assert health.state is State.STOPPED
    for _ in range(100):
        if not proxy.connections:
            break
        await asyncio.sleep(0.02)
    assert not proxy.connections, "idle ones are closed too"
    await proxy.cut()
    if runner is not None:
        await runner.cleanup()


CASES = {"postgresql": _postgresql, "mysql": _mysql, "redis": _redis, "mongodb": _mongodb, "ldap": _ldap, "http": _http}


@pytest.mark.parametrize("kind", CASES)
def test_a_server_that_is_slow_then_lost_and_found_again(kind: str) -> None:
    case = CASES[kind]()
    with server_of(kind) as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as integrations has
        runner.run(scenario(case, port, CONNECTIONS + MONITORS.get(kind, 0)))


def test_settings_that_cannot_work_name_their_key() -> None:
    with pytest.raises(ConnectionSettingError, match=r"^k\.server: must be HOST:PORT, got ''$"):
        address_of(keys.Connection(), "k")
    assert address_of(keys.Connection(server="[::1]:5"), "k") == ("::1", 5)
    text = r"^k\.tls_ca: must be a PEM file of CA certificates, got '/none': No such file"
    with pytest.raises(ConnectionSettingError, match=text):
        tls_of(keys.Connection(tls=True, tls_ca="/none"), "k")


@pytest.mark.parametrize(
    ("authority", "host", "failure"),
    [("ours", "localhost", ""), ("ours", "127.0.0.1", "IP address mismatch"), ("other", "localhost", "self-signed certificate")],
)
def test_mysql_over_tls_checks_certificate_and_name(authority: str, host: str, failure: str) -> None:
    import asyncmy

    from shardbroker.connectors.mysql import Mysql

    async def cipher(port: int, ca: Path) -> str:
        settings = keys.MysqlConnection(
            server=f"{host}:{port}", username="mqtt", password="dbsecret", timeout=5, tls=True, tls_ca=str(ca)
        )
        connector = Mysql(settings, "k")
        try:
            async with connector.connection() as lent, lent.cursor() as cursor:
                await cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
                (row,) = await cursor.fetchall()
                return str(row["Value"])
        finally:
            assert (connector.health.state is State.DISCONNECTED) == bool(failure)
            await connector.close()

    with servers.folder() as where:
        authorities = {name: Authority(where, name) for name in ("ours", "other")}
        certificate = authorities["ours"].issue("server", "server", ("localhost",))
        for file in where.iterdir():
            file.chmod(0o644)
        options = [f"--ssl-ca={authorities['ours'].cafile}", f"--ssl-cert={certificate}", f"--ssl-key={certificate}"]
        with servers.mariadb("", *options) as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if not failure:
                assert runner.run(cipher(port, authorities[authority].cafile))
            else:
                with pytest.raises(asyncmy.OperationalError, match=failure):
                    runner.run(cipher(port, authorities[authority].cafile))
