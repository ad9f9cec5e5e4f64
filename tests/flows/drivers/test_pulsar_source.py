"""Messages of a Pulsar server: columns, what is published, acknowledgement, subscriptions, a server that is gone."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import _pulsar
import pytest

from shardbroker.config.sinks.pulsar import PulsarConnector, PulsarSource
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.drivers import pulsar as driver
from shardbroker.flows.sinks.driver import Unusable
from shardbroker.flows.sources.source import Message, Received
from shardbroker.mqtt.spec import PropertyId
from tests.flows.drivers.delivery import run
from tests.flows.sources.harness import Taker
from tests.servers.pulsar import NAMESPACE, PulsarServer, pulsar_server, token_of

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 3
TYPES = ("exclusive", "failover", "shared", "key_shared")


@pytest.fixture(scope="module")
def server() -> Iterator[PulsarServer]:
    with pulsar_server() as one:
        one.admin("PUT", "namespaces/public/fixed", {})
        one.admin("POST", "namespaces/public/fixed/autoTopicCreation", {"allowAutoTopicCreation": False})
        for kind in TYPES:
            one.admin("PUT", f"persistent/public/default/parts-{kind}/partitions", PARTITIONS)
        yield one


def connected(server: PulsarServer, **settings: Any) -> Any:
    given = {"servers": [server.url], "token": token_of("admin"), "timeout": "10s", **settings}
    return driver.connect(PulsarConnector.model_validate(given), "connectors.pulsar.x")


def source(connector: Any, topic: str = "", **parameters: Any) -> Any:
    given = {**({"topics": [f"{NAMESPACE}/{topic}"]} if topic else {}), "initial_position": "earliest", **parameters}
    return driver.make_source(PulsarSource.model_validate({"parameters": given}), connector, "pulsar:in")


def publish(server: PulsarServer, topic: str, numbers: range, **more: Any) -> None:
    with server.client() as client:
        producer = client.create_producer(f"{NAMESPACE}/{topic}", batching_enabled=True, block_if_queue_full=True)
        for n in numbers:
            producer.send_async(json.dumps({"n": n}).encode(), _ignored, partition_key=f"k{n % 7}", **more)
        producer.flush()


def _ignored(*_: Any) -> None:
    """Of a result: flush() raises an error."""


async def received(
    one: Any, count: int, acknowledges: bool = True, then: Callable[[Taker], None] = lambda taker: None
) -> list[Received]:
    """Runs a source until so many messages have come; `then` is called before it ends."""
    taker = Taker(acknowledges)
    task = taker.run(one)
    try:
        await taker.wait_for(count)
        then(taker)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return taker.received


def numbers(found: list[Received]) -> list[int]:
    return [json.loads(one.columns["value"])["n"] for one in found]


def test_columns_and_what_is_published(server: PulsarServer) -> None:
    with server.client() as client:
        producer = client.create_producer(f"{NAMESPACE}/columns")
        producer.send(b'{"t": 1}', partition_key="dev/1", properties={"a": "ü"}, event_timestamp=1_700_000_000_123)
        producer.send(b"\x00\xff")
    connector = connected(server)
    mapped = {"mqtt_topic": "in/${short_topic}/${key}", "payload_template": "${value}", "qos": 2, "retain": True}
    first, second = run(received(source(connector, "columns", **mapped), 2), connector)
    columns = dict(first.columns)
    id = columns.pop("message_id").split(":")
    assert len(id) == 4 and all(part.lstrip("-").isdigit() for part in id)
    assert columns.pop("publish_time") > 1_700_000_000_000
    assert columns == {
        "topic": f"{NAMESPACE}/columns", "short_topic": "columns", "key": "dev/1", "value": '{"t": 1}', "properties": {"a": "ü"},
        "event_time": 1_700_000_000_123, "redelivery_count": 0,
    }  # fmt: skip
    pairs = {PropertyId.USER_PROPERTY: [(b"a", "ü".encode())]}
    assert first.message == Message(b"in/columns/dev/1", b'{"t": 1}', 2, True, pairs) and first.key == b"dev/1"
    assert second.columns["value"] == b"\x00\xff" and second.columns["key"] == ""
    assert second.message == Message(b"in/columns/", b"\x00\xff", 2, True, {}) and second.key == f"{NAMESPACE}/columns".encode()


def test_texts_that_are_none_do_not_end_a_source(server: PulsarServer) -> None:
    with server.client() as client:
        producer = client.create_producer(f"{NAMESPACE}/none")
        builder = _pulsar.MessageBuilder()
        builder.content(b"1")
        builder.partition_key(b"\xff")
        builder.property(b"\xfe", "a")
        producer._producer.send(builder.build())
        producer.send(b"2")
    connector = connected(server)
    found = run(received(source(connector, "none", mqtt_topic="t/${key}"), 2), connector)
    assert [(one.columns["value"], one.columns["key"], one.columns["properties"]) for one in found] == [
        ("1", "", {}),
        ("2", "", {}),
    ]


def test_what_is_not_done_arrives_again(server: PulsarServer) -> None:
    publish(server, "again", range(100))

    async def scenario() -> None:
        first = await received(source(connector, "again"), 100, acknowledges=False)
        assert numbers(first) == list(range(100)) and first[0].message is None
        again = await received(source(connector, "again"), 100, acknowledges=False, then=Taker.finish)
        assert numbers(again) == list(range(100))
        publish(server, "again", range(100, 120))
        assert numbers(await received(source(connector, "again"), 20)) == list(range(100, 120)), "what is done does not"
        publish(server, "again", range(120, 121))
        other = await received(source(connector, "again", subscription="other"), 121)
        assert numbers(other) == list(range(121)), "a subscription of its own"

    connector = connected(server)
    run(scenario(), connector)


@pytest.mark.parametrize("kind", TYPES)
def test_partitions_and_types(server: PulsarServer, kind: str) -> None:
    connector = connected(server)
    topic, count = f"parts-{kind}", 3000
    publish(server, topic, range(count))
    found = run(received(source(connector, topic, subscription_type=kind), count), connector)
    assert len({one.columns["topic"] for one in found}) == PARTITIONS
    assert sorted(numbers(found)) == list(range(count))
    if kind != "shared":
        for key in {one.columns["key"] for one in found}:
            own = numbers([one for one in found if one.columns["key"] == key])
            assert own == sorted(own)


def test_a_pattern(server: PulsarServer) -> None:
    for name in ("orders-a", "orders-b", "others"):
        publish(server, name, range(5))
    connector = connected(server)
    found = run(received(source(connector, topics_pattern=f"{NAMESPACE}/orders-.*"), 10), connector)
    assert {one.columns["short_topic"] for one in found} == {"orders-a", "orders-b"}


def test_what_cannot_be_received(server: PulsarServer) -> None:
    connector = connected(server)

    async def scenario() -> None:
        missing = source(connector, topics=["persistent://public/fixed/none"])
        with pytest.raises(Unusable, match="the topic does not exist"):
            await missing.probe()
        with pytest.raises(ConnectorError, match="the topic does not exist"):
            await missing.run(Taker().take)
        publish(server, "busy", range(1))
        first = Taker()
        task = first.run(source(connector, "busy"))
        await first.wait_for(1)
        with pytest.raises(ConnectorError, match="the subscription has a consumer that excludes others"):
            await source(connector, "busy").run(Taker().take)
        task.cancel()
        await asyncio.wait([task])

    run(scenario(), connector)
    for parameters in ({"topics": []}, {"topics": ["a"], "topics_pattern": "b"}):
        with pytest.raises(ValueError, match="topics: must be a list of topics, or empty with topics_pattern"):
            source(connector, **parameters)


@pytest.mark.parametrize("harm", ["stopped", "killed"])
def test_no_message_is_lost_with_the_server(server: PulsarServer, harm: str) -> None:
    """As the frame does: it probes now and then, and runs the source again after a failure."""
    topic, count = f"lost-{harm}", 5000
    publish(server, topic, range(count))
    connector = connected(server, timeout="2s")
    away, back = (server.pause, server.resume) if harm == "stopped" else (server.kill, server.start)

    async def scenario() -> list[int]:
        one, taker = source(connector, topic, receiver_queue=100), Taker()
        task, has_lost = taker.run(one), 0
        timer = threading.Timer(5.0, back)
        await taker.wait_for(1000)
        away()
        timer.start()
        while len(set(numbers(taker.received))) < count:
            try:
                await one.probe()
                if task.done():
                    raise ConnectorError("ended")
                await asyncio.sleep(0.2)
            except ConnectorError:
                has_lost += 1
                task.cancel()
                await asyncio.wait([task])
                await asyncio.sleep(0.3)
                task = taker.run(one)
        task.cancel()
        await asyncio.wait([task])
        timer.join()
        return numbers(taker.received)

    found = run(scenario(), connector)
    firsts = list(dict.fromkeys(found))
    assert firsts == list(range(count))
