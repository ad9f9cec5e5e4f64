"""Rows as messages of a Pulsar server: values, partitions, rows that fail, logins, TLS, deduplication, a server that is gone."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, checked, from_emqx
from shardbroker.config.sinks.pulsar import PulsarAction, PulsarConnector
from shardbroker.connectors.errors import ConnectionSettingError, ConnectorError
from shardbroker.flows.drivers import pulsar as driver
from shardbroker.flows.sinks.driver import Unusable
from tests.edge.certificates import Authority
from tests.flows.drivers.delivery import Outage, deliver, opened, run, some_rows
from tests.harness.broker import free_port
from tests.servers.processes import folder
from tests.servers.pulsar import MESSAGE_MAX, NAMESPACE, PASSWORD, PulsarServer, pulsar_server, token_of

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 4


class Tls:
    """Certificates, and the port with TLS of the server."""

    def __init__(self, where: Path) -> None:
        ours, self.port = Authority(where, "ours"), free_port()
        self.ca, self.other = ours.cafile, Authority(where, "other").cafile
        pem = ours.issue("server", "server", ("localhost",)).read_text()
        begin = pem.index("-----BEGIN PRIVATE KEY")
        self.certificate, self.key = where / "certificate.pem", where / "key.pem"
        self.certificate.write_text(pem[:begin])
        self.key.write_text(pem[begin:])


@pytest.fixture(scope="module")
def tls() -> Iterator[Tls]:
    with folder() as where:
        yield Tls(where)


@pytest.fixture(scope="module")
def server(tls: Tls) -> Iterator[PulsarServer]:
    files = {"tlsCertificateFilePath": tls.certificate, "tlsKeyFilePath": tls.key}
    with pulsar_server(brokerServicePortTls=tls.port, allowAutoTopicCreation="true", **files) as one:
        one.admin("PUT", "namespaces/public/plain", {"deduplicationEnabled": False, "replication_clusters": ["standalone"]})
        one.admin("PUT", "namespaces/public/fixed", {})
        one.admin("POST", "namespaces/public/fixed/autoTopicCreation", {"allowAutoTopicCreation": False})
        for topic in ("parts", "turns", "once"):
            one.admin("PUT", f"persistent/public/default/{topic}/partitions", PARTITIONS)
        yield one


def connected(server: PulsarServer, **settings: Any) -> Any:
    given = {"servers": [server.url], "token": token_of("admin"), "timeout": "10s", **settings}
    return driver.connect(PulsarConnector.model_validate(given), "connectors.pulsar.x")


def made(connector: Any, topic: str, **parameters: Any) -> Any:
    name = topic if "://" in topic else f"{NAMESPACE}/{topic}"
    return driver.make(PulsarAction.model_validate({"parameters": {"pulsar_topic": name, **parameters}}), connector, "pulsar:x")


def written(server: PulsarServer, topic: str, rows: Any, settings: Any = None, **parameters: Any) -> Any:
    """Writes rows in batches of 1,000, as the core does."""
    connector = connected(server, **(settings or {}))
    return run(_written(connector, made(connector, topic, **parameters), rows), connector)


async def _written(connector: Any, sink: Any, rows: Any) -> Any:
    try:
        return await deliver(await opened(sink), rows)
    finally:
        await sink.close()


def numbers(messages: list[Any]) -> list[int]:
    return [json.loads(one.data())["n"] for one in messages]


# --- values -----------------------------------------------------------------------------------------------------------------------


def test_key_value_properties_and_time(server: PulsarServer) -> None:
    values = [{"payload": b"\x00\xff"}, {"payload": "grün", "k": 5}, {"payload": {"a": [1, None]}, "k": "a b"}]
    rows = some_rows(3, lambda n: values[n])
    rows[1].at_ms = 1_700_000_000_123
    given = {"message": {"key": "${k}", "value": "${payload}"}, "properties": {"n": "no ${n}", "k": "${k}"}}
    assert not written(server, "values", rows, **given).failed
    found = server.messages("values")
    assert [one.data() for one in found] == [b"\x00\xff", "grün".encode(), b'{"a":[1,null]}']
    assert [one.partition_key() for one in found] == ["", "5", "a b"]
    assert [one.properties() for one in found] == [{"n": "no 0"}, {"n": "no 1", "k": "5"}, {"n": "no 2", "k": "a b"}]
    assert [one.event_timestamp() for one in found] == [0, 1_700_000_000_123, 0]


@pytest.mark.parametrize("parameters", [
    {"compression": "lz4"}, {"compression": "zlib"}, {"compression": "zstd"}, {"compression": "snappy"}, {"batching": "key_based"},
    {"batching": "none"}, {"batch_size": 7}, {"max_batch_bytes": "1KB"},
])  # fmt: skip
def test_messages_are_stored_together_in_order(server: PulsarServer, parameters: dict[str, Any]) -> None:
    topic = "together-" + "-".join(map(str, parameters.values()))
    assert not written(server, topic, some_rows(3000), **parameters, message={"key": "${topic}"}).failed
    found = server.messages(topic)
    assert len(found) == 3000
    for key in {one.partition_key() for one in found}:
        own = numbers([one for one in found if one.partition_key() == key])
        assert own == sorted(own)


def test_a_key_has_the_partition_that_java_gives_it(server: PulsarServer) -> None:
    assert [driver.java_hash(one) for one in ("hello", "𝄞", "", "polygenelubricants")] == [99162322, 1772394, 0, 0]
    assert not written(server, "parts", some_rows(2000), message={"key": "${topic}"}).failed
    for number in range(PARTITIONS):
        found = server.messages(f"parts-partition-{number}")
        assert numbers(found) == sorted(numbers(found))
        assert {driver.java_hash(one.partition_key()) % PARTITIONS for one in found} == {number}


def test_a_batch_has_one_partition_in_turn(server: PulsarServer) -> None:
    assert not written(server, "turns", some_rows(8000), strategy="roundrobin").failed
    assert [len(server.messages(f"turns-partition-{number}")) for number in range(PARTITIONS)] == [2000] * PARTITIONS
    assert not written(server, "turns", some_rows(2000), strategy="random").failed
    assert sum(len(server.messages(f"turns-partition-{number}")) for number in range(PARTITIONS)) == 10_000


def test_topics_of_clients_stay_in_their_namespace(server: PulsarServer) -> None:
    names = ["a", "a/b", "persistent://public/plain/c", "../../plain/d", "x-partition-0", "e" * 600, "f?#% &ü"]
    failed = written(server, f"{NAMESPACE}/of-${{name}}", some_rows(7, lambda n: {"name": names[n]})).failed
    assert sorted((row.values["n"], reason) for row, reason in failed) == [
        (4, "the name of the topic is that of a partition"),
        (5, "the name of the topic is longer than 512 characters"),
    ]
    listed = [one.rpartition("/")[2] for one in server.admin("GET", "persistent/public/default") if "/of-" in one]
    assert len(listed) == 5 and not server.admin("GET", "persistent/public/plain")


def test_no_more_producers_than_allowed_stay_open(server: PulsarServer) -> None:
    connector = connected(server)
    sink = made(connector, f"{NAMESPACE}/many-${{n}}", max_producers=10)

    async def scenario() -> None:
        await sink.open()
        for begin in range(0, 90, 30):
            assert not await sink.write(some_rows(90)[begin : begin + 30])
        assert len(sink._producers.open) <= 30
        assert not await sink.write(some_rows(1))
        assert len(sink._producers.open) == 10
        await sink.close()

    run(scenario(), connector)
    assert all(len(server.messages(f"many-{number}")) == (2 if number == 0 else 1) for number in (0, 1, 44, 89))


# --- rows and servers that fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"batching": "none"}, {"exactly_once": True}])
def test_a_message_that_is_too_large_fails_alone(server: PulsarServer, more: dict[str, Any]) -> None:
    topic = "large-" + "".join(more)
    rows = some_rows(1000, lambda n: {"x": "x" * (MESSAGE_MAX if n in (0, 500) else 1)})
    failed = written(server, topic, rows, max_batch_bytes="64KB", **more).failed
    assert [(row.values["n"], reason) for row, reason in failed] == [
        (number, "the message is larger than the server takes") for number in (0, 500)
    ]
    assert numbers(server.messages(topic)) == [number for number in range(1000) if number not in (0, 500)]


def test_batches_above_the_limit_of_the_server_are_sent_one_by_one(server: PulsarServer) -> None:
    rows = some_rows(40, lambda n: {"x": f"{n % 10}" * (MESSAGE_MAX // 8)})
    assert not written(server, "above", rows, max_batch_bytes="4MB").failed
    assert sorted(numbers(server.messages("above"))) == list(range(40))


def test_a_topic_that_cannot_be_used(server: PulsarServer) -> None:
    for topic, reason in (
        ("persistent://public/fixed/none", "the topic does not exist"),
        ("persistent://public/missing/a", "the topic does not exist"),
        ("http://a/b", "the name of the topic is not allowed"),
    ):
        connector = connected(server)
        with pytest.raises(Unusable, match=reason):
            run(opened(made(connector, topic)), connector)
    names = ["fixed/none", "default/there"]
    rows = some_rows(10, lambda n: {"space": names[n % 2].partition("/")[0], "name": names[n % 2].rpartition("/")[2]})
    failed = written(server, "persistent://public/${space}/${name}", rows).failed
    assert {(row.values["n"], reason) for row, reason in failed} == {(n, "the topic does not exist") for n in (0, 2, 4, 6, 8)}
    assert numbers(server.messages("there")) == [1, 3, 5, 7, 9]


def test_logins(server: PulsarServer) -> None:
    basic = {"token": "", "username": "mqtt", "password": PASSWORD}
    assert not written(server, "logins", some_rows(1), basic).failed
    for wrong in ({"token": "none"}, {"token": token_of("admin")[:-3]}, {"token": ""}, {**basic, "password": "wrong"}):
        connector = connected(server, **wrong)
        with pytest.raises(Unusable, match="the server rejects username, password or token"):
            run(opened(made(connector, "logins")), connector)
    connector = connected(server, token=token_of("guest"))
    with pytest.raises(Unusable, match="the account may not use the topic"):
        run(opened(made(connector, "logins")), connector)
    with pytest.raises(ConnectionSettingError, match="username: must be empty, as there is a token"):
        connected(server, username="mqtt")


def test_tls(server: PulsarServer, tls: Tls) -> None:
    secure = {"servers": [f"pulsar+ssl://localhost:{tls.port}"], "tls_ca": str(tls.ca)}
    assert not written(server, "secure", some_rows(10), secure).failed
    assert not written(server, "secure", some_rows(10), {**secure, "tls_ca": "", "tls_verify": False}).failed
    for wrong, reason in (
        ({"tls_ca": str(tls.other)}, "the certificate of the server is not accepted"),
        ({"servers": [f"pulsar+ssl://127.0.0.1:{tls.port}"]}, "the certificate of the server is not accepted"),
        ({"servers": [f"pulsar+ssl://localhost:{server.port}"]}, "the connection was closed|TLS fails"),
        ({"servers": ["localhost:1"]}, "connection refused"),
    ):
        connector = connected(server, **{**secure, **wrong})
        with pytest.raises(ConnectorError, match=reason):
            run(opened(made(connector, "secure")), connector)
    assert len(server.messages("secure")) == 20


# --- deduplication ----------------------------------------------------------------------------------------------------------------


def test_exactly_once_drops_what_is_stored(server: PulsarServer) -> None:
    rows = some_rows(1500)
    for number, row in enumerate(rows):
        row.position, row.number = (1 << 33) + number // 3, number % 3  # three rows of a record
    for begin, end in ((0, 1000), (400, 1200), (0, 1500)):  # each time by a driver that knows nothing, as after a restart
        assert not written(server, "once", rows[begin:end], exactly_once=True, message={"key": "${topic}"}).failed
    found = [one for number in range(PARTITIONS) for one in numbers(server.messages(f"once-partition-{number}"))]
    assert sorted(found) == list(range(1500))
    rows[0].number = 1024
    ((_, reason),) = written(server, "once", rows[:1], exactly_once=True).failed
    assert reason == "a record has more than 1024 rows, which is the most with exactly_once"


def test_exactly_once_needs_deduplication(server: PulsarServer) -> None:
    topic = "persistent://public/plain/once"
    connector = connected(server)
    sink = made(connector, topic, exactly_once=True)

    async def scenario() -> None:
        await sink.open()
        for _ in range(3):
            with pytest.raises(Unusable, match="exactly_once: the namespace of the topic must have deduplication"):
                await sink.write(some_rows(10))
        await sink.close()

    run(scenario(), connector)
    assert len(server.messages(topic)) == 10, "nothing is sent again"
    with pytest.raises(ValueError, match="strategy: must be key_dispatch with exactly_once, got 'random'"):
        made(connector, topic, exactly_once=True, strategy="random")
    with pytest.raises(ValueError, match="pulsar_topic: must be a topic such as"):
        driver.make(PulsarAction(), connector, "pulsar:x")


# --- a server that is gone --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["stopped", "killed"])
@pytest.mark.parametrize("once", [False, True])
def test_no_row_is_lost_with_the_server(server: PulsarServer, harm: str, once: bool) -> None:
    topic = f"gone-{harm}-{once}"
    connector = connected(server, timeout="2s")
    sink = made(connector, topic, exactly_once=once, message={"key": "${topic}"})
    away, back = (server.pause, server.resume) if harm == "stopped" else (server.kill, server.start)
    outage = Outage(5, away, back, 5.0)

    async def scenario() -> None:
        done = await deliver(sink, some_rows(20_000), after=outage)
        assert not done.failed and done.attempts
        assert all(reason.startswith(server.url) for reason in done.attempts), done.attempts
        await sink.close()

    run(scenario(), connector)
    outage.join()
    found = server.messages(topic)
    assert set(numbers(found)) == set(range(20_000))
    assert not once or len(found) == 20_000
    for key in {one.partition_key() for one in found}:
        firsts = list(dict.fromkeys(numbers([one for one in found if one.partition_key() == key])))
        assert firsts == sorted(firsts)


def test_a_connector_ends_in_time_while_the_server_is_stopped(server: PulsarServer) -> None:
    connector = connected(server, timeout="1s")
    sink = made(connector, "ends")

    async def scenario() -> None:
        assert not (await deliver(await opened(sink), some_rows(10))).failed
        server.pause()
        try:
            with pytest.raises(ConnectorError, match="no response in time"):
                await sink.write(some_rows(10))
            async with asyncio.timeout(10):
                await sink.close()
                await connector.close()
        finally:
            server.resume()

    run(scenario())


# --- keys of EMQX -----------------------------------------------------------------------------------------------------------------


def test_definitions_of_emqx() -> None:
    sent = {
        "type": "pulsar", "name": "main", "servers": "pulsar://a:6650,b", "connect_timeout": "5s", "ssl": {"enable": False},
        "authentication": {"jwt": "t.o.k"}, "resource_opts": {"health_check_interval": "15s"},
    }  # fmt: skip
    model = checked(CONNECTORS, "pulsar", from_emqx(CONNECTORS, "pulsar", sent))
    assert (model.servers, model.token) == (["pulsar://a:6650", "pulsar://b:6650"], "t.o.k")
    login = {"servers": ["pulsar+ssl://a"], "authentication": {"username": "u", "password": "p"}, "ssl": {"enable": True}}
    model = checked(CONNECTORS, "pulsar", from_emqx(CONNECTORS, "pulsar", login))
    assert (model.servers, model.username, model.password) == (["pulsar+ssl://a:6651"], "u", "p")
    assert checked(CONNECTORS, "pulsar", from_emqx(CONNECTORS, "pulsar", {"servers": "a", "authentication": "none"})).token == ""
    with pytest.raises(ValueError, match="authentication: must be none, or a table"):
        from_emqx(CONNECTORS, "pulsar", {"servers": "a", "authentication": "kerberos"})
    action = {
        "connector": "main",
        "parameters": {
            "pulsar_topic": "t", "batch_size": 100, "compression": "snappy", "strategy": "roundrobin", "send_buffer": "1MB",
            "sync_timeout": "3s", "retention_period": "infinity", "max_batch_bytes": "900KB", "max_inflight": 10,
            "buffer": {"mode": "memory"}, "message": {"key": "${.clientid}", "value": "${.}"},
        },
        "resource_opts": {"health_check_interval": "1s", "query_mode": "async"},
    }  # fmt: skip
    parameters = checked(ACTIONS, "pulsar", from_emqx(ACTIONS, "pulsar", action)).parameters
    assert (parameters.batch_size, parameters.compression, parameters.strategy) == (100, "snappy", "roundrobin")


@pytest.mark.parametrize("servers", ["http://a:1", "pulsar://a:0", "pulsar://a:1,pulsar+ssl://b:1", "pulsar://a b:1", "pulsar://u@a:1"])
def test_servers_that_cannot_be(servers: str) -> None:
    with pytest.raises(ValueError, match="servers"):
        checked(CONNECTORS, "pulsar", {"servers": servers})
