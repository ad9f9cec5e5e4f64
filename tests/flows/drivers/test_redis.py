"""The driver of Redis against real servers; rows are read back by redis-cli."""

import asyncio
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shardbroker.config.connectors import RedisConnection
from shardbroker.config.sinks.redis import RedisAction, RedisConnector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.connectors.redis import Redis
from shardbroker.flows.drivers.redis import connect, make
from shardbroker.flows.sinks.driver import Driver, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.maps import _redis_arguments as hset_args
from tests.access.servers import folder
from tests.docs.pages import ROOT
from tests.edge.certificates import Authority
from tests.flows.drivers.delivery import deliver, opened, run, some_rows
from tests.flows.drivers.pages import settings_of
from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.redis import PASSWORD, cli, cluster, redis, redis_server, watched
from tests.servers.service import Service

pytestmark = pytest.mark.own_broker
needed("redis-server", "redis-cli")
TIMEOUT_S = 2.0
HASH = ["HSET", "msg:${id}", "topic", "${topic}", "n", "${n}"]


def connector(port: int = 1, **more: Any) -> Redis:
    settings = {"server": f"127.0.0.1:{port}", "password": PASSWORD, "timeout": TIMEOUT_S, **more}
    return connect(RedisConnector.model_validate(settings), "connectors.redis.x")


def driver(over: Redis, *words: str) -> Driver:
    return make(RedisAction.model_validate({"parameters": {"command_template": list(words)}}), over, "redis:x")


def row(**values: Any) -> Row:
    return Row("0", 5, "c", values, "1F", "n1")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with redis() as found:
        yield found


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "port" in request.fixturenames:
        cli(request.getfixturevalue("port"), "FLUSHALL")


def write(port: int, words: list[str], *rows: Row) -> list[tuple[int, str, bool]]:
    async def scenario() -> Any:
        one = await opened(driver(over, *words))
        return [tuple(failure) for failure in await one.write(rows)]

    over = connector(port)
    return run(scenario(), over)  # type: ignore[no-any-return]


HOSTILE = [
    "x\r\n*1\r\n$8\r\nFLUSHALL\r\n", "${topic}", "${.}", "a b", "'\"`$(reboot)", "\x00\x01", "*", "", "grün 𝄞", "NX", "a" * 300_000,
    "\n", "-ERR", "$-1\r\n",
]  # fmt: skip


def test_values_are_arguments_with_their_text(port: int) -> None:
    words = ["HSET", "k:${n}", "text", "${text}", "within", "<${text}|${n}>", "id", "${id}", "position", "${position}"]
    rows = [row(n=at, text=text) for at, text in enumerate(HOSTILE)]
    assert write(port, words, *rows) == []
    assert cli(port, "DBSIZE") == len(HOSTILE)
    for at, text in enumerate(HOSTILE):
        found = cli(port, "HGETALL", f"k:{at}")
        assert found == {"text": text, "within": f"<{text}|{at}>", "id": "1F", "position": "n1/0/5"}


def test_values_of_all_types(port: int) -> None:
    values: dict[str, Any] = {
        "int": -(2**70), "float": 21.5, "yes": True, "none": None, "map": {"a": [1, {"b": "x"}]}, "list": [{"a": 1}],
        "text": "grün", "nested": {"a": {"b": 7}}, "json": '{"a": {"c": 8}}',
    }  # fmt: skip
    names = [*values, "gone", "nested.a.b", "json.a.c", "nested.x.y"]
    words = ["HSET", "all", *(word for name in names for word in (name, f"${{{name}}}"))]
    assert write(port, words, row(**values)) == []
    assert cli(port, "HGETALL", "all") == {
        "int": str(-(2**70)), "float": "21.5", "yes": "true", "none": "null", "map": '{"a":[1,{"b":"x"}]}', "list": '[{"a":1}]',
        "text": "grün", "nested": '{"a":{"b":7}}', "json": '{"a": {"c": 8}}', "gone": "undefined", "nested.a.b": "7",
        "json.a.c": "8", "nested.x.y": "undefined",
    }  # fmt: skip


def test_bytes_stay_bytes(port: int) -> None:
    raw = bytes(range(256))
    assert write(port, ["SET", "${key}", "${raw}"], row(key=b"\xff\x00", raw=raw)) == []
    digest = cli(port, "EVAL", "return redis.sha1hex(redis.call('GET', '\\255\\0'))", "0")
    assert digest == hashlib.sha1(raw).hexdigest()


