"""The drivers of RabbitMQ alone, against a real server: values, errors, losses. tests/flows/sources has them in a broker."""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest

from shardbroker.config.sinks.rabbitmq import RabbitmqAction, RabbitmqConnector, RabbitmqSource
from shardbroker.connectors.amqp import Amqp, AmqpLost
from shardbroker.connectors.amqp_wire import METHOD, AmqpFault, Reader, frame, header, table
from shardbroker.connectors.errors import describe
from shardbroker.flows.drivers.rabbitmq import connect, make, make_source
from shardbroker.flows.sinks.driver import Failure, Refused, Unusable
from shardbroker.flows.sinks.row import Row
from shardbroker.mqtt.spec import PropertyId
from tests.edge.certificates import Authority
from tests.flows.drivers.pages import settings_of
from tests.flows.sources.harness import Taker
from tests.harness.broker import free_port
from tests.servers.processes import folder
from tests.servers.rabbitmq import PASSWORD, USER, RabbitServer, rabbitmq_server

UNROUTABLE = "no queue gets the message: no binding has its routing key"


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with rabbitmq_server() as one:
        for queue in ("q", "other"):
            one.declare(queue)
        yield one


@pytest.fixture(autouse=True)
def empty(server: RabbitServer) -> None:
    for queue in ("q", "other"):
        server.request("DELETE", f"queues/%2F/{queue}/contents")


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def connected(server: RabbitServer, /, **settings: Any) -> Amqp:
    login = {"server": f"127.0.0.1:{server.port}", "username": USER, "password": PASSWORD, "timeout": "2s", **settings}
    return connect(RabbitmqConnector.model_validate(login), "connectors.rabbitmq.main")


def sink(connector: Amqp, **parameters: Any) -> Any:
    given = {"routing_key": "q", **parameters}
    return make(RabbitmqAction.model_validate({"parameters": given}), connector, "rabbitmq:out")


def queue(connector: Amqp, **parameters: Any) -> Any:
    given = {"queue": "q", "topic": "rabbit/${routing_key}", **parameters}
    return make_source(RabbitmqSource.model_validate({"parameters": given}), connector, "rabbitmq:in")


def row(number: int, **values: Any) -> Row:
    return Row("0", number, "c", {"n": number, **values}, id=f"id{number}")


@in_loop
async def test_values_and_properties_arrive_as_they_are(server: RabbitServer) -> None:
    connector = connected(server)
    driver = sink(
        connector,
        payload_template="${b}",
        headers_template=[{"key": "device", "value": "d-${n}"}],
        properties_template={"content_type": "application/x", "priority": "3", "timestamp": "1700000000", "correlation_id": "${n}"},
    )
    await driver.open()
    assert await driver.write([row(1, b=b"\x00\xff" * 200_000)]) == []
    (message,) = server.get("q")
    assert message["payload"] == b"\x00\xff" * 200_000
    assert message["properties"] == {
        "content_type": "application/x", "priority": 3, "timestamp": 1700000000, "correlation_id": "1", "delivery_mode": 2,
        "message_id": "id1", "headers": {"device": "d-1"},
    }  # fmt: skip
    plain = sink(connector, delivery_mode="non_persistent")
    assert await plain.write([row(2, t="grün")]) == []
    (message,) = server.get("q")
    assert (message["payload"], message["properties"]) == ('{"n":2,"t":"grün"}'.encode(), {"delivery_mode": 1, "message_id": "id2"})
    empty = sink(connector, payload_template="${b}")
    assert await empty.write([row(3, b="")]) == []
    assert [one["payload"] for one in server.get("q")] == [b""]
    await connector.close()


@in_loop
async def test_a_message_that_no_queue_gets_fails_alone(server: RabbitServer) -> None:
    connector = connected(server)
    rows = [row(n, key="q" if n % 4 else "none") for n in range(1000)]
    for plain in (True, False):
        driver = sink(connector, routing_key="${key}", headers_template={} if plain else {"a": "b"})
        assert await driver.write(rows) == [Failure(n, UNROUTABLE) for n in range(0, 1000, 4)]
        assert len(server.get("q")) == 750
    dropped = sink(connector, routing_key="${key}", mandatory=False)
    assert await dropped.write(rows) == []
    same = sink(connector, routing_key="${key}", properties_template={"message_id": "same"})
    assert sorted(one.at for one in await same.write([row(0, key="none"), row(1, key="none")])) == [0, 1]
    await connector.close()


