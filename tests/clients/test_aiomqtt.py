"""aiomqtt: asyncio on top of paho-mqtt."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.harness import AnyBroker

TIMEOUT_S = 5.0
QUIET_S = 0.3

pytestmark = pytest.mark.parametrize("protocol", [ProtocolVersion.V311, ProtocolVersion.V5], ids=["3.1.1", "5.0"])
Make = Callable[..., aiomqtt.Client]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 4 * TIMEOUT_S))


async def take(client: aiomqtt.Client, count: int) -> list[tuple[bytes, int, bool]]:
    """The next messages as (payload, qos, retain)."""
    found = []
    async with asyncio.timeout(TIMEOUT_S):
        async for message in client.messages:
            found.append((bytes(message.payload), message.qos, message.retain))
            if len(found) == count:
                break
    return found


async def quiet(client: aiomqtt.Client) -> bool:
    try:
        async with asyncio.timeout(QUIET_S):
            async for _ in client.messages:
                return False
    except TimeoutError:
        return True
    return False


@pytest.fixture
def make(broker: AnyBroker, protocol: ProtocolVersion, new_id: Callable[[], str]) -> Make:
    """make(identifier=None, persistent=False, **options): a client to be entered with `async with`."""

    def one(identifier: str | None = None, persistent: bool = False, **options: Any) -> aiomqtt.Client:
        host, port = broker.address
        if protocol is ProtocolVersion.V5:
            options["clean_start"] = not persistent
            options["properties"] = Properties(PacketTypes.CONNECT)
            options["properties"].SessionExpiryInterval = 60 if persistent else 0
        else:
            options["clean_session"] = not persistent
        return aiomqtt.Client(host, port, identifier=identifier or new_id(), protocol=protocol, **options)

    return one


def test_publish_at_each_qos(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        async with make() as subscriber, make() as publisher:
            await subscriber.subscribe(f"{topic}/+", qos=2)
            for qos in (0, 1, 2):
                await publisher.publish(f"{topic}/{qos}", b"%d" % qos, qos=qos)
            assert await take(subscriber, 3) == [(b"%d" % qos, qos, False) for qos in (0, 1, 2)]

    run(work())


def test_retained(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        async with make() as publisher, make() as late, make() as later:
            await publisher.publish(topic, b"kept", qos=1, retain=True)
            await late.subscribe(topic, qos=1)
            assert await take(late, 1) == [(b"kept", 1, True)]
            await publisher.publish(topic, b"", qos=1, retain=True)
            await later.subscribe(topic, qos=1)
            assert await quiet(later)

    run(work())


def test_will(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        will = aiomqtt.Will(topic, b"lost", qos=1)
        async with make() as watcher:
            await watcher.subscribe(topic, qos=1)
            async with make(will=will):
                pass
            assert await quiet(watcher)
            lost = make(will=will)
            await lost.__aenter__()
            lost._client.socket().close()
            assert await take(watcher, 1) == [(b"lost", 1, False)]

    run(work())


def test_session_resume(make: Make, topic: str, placement: str, new_id: Callable[[], str]) -> None:
    async def work() -> None:
        name = new_id()
        async with make(name, True) as first:
            await first.subscribe(topic, qos=2)
        async with make() as publisher:
            await publisher.publish(topic, b"1", qos=1)
            await publisher.publish(topic, b"2", qos=2)
        async with make(name, True) as second:
            assert await take(second, 2) == [(b"1", 1, False), (b"2", 2, False)]
        async with make(name), make() as publisher:
            await publisher.publish(topic, b"3", qos=1)
        async with make(name, True) as fourth:
            assert await quiet(fourth)

    run(work())


def test_unsubscribe(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        async with make() as subscriber, make() as publisher:
            await subscriber.subscribe(topic, qos=1)
            await publisher.publish(topic, b"one", qos=1)
            assert await take(subscriber, 1) == [(b"one", 1, False)]
            await subscriber.unsubscribe(topic)
            await publisher.publish(topic, b"two", qos=1)
            assert await quiet(subscriber)

    run(work())