def test_a_value_without_a_text_fails_alone(port: int) -> None:
    rows = [row(n=1, x=1.0), row(n=2, x=float("nan")), row(n=3, x="\ud800"), row(n=4, x="y")]
    reason = "a value cannot be written as text"
    assert write(port, ["SET", "k:${n}", "${x}"], *rows) == [(1, reason, False), (2, reason, False)]
    assert sorted(cli(port, "KEYS", "*")) == ["k:1", "k:4"]


def test_fields_of_a_hash_from_a_map(port: int) -> None:
    words = ["HSET", "h:${n}", "${fields}"]
    rows = [row(n=1, fields=hset_args({"a": 1, "b": "x y"})), row(n=2, fields=hset_args({})), row(n=3, fields="text")]
    failures = write(port, words, *rows)
    assert cli(port, "HGETALL", "h:1") == {"a": "1", "b": "x y"}
    assert [failure[0] for failure in failures] == [1, 2]
    assert all(failure[1:] == ("ERR wrong number of arguments for", False) for failure in failures)


def test_a_client_cannot_add_arguments_to_another_command(port: int) -> None:
    cli(port, "SET", "k", "old")
    assert write(port, ["SET", "k", "${x}"], row(x=["map_to_redis_hset_args", "new", "KEEPTTL"])) == []
    assert cli(port, "GET", "k") == '["map_to_redis_hset_args","new","KEEPTTL"]'


def test_order_and_a_poison_row_among_ten_thousand(port: int) -> None:
    cli(port, "SET", "list:poison", "no list")
    rows = some_rows(10_000, lambda number: {"key": "poison" if number == 7_777 else "rows"})

    async def scenario() -> Any:
        return await deliver(await opened(driver(over, "RPUSH", "list:${key}", "${n}")), rows)

    over = connector(port)
    done = run(scenario(), over)
    assert [(one.values["n"], reason) for one, reason in done.failed] == [
        (7_777, "WRONGTYPE Operation against a key holding the wrong kind of value")
    ]
    assert cli(port, "LRANGE", "list:rows", "0", "-1") == [str(number) for number in range(10_000) if number != 7_777]
    assert not done.attempts and not done.refused


def test_reasons_do_not_cite_values(port: int) -> None:
    secret = "s3cret"
    cases = [
        (["HINCRBY", "h", "n", "${x}"], "ERR value is not an integer or out of range"),
        (["EVAL", "return redis.error_reply('ERR ' .. ARGV[1])", "1", "k", "${x}"], "ERR"),
        (["GEOADD", "g", "999", "10", "${x}"], "ERR invalid longitude,latitude pair"),
        (["SET", "k", "v", "${x}"], "ERR syntax error"),
    ]
    for words, reason in cases:
        assert write(port, words, row(x=secret)) == [(0, reason, False)]


# --- settings that cannot work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MULTI", "subscribe", "${topic}", "", "CLIENT", "SHUTDOWN", "SELECT", "HSET x"])
def test_a_command_that_would_spoil_the_connection_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=r"^redis:x: parameters.command_template: must begin with a command without placeholders"):
        driver(connector(1), *([name, "x"] if name else []))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["HSTE", "k", "f", "v"], "the server has no command HSTE"),
        (["SET", "k"], "parameters.command_template: SET must have at least 2 arguments, got 1"),
        (["GET", "k", "v"], "parameters.command_template: GET must have 1 arguments, got 2"),
        (["BLPOP", "k", "0"], "parameters.command_template: BLPOP waits, and the rows behind it would wait too"),
    ],
)
def test_a_command_that_cannot_work(port: int, words: list[str], text: str) -> None:
    over = connector(port)
    with pytest.raises(Unusable) as raised:
        run(driver(over, *words).open(), over)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"password": "wrong-secret"}, "{server}: the server rejects username or password"),
        ({"password": ""}, "{server}: the server rejects username or password"),
        ({"username": "nobody"}, "{server}: the server rejects username or password"),
        ({"database": 999}, "{server}: the server has no database 999"),
        ({"server": "127.0.0.1:1"}, "127.0.0.1:1: connection refused"),
        ({"server": "no-such-host.invalid:6379"}, "no-such-host.invalid:6379: the name of the server cannot be resolved"),
        ({"tls": True}, "{server}: no response in time"),
        ({"redis_type": "cluster", "servers": "{server}"}, "{server}: the server is no cluster"),
        ({"redis_type": "sentinel", "servers": "127.0.0.1:1", "sentinel": "main"}, "127.0.0.1:1: connection refused"),
    ],
)
def test_a_probe_says_what_is_wrong(port: int, settings: dict[str, Any], text: str) -> None:
    server = f"127.0.0.1:{port}"
    over = connector(port, **{name: one.format(server=server) if isinstance(one, str) else one for name, one in settings.items()})
    for call in (over.probe, driver(over, *HASH).probe, driver(over, *HASH).open):

        async def scenario(call: Any = call) -> str:
            with pytest.raises((Unusable, ConnectorError)) as raised:
                await call()
            return str(raised.value)

        assert run(scenario()) == text.format(server=server)
    assert over.health.last_error == text.format(server=server) and "secret" not in over.health.last_error
    run(over.close())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"server": ""}, "connectors.redis.x.server: must be HOST:PORT, got ''"),
        ({"redis_type": "sentinel", "servers": ["a:1"]}, "connectors.redis.x.sentinel: must be the name of a master, got ''"),
        ({"redis_type": "cluster"}, "connectors.redis.x.servers: must be a list of HOST:PORT, got []"),
        ({"redis_type": "cluster", "servers": "a:1", "database": 1}, "connectors.redis.x.database: must be 0 in a cluster, got 1"),
    ],
)
def test_settings_that_can_never_work(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConnectionSettingError) as raised:
        connector(1, **settings)
    assert str(raised.value) == text