@in_loop
async def test_a_row_whose_message_cannot_be_made_fails_alone(server: RabbitServer) -> None:
    connector = connected(server)
    driver = sink(connector, routing_key="${key}", properties_template={"expiration": "${e}", "priority": "${p}"})
    good = {"key": "q", "e": "60000", "p": 1}
    wrong = [{"key": "k" * 256}, {"e": "soon"}, {"p": 256}, {"p": -1}, {"e": "s3cret"}]
    rows = [row(n, **{**good, **change}) for n, change in enumerate([{}, *wrong, {}])]
    failures = await driver.write(rows)
    assert [one.at for one in failures] == [1, 2, 3, 4, 5]
    assert not any("s3cret" in one.reason for one in failures)
    assert len(server.get("q")) == 2
    foreign = sink(connector, properties_template={"user_id": "somebody"})
    with pytest.raises(Refused, match="406"):
        await foreign.write([row(1)])
    assert await driver.write(rows[:1]) == []
    await connector.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"password": "wrong"}, "login refused for user 'guest' (403)"),
        ({"username": "nobody"}, "login refused for user 'nobody' (403)"),
        ({"virtual_host": "none"}, "NOT_ALLOWED - vhost none not found (530)"),
        ({"server": "127.0.0.1:1"}, "connection refused"),
    ],
)
def test_a_probe_says_what_is_wrong(server: RabbitServer, change: dict[str, str], reason: str) -> None:
    async def probe() -> None:
        connector = connected(server, **change)
        with pytest.raises((AmqpLost, OSError)) as raised:
            await connector.probe()
        assert describe(raised.value) == reason
        assert connector.health.last_error == reason
        await connector.close()

    asyncio.run(probe())


@in_loop
async def test_a_server_of_another_protocol_and_one_that_is_silent_are_named(server: RabbitServer) -> None:
    answers = {
        b"AMQP\x00\x01\x00\x00": "another version of AMQP",
        b"HTTP/1.1 400 Bad Request\r\n\r\n": "a frame must be at most",
        frame(METHOD, 0, b"\0"): "a frame is too short",
        frame(METHOD, 0, struct.pack(">HH", 10, 10) + b"\0\x09\xff\xff\xff\xff"): "a value is longer than its frame",
        frame(77, 0, b""): "no frame has the type 77",
    }
    for answer, reason in answers.items():

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
            writer.write(answer)
            await reader.read(100_000)
            writer.close()

        port = free_port()
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            connector = connected(server, server=f"127.0.0.1:{port}")
            with pytest.raises((AmqpLost, AmqpFault), match=reason):
                await connector.probe()
    connector = connected(server, timeout="300ms")
    server.process.pause()
    try:
        with pytest.raises(TimeoutError):
            await connector.probe()
    finally:
        server.process.resume()
    await connector.probe()
    await connector.close()


@in_loop
async def test_an_exchange_or_a_queue_that_is_missing_is_named(server: RabbitServer) -> None:
    connector = connected(server)
    with pytest.raises(Unusable, match="no exchange 'none'"):
        await sink(connector, exchange="none").open()
    with pytest.raises(Unusable, match="no exchange 'none'"):
        await sink(connector, exchange="none").write([row(1)])
    for kind in ("topic", "fanout", "direct"):
        server.exchange(f"is-{kind}", kind)
        await sink(connector, exchange=f"is-{kind}").open()
    with pytest.raises(Unusable, match="no queue 'none'"):
        await queue(connector, queue="none").probe()
    with pytest.raises(Unusable, match="no queue 'none'"):
        await queue(connector, queue="none").run(Taker().take)
    await connector.close()


def test_settings_that_cannot_work_are_refused(server: RabbitServer) -> None:
    connector = connected(server)
    for parameters, reason in (
        ({"routing_key": ""}, "routing_key"),
        ({"properties_template": {"delivery": "1"}}, "properties_template"),
    ):
        with pytest.raises(ValueError, match=reason):
            sink(connector, **parameters)
    with pytest.raises(ValueError, match="queue"):
        queue(connector, queue="")


@in_loop
async def test_messages_of_a_queue_are_acknowledged_when_they_are_done(server: RabbitServer) -> None:
    connector = connected(server)
    await sink(connector, properties_template={"content_type": "a/b", "expiration": "61000", "correlation_id": "c"},
               headers_template={"k": "v"}).write([row(n) for n in range(300)])  # fmt: skip
    source = queue(connector, prefetch=100)
    await source.probe()
    assert source.lag_records == 300
    taker = Taker(acknowledges=False)
    task = taker.run(source)
    await taker.wait_for(100)
    await asyncio.sleep(0.2)
    assert len(taker.received) == 100  # prefetch
    first = taker.received[0]
    assert first.message is not None
    assert (first.message.topic, first.message.payload, first.message.qos) == (b"rabbit/q", b'{"n":0}', 1)
    assert first.message.properties == {
        PropertyId.CONTENT_TYPE: b"a/b", PropertyId.CORRELATION_DATA: b"c", PropertyId.MESSAGE_EXPIRY_INTERVAL: 61,
        PropertyId.USER_PROPERTY: [(b"k", b"v")],
    }  # fmt: skip
    assert first.columns["routing_key"] == "q" and first.columns["queue"] == "q" and first.columns["message_id"] == "id0"
    taker.finish()
    await taker.wait_for(200)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    taker.finish()  # of a connection that is gone
    again = Taker()
    task = again.run(queue(connector))
    await again.wait_for(200)
    assert [one.columns["message_id"] for one in again.received] == [f"id{n}" for n in range(100, 300)]
    assert again.received[0].columns["redelivered"] is True
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.get("q") == []
    await connector.close()


