"""gmqtt: an asyncio client with an MQTT implementation of its own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import gmqtt
import pytest

from tests.harness import AnyBroker

TIMEOUT_S = 5.0
QUIET_S = 0.3

pytestmark = pytest.mark.parametrize("protocol", [4, 5], ids=["3.1.1", "5.0"])


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 4 * TIMEOUT_S))


class Gmqtt:
    """A client whose messages come out of a queue; `async with` connects it."""

    def __init__(
        self,
        broker: AnyBroker,
        protocol: int,
        name: str,
        persistent: bool = False,
        will: gmqtt.Message | None = None,
    ) -> None:
        self._broker = broker
        self._protocol = protocol
        self._acks: asyncio.Queue[int] = asyncio.Queue()
        self.messages: asyncio.Queue[tuple[bytes, int, bool]] = asyncio.Queue()
        options = {"session_expiry_interval": 60} if persistent and protocol == 5 else {}
        self.client = gmqtt.Client(name, clean_session=not persistent, will_message=will, **options)
        self.client.set_config({"reconnect_retries": 0})
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda client, mid, qos, properties: self._acks.put_nowait(mid)
        self.client.on_unsubscribe = lambda client, mid, *rest: self._acks.put_nowait(mid)

    def _on_message(self, client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
        self.messages.put_nowait((bytes(payload), qos, bool(properties.get("retain"))))
        return 0

    async def __aenter__(self) -> "Gmqtt":
        host, port = self._broker.address
        await asyncio.wait_for(self.client.connect(host, port, version=self._protocol, keepalive=60), TIMEOUT_S)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.disconnect()

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos=qos)
        await asyncio.wait_for(self._acks.get(), TIMEOUT_S)

    async def unsubscribe(self, topic_filter: str) -> None:
        self.client.unsubscribe(topic_filter)
        await asyncio.wait_for(self._acks.get(), TIMEOUT_S)

    async def take(self, count: int) -> list[tuple[bytes, int, bool]]:
        return [await asyncio.wait_for(self.messages.get(), TIMEOUT_S) for _ in range(count)]

    async def quiet(self) -> bool:
        await asyncio.sleep(QUIET_S)
        return self.messages.empty()


Make = Callable[..., Gmqtt]


@pytest.fixture
def make(broker: AnyBroker, protocol: int, new_id: Callable[[], str]) -> Make:
    """make(name=None, persistent=False, will=None); to be called within the event loop."""

    def one(name: str | None = None, persistent: bool = False, will: gmqtt.Message | None = None) -> Gmqtt:
        return Gmqtt(broker, protocol, name or new_id(), persistent, will)

    return one


def test_publish_at_each_qos(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        async with make() as subscriber, make() as publisher:
            await subscriber.subscribe(f"{topic}/+", 2)
            for qos in (0, 1, 2):
                publisher.client.publish(f"{topic}/{qos}", b"%d" % qos, qos=qos)
            assert sorted(await subscriber.take(3)) == [(b"%d" % qos, qos, False) for qos in (0, 1, 2)]

    run(work())


def test_retained(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        async with make() as publisher, make() as watcher, make() as late, make() as later:
            await watcher.subscribe(topic, 1)
            publisher.client.publish(topic, b"kept", qos=1, retain=True)
            assert (await watcher.take(1))[0][0] == b"kept"
            await late.subscribe(topic, 1)
            assert await late.take(1) == [(b"kept", 1, True)]
            publisher.client.publish(topic, b"", qos=1, retain=True)
            assert (await watcher.take(1))[0][0] == b""
            await later.subscribe(topic, 1)
            assert await later.quiet()

    run(work())


def test_will(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        will = gmqtt.Message(topic, b"lost", qos=1)
        async with make() as watcher:
            await watcher.subscribe(topic, 1)
            async with make(will=will):
                pass
            assert await watcher.quiet()
            lost = await make(will=will).__aenter__()
            lost.client._connection._transport.abort()
            assert await watcher.take(1) == [(b"lost", 1, False)]

    run(work())


def test_session_resume(make: Make, topic: str, placement: str, new_id: Callable[[], str]) -> None:
    async def work() -> None:
        name = new_id()
        async with make() as watcher:
            await watcher.subscribe(topic, 1)
            async with make(name, True) as first:
                await first.subscribe(topic, 1)
            async with make() as publisher:
                publisher.client.publish(topic, b"stored", qos=1)
                assert await watcher.take(1) == [(b"stored", 1, False)]
            async with make(name, True) as second:
                assert await second.take(1) == [(b"stored", 1, False)]

    run(work())


def test_unsubscribe(make: Make, topic: str, placement: str) -> None:
    async def work() -> None:
        async with make() as subscriber, make() as publisher:
            await subscriber.subscribe(topic, 1)
            publisher.client.publish(topic, b"one", qos=1)
            assert await subscriber.take(1) == [(b"one", 1, False)]
            await subscriber.unsubscribe(topic)
            publisher.client.publish(topic, b"two", qos=1)
            assert await subscriber.quiet()

    run(work())