def test_rights(port: int) -> None:
    cli(port, "ACL", "SETUSER", "writer", "on", ">x", "~msg:*", "+hset", "+ping")
    over = connector(port, username="writer", password="x")

    async def scenario() -> None:
        allowed = await opened(driver(over, "HSET", "${key}", "n", "${n}"))
        failures = await allowed.write([row(n=1, key="msg:1"), row(n=2, key="other:2")])
        reason = "NOPERM this user has no permissions to access one of the keys used as arguments"
        assert [tuple(one) for one in failures] == [(1, reason, False)]
        denied = await opened(driver(over, "SET", "msg:2", "${n}"))
        with pytest.raises(Unusable, match=r"^the server does not let this user run SET$"):
            await denied.write([row(n=1)])

    run(scenario(), over)
    assert cli(port, "HGETALL", "msg:1") == {"n": "1"}


# --- servers that fail ----------------------------------------------------------------------------------------------------------


def test_rows_wait_while_the_server_has_no_memory_or_is_a_replica(port: int) -> None:
    over = connector(port)
    rows = some_rows(100)

    async def scenario() -> None:
        one = await opened(driver(over, *HASH))
        for on, off, code in (
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "OOM"),
            (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "READONLY"),
        ):
            cli(port, *on)
            failures = await one.write(rows)
            assert [failure.at for failure in failures] == list(range(100))
            assert all(failure.again and failure.reason.startswith(code) for failure in failures)
            cli(port, *off)
            assert await one.write(rows) == []

    run(scenario(), over)
    assert cli(port, "DBSIZE") == 100


def lasting() -> Any:
    return redis_server("--appendonly", "yes", "--appendfsync", "always")


def restarted(server: Service, delay_s: float) -> threading.Thread:
    server.kill()
    thread = threading.Timer(delay_s, server.start)
    thread.start()
    return thread


def test_a_killed_server_loses_no_row() -> None:
    rows, starts = some_rows(20_000), []
    with lasting() as server:
        over = connector(server.port)

        def after(batch: int) -> None:
            if batch in (5, 20):
                starts.append(restarted(server, 1.0))

        async def scenario() -> Any:
            return await deliver(await opened(driver(over, *HASH)), rows, 500, after)

        done = run(scenario(), over)
        for one in starts:
            one.join()
        assert not done.failed and any("connection refused" in text for text in done.attempts), done.attempts
        assert cli(server.port, "DBSIZE") == len(rows)
        assert cli(server.port, "HGETALL", f"msg:{19_999:032X}") == {"topic": "t/0", "n": "19999"}


def test_a_server_that_stops_answering_loses_no_row() -> None:
    rows, timers = some_rows(10_000), []
    with lasting() as server:
        over = connector(server.port)

        def after(batch: int) -> None:
            if batch == 5:
                server.pause()
                timers.append(threading.Timer(2 * TIMEOUT_S, server.resume))
                timers[0].start()

        async def scenario() -> Any:
            one = await opened(driver(over, *HASH))
            began = time.monotonic()
            done = await deliver(one, rows, 500, after)
            assert time.monotonic() - began > TIMEOUT_S
            return done

        done = run(scenario(), over)
        timers[0].join()
        assert not done.failed and any("no response in time" in text for text in done.attempts), done.attempts
        assert cli(server.port, "DBSIZE") == len(rows)