@in_loop
async def test_a_source_ends_when_its_queue_is_deleted_or_its_server_is_killed(server: RabbitServer) -> None:
    connector = connected(server, heartbeat="1s")
    server.declare("short")
    for harm, reason in ((lambda: server.delete("short"), "queue was deleted"), (server.process.kill, "closed|reset")):
        server.declare("short")
        taker = Taker()
        task = taker.run(queue(connector, queue="short"))
        server.publish("short", b"x")
        await taker.wait_for(1)
        harm()
        with pytest.raises((AmqpLost, OSError), match=reason):
            await task
    server.process.start()
    await connector.close()


@in_loop
async def test_a_stopped_server_is_noticed_by_heartbeats_and_by_confirms_that_are_missing(server: RabbitServer) -> None:
    connector = connected(server, heartbeat="1s")
    driver = sink(connector, publish_confirmation_timeout="500ms")
    assert await driver.write([row(1)]) == []
    taker = Taker()
    task = taker.run(queue(connector, queue="other"))
    server.publish("other", b"x")
    await taker.wait_for(1)
    server.process.pause()
    try:
        with pytest.raises(TimeoutError):
            await driver.write([row(2)])
        with pytest.raises(AmqpLost, match="heartbeat"):
            await task
    finally:
        server.process.resume()
    assert await driver.write([row(3)]) == []
    await connector.close()


async def written(driver: Any, one: Any) -> bool:
    """Returns whether a server that was low on memory takes a row."""
    try:
        return bool(await driver.write([one]) == [])
    except AmqpLost as error:
        assert "low on memory" in str(error)
        return False


@in_loop
async def test_a_server_without_memory_is_named(server: RabbitServer) -> None:
    connector = connected(server)
    driver = sink(connector)
    assert await driver.write([row(1)]) == []
    server.rabbitmqctl("set_vm_memory_high_watermark", "0.00001")
    try:
        with pytest.raises(AmqpLost, match="low on memory"):
            for number in range(3):
                await sink(connector, publish_confirmation_timeout="500ms").write([row(number)])
    finally:
        server.rabbitmqctl("set_vm_memory_high_watermark", "0.9")
    async with asyncio.timeout(30):
        while not await written(driver, row(2)):  # the server lets its connections continue a moment later
            await asyncio.sleep(0.1)
    await connector.close()


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
        lines = f"""
listeners.ssl.default = {port}
ssl_options.cacertfile = {authorities["ours"].cafile}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {certificate}
"""
        with rabbitmq_server(lines) as server:
            server.declare("q")

            async def write() -> None:
                connector = connected(server, server=f"localhost:{port}", tls=True, tls_ca=str(authorities[authority].cafile))
                if failure:
                    with pytest.raises(OSError) as raised:
                        await connector.probe()
                    assert describe(raised.value) == failure
                else:
                    assert await sink(connector).write([row(1)]) == []
                await connector.close()

            asyncio.run(write())


def test_tables_come_back_and_their_depth_is_bounded() -> None:
    values: dict[bytes, Any] = {b"t": b"text", b"n": -(2**63), b"b": True, b"in": {b"x": b"\xff"}}
    assert Reader(table(values)).table() == {"t": "text", "n": -(2**63), "b": True, "in": {"x": b"\xff"}}
    deep: Any = b""
    for _ in range(30):
        deep = {b"a": deep}
    with pytest.raises(AmqpFault, match="levels"):
        Reader(table(deep)).table()
    for wrong in ({b"a": 2**63}, {b"a": 1.5}, {b"a" * 256: b""}):
        with pytest.raises(AmqpFault):
            table(wrong)
    flags, encoded = header({"delivery_mode": 2, "message_id": b"x"})
    size, found = Reader(b"\0\x3c\0\0" + struct.pack(">QH", 7, flags) + encoded).properties()
    assert (size, found) == (7, {"delivery_mode": 2, "message_id": "x"})


def test_bytes_that_end_anywhere_are_a_fault_and_nothing_else() -> None:
    whole = table({b"t": b"text", b"n": 1, b"in": {b"x": b"y"}})
    for end in range(len(whole)):
        with pytest.raises(AmqpFault):
            Reader(whole[:end]).table()


@in_loop
async def test_the_page(server: RabbitServer) -> None:
    given, action = settings_of("sink-rabbitmq.md", "rabbitmq")
    connector = connected(server, **{**given, "server": f"127.0.0.1:{server.port}", "username": USER, "password": PASSWORD})
    server.exchange("sensors", "topic", ("other", "sensors.#"))
    driver = make(RabbitmqAction.model_validate(action), connector, "rabbitmq:messages")
    await driver.open()
    assert await driver.write([row(1, topic="sensors/a", key="sensors.a", payload=b"x")]) == []
    (message,) = server.get("other")
    assert (message["payload"], message["routing_key"]) == (b"x", "sensors.a")
    await connector.close()