def test_answers_that_come_too_late_are_not_those_of_other_rows(port: int) -> None:
    """A batch whose answers were not read in time ends its connection."""
    over = connector(port, pool_size=1, timeout=0.5)

    async def scenario() -> None:
        script = "local n = 0; for i = 1, 3e7 do n = n + i end; return redis.error_reply('LATE')"
        slow = await opened(driver(over, "EVAL", script, "0"))
        quick = await opened(driver(over, *HASH))
        with pytest.raises(ConnectorError, match="no response in time"):
            await slow.write([row() for _ in range(20)])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                assert await quick.write([row(topic="t", n=1)]) == []
                return
            except ConnectorError:
                await asyncio.sleep(0.1)
        raise AssertionError("the server is still busy")

    run(scenario(), over)


# --- sentinels, clusters, TLS ---------------------------------------------------------------------------------------------------


def test_sentinels_lead_to_the_new_master() -> None:
    with watched() as servers:
        over = connector(redis_type="sentinel", servers=[f"127.0.0.1:{servers.sentinel.port}"], sentinel="main")

        async def scenario() -> Any:
            one = await opened(driver(over, *HASH))
            assert await one.write([row(topic="before", n=1)]) == []
            assert cli(servers.master.port, "DBSIZE") == 1
            servers.master.kill()
            return await deliver(one, some_rows(5_000))

        done = run(scenario(), over)
        assert not done.failed and done.attempts
        found = cli(servers.replica.port, "EVAL", "return #redis.call('KEYS', 'msg:000*')", "0")
        assert found == 5_000


def test_sentinels_that_do_not_know_the_name() -> None:
    with watched() as servers:
        where = f"127.0.0.1:{servers.sentinel.port}"
        over = connector(redis_type="sentinel", servers=[where], sentinel="other")
        with pytest.raises(ConnectorError) as raised:
            run(driver(over, *HASH).probe(), over)
        assert str(raised.value) == f"{where}: no sentinel knows a reachable master 'other'"


def counted(nodes: list[Service], pattern: str) -> int:
    return sum(cli(one.port, "EVAL", f"return #redis.call('KEYS', '{pattern}')", "0") for one in nodes)


def test_a_cluster() -> None:
    with cluster() as nodes:
        over = connector(redis_type="cluster", servers=[f"127.0.0.1:{nodes[0].port}"])

        async def scenario() -> None:
            await _rows_go_to_their_nodes(over, nodes)
            await _a_wrong_password(nodes)
            await _questions_of_authenticators(nodes)
            await _commands_without_a_fixed_key(over, nodes)
            await _slots_move_meanwhile(over, nodes)
            await _a_node_is_lost(over, nodes)

        run(scenario(), over)


async def _rows_go_to_their_nodes(over: Redis, nodes: list[Service]) -> None:
    one = await opened(driver(over, *HASH))
    await one.probe()
    done = await deliver(one, some_rows(5_000))
    assert not done.failed and not done.attempts
    assert counted(nodes, "msg:*") == 5_000
    assert all(cli(node.port, "DBSIZE") > 1_000 for node in nodes)
    lists = await opened(driver(over, "RPUSH", "list:${topic}", "${n}"))
    await deliver(lists, some_rows(3_000))
    found = cli(nodes[0].port, "LRANGE", "list:t/3", "0", "-1", options=("-c",))
    assert found == [str(number) for number in range(3, 3_000, 7)]


async def _a_wrong_password(nodes: list[Service]) -> None:
    where = f"127.0.0.1:{nodes[0].port}"
    over = connector(redis_type="cluster", servers=[where], password="s3cret")
    with pytest.raises(Unusable, match=f"^{where}: the server rejects username or password$"):
        await driver(over, *HASH).open()
    await over.close()


async def _questions_of_authenticators(nodes: list[Service]) -> None:
    settings = RedisConnection.model_validate(
        {"redis_type": "cluster", "servers": [f"127.0.0.1:{nodes[1].port}"], "password": PASSWORD, "pool_size": 2}
    )
    asking = Redis(settings, "auth.redis")

    async def ask(number: int) -> list[str | None]:
        async with asking.connection() as client:
            found: list[str | None] = await client.execute_command("HMGET", f"msg:{number:032X}", "n", "gone")
            return found

    answers = await asyncio.gather(*map(ask, range(100)))
    assert answers == [[str(number), None] for number in range(100)]
    await asking.close()


async def _commands_without_a_fixed_key(over: Redis, nodes: list[Service]) -> None:
    script = "return redis.call('SET', KEYS[1], ARGV[1])"
    scripts = await opened(driver(over, "EVAL", script, "1", "script:${n}", "${topic}"))
    assert await scripts.write(some_rows(100)) == []
    assert counted(nodes, "script:*") == 100
    assert await (await opened(driver(over, "PUBLISH", "channel", "${n}"))).write(some_rows(10)) == []
    with pytest.raises(Unusable, match="has no fixed key"):
        await driver(over, "SINTERCARD", "1", "b").open()
    crossed = await opened(driver(over, "MSET", "a", "${n}", "b", "${n}"))
    assert [tuple(failure) for failure in await crossed.write(some_rows(1))] == [
        (0, "CROSSSLOT Keys in request don't hash to the same slot", False)
    ]


async def _slots_move_meanwhile(over: Redis, nodes: list[Service]) -> None:
    """First half moved (ASK), then moved for good (MOVED), with the client knowing only the old place."""
    key = "moving"
    slot = str(cli(nodes[0].port, "CLUSTER", "KEYSLOT", key))
    ids = [cli(node.port, "CLUSTER", "MYID") for node in nodes]
    source = next(at for at, node in enumerate(nodes) if "MOVED" not in str(cli(node.port, "EXISTS", key)))
    target = (source + 1) % len(nodes)
    one = await opened(driver(over, "RPUSH", key, "${n}"))
    cli(nodes[target].port, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    cli(nodes[source].port, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    assert await one.write(some_rows(100)) == [], "the target takes it after ASKING"
    for node in (nodes[target], nodes[source]):
        cli(node.port, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])
    done = await deliver(one, some_rows(200)[100:])
    assert not done.failed and any(text.startswith("MOVED") for text in done.attempts)
    assert cli(nodes[target].port, "LRANGE", key, "0", "-1") == [str(number) for number in range(200)]


async def _a_node_is_lost(over: Redis, nodes: list[Service]) -> None:
    one = await opened(driver(over, "SADD", "set:${n}", "${n}"))
    nodes[1].kill()
    rows = some_rows(300)
    failures = await one.write(rows)
    assert 50 < len(failures) < 200 and all(failure.again for failure in failures)
    threading.Timer(1.0, nodes[1].start).start()
    done = await deliver(one, [rows[failure.at] for failure in failures])
    assert not done.failed
    assert counted(nodes, "set:*") == 300


@pytest.mark.parametrize(
    ("authority", "failure"),
    [("ours", ""), ("other", "the certificate of the server is not accepted: self-signed certificate in certificate chain")],
)
def test_tls(authority: str, failure: str) -> None:
    with folder() as where:
        authorities = {name: Authority(where, name) for name in ("ours", "other")}
        certificate = authorities["ours"].issue("server", "server", ("localhost",))
        for file in where.iterdir():
            file.chmod(0o644)
        port = free_port()
        options = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(certificate),
                   "--tls-ca-cert-file", str(authorities["ours"].cafile), "--tls-auth-clients", "no", "--save", ""]  # fmt: skip
        with redis_server(*options) as server:
            over = connector(server=f"localhost:{port}", tls=True, tls_ca=str(authorities[authority].cafile))
            if not failure:
                run(deliver(driver(over, *HASH), some_rows(10)), over)
                assert cli(server.port, "DBSIZE") == 10
            else:
                with pytest.raises(ConnectorError) as raised:
                    run(driver(over, *HASH).probe(), over)
                assert str(raised.value) == f"localhost:{port}: {failure}"


def test_json_of_a_row(port: int) -> None:
    assert write(port, ["SET", "k", "${.}"], row(a=1, b={"c": "x"})) == []
    assert json.loads(cli(port, "GET", "k")) == {"a": 1, "b": {"c": "x"}}


def test_the_page(port: int) -> None:
    server, action = settings_of("sink-redis.md", "redis")
    over = connector(**server | {"server": f"127.0.0.1:{port}", "password": PASSWORD})
    one = make(RedisAction.model_validate(action), over, "redis:messages")
    rows = some_rows(3, lambda number: {"payload": b"\x00\x01", "timestamp": 1_700_000_000_000})
    run(deliver(one, rows), over)
    assert cli(port, "HGETALL", f"mqtt:msg:{2:032X}") == {"topic": "t/2", "payload": "\x00\x01", "ts": "1700000000000"}
    table = re.findall(r"^\| .* \| `(\[.*\])` \|$", (ROOT / "docs/sink-redis.md").read_text(), re.MULTILINE)
    script = "return redis.call('SET', KEYS[1], ARGV[1])"
    for text in table:
        fresh = connector(port)
        words = json.loads(text.replace("<script>", script))
        values = {"clientid": "c", "temp": 21.5, "timestamp": 1_700_000_000_000, "payload": "x"}
        done = run(deliver(driver(fresh, *words), some_rows(2, lambda number, values=values: values)), fresh)
        assert not done.failed, text
        cli(port, "FLUSHALL")
    assert len(table) == 7
