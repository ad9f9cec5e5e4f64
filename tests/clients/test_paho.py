"""paho-mqtt, the Python client that most others are built on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import Empty, Queue
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.harness import AnyBroker, statement

TIMEOUT_S = 5.0
QUIET_S = 0.3

pytestmark = pytest.mark.parametrize("protocol", [mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5], ids=["3.1", "3.1.1", "5.0"])


class Paho:
    """A connected client in the background; its events come out of queues."""

    def __init__(self, broker: AnyBroker, protocol: int, client_id: str, persistent: bool = False) -> None:
        self.messages: Queue[mqtt.MQTTMessage] = Queue()
        self._connected: Queue[tuple[bool, bool]] = Queue()
        self._acks: Queue[list[int]] = Queue()
        self._broker = broker
        self._persistent = persistent
        v5 = protocol == mqtt.MQTTv5
        clean = {} if v5 else {"clean_session": not persistent}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=mqtt.MQTTProtocolVersion(protocol),
            **clean,
        )
        self._v5 = v5
        self.client.on_message = lambda client, data, message: self.messages.put(message)
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda client, data, mid, codes, properties: self._acks.put([c.value for c in codes])
        self.client.on_unsubscribe = lambda client, data, mid, codes, properties: self._acks.put([])

    def _on_connect(self, client: Any, data: Any, flags: mqtt.ConnectFlags, reason: Any, properties: Any) -> None:
        self._connected.put((not reason.is_failure, flags.session_present))

    def start(self) -> bool:
        """Connects; returns Session Present."""
        options: dict[str, Any] = {}
        if self._v5:
            options["clean_start"] = not self._persistent
            options["properties"] = Properties(PacketTypes.CONNECT)
            options["properties"].SessionExpiryInterval = 60 if self._persistent else 0
        self.client.connect(*self._broker.address, **options)
        self.client.loop_start()
        accepted, present = self._connected.get(timeout=TIMEOUT_S)
        assert accepted
        return present

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """Ends without DISCONNECT."""
        self.client.loop_stop()
        connection = self.client.socket()
        if connection is not None:
            connection.close()

    def subscribe(self, topic_filter: str, qos: int) -> list[int]:
        self.client.subscribe(topic_filter, qos)
        return self._acks.get(timeout=TIMEOUT_S)

    def unsubscribe(self, topic_filter: str) -> None:
        self.client.unsubscribe(topic_filter)
        self._acks.get(timeout=TIMEOUT_S)

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        self.client.publish(topic, payload, qos, retain).wait_for_publish(TIMEOUT_S)

    def get(self) -> tuple[bytes, int, bool]:
        message = self.messages.get(timeout=TIMEOUT_S)
        return message.payload, message.qos, message.retain

    def quiet(self) -> bool:
        try:
            self.messages.get(timeout=QUIET_S)
        except Empty:
            return True
        return False


Make = Callable[..., Paho]


@pytest.fixture
def make(broker: AnyBroker, protocol: int, new_id: Callable[[], str]) -> Iterator[Make]:
    """make(client_id=None, persistent=False): a client that is not connected yet; stopped at the end."""
    with ExitStack() as stack:

        def one(client_id: str | None = None, persistent: bool = False) -> Paho:
            paho = Paho(broker, protocol, client_id or new_id(), persistent)
            stack.callback(paho.stop)
            return paho

        yield one


@statement("3.1.1", "MQTT-7.0.0-2")
def test_publish_at_each_qos(make: Make, topic: str, placement: str) -> None:
    subscriber, publisher = make(), make()
    subscriber.start()
    publisher.start()
    assert subscriber.subscribe(f"{topic}/#", 2) == [2]
    for qos in (0, 1, 2):
        publisher.publish(f"{topic}/{qos}", b"%d" % qos, qos)
    assert [subscriber.get() for _ in range(3)] == [(b"%d" % qos, qos, False) for qos in (0, 1, 2)]


def test_many_messages_in_flight(make: Make, topic: str, placement: str) -> None:
    subscriber, publisher = make(), make()
    subscriber.start()
    publisher.start()
    subscriber.subscribe(topic, 2)
    infos = [publisher.client.publish(topic, b"%d" % n, n % 3) for n in range(150)]
    for info in infos:
        info.wait_for_publish(TIMEOUT_S)
    got = sorted(int(subscriber.get()[0]) for _ in range(150))
    assert got == list(range(150))
    assert subscriber.quiet()


def test_retained(make: Make, topic: str, placement: str) -> None:
    publisher, late, later = make(), make(), make()
    for one in (publisher, late, later):
        one.start()
    publisher.publish(topic, b"kept", 1, retain=True)
    late.subscribe(topic, 1)
    assert late.get() == (b"kept", 1, True)
    publisher.publish(topic, b"", 1, retain=True)
    assert late.get() == (b"", 1, False)
    later.subscribe(topic, 1)
    assert later.quiet()


def test_will(make: Make, topic: str, placement: str) -> None:
    watcher, polite, lost = make(), make(), make()
    watcher.start()
    watcher.subscribe(f"{topic}/#", 1)
    for name, one in (("polite", polite), ("lost", lost)):
        one.client.will_set(f"{topic}/{name}", name.encode(), 1)
        one.start()
    polite.stop()
    lost.vanish()
    assert watcher.get() == (b"lost", 1, False)
    assert watcher.quiet()


def test_session_resume(make: Make, topic: str, placement: str, new_id: Callable[[], str], protocol: int) -> None:
    name = new_id()
    first, publisher, second, third = make(name, True), make(), make(name, True), make(name)
    assert not first.start()
    first.subscribe(topic, 2)
    first.stop()
    publisher.start()
    for qos in (1, 2):
        publisher.publish(topic, b"%d" % qos, qos)
    assert second.start() is (protocol != mqtt.MQTTv31)
    assert [second.get() for _ in range(2)] == [(b"1", 1, False), (b"2", 2, False)]
    second.stop()
    assert not third.start()


def test_unsubscribe(make: Make, topic: str, placement: str) -> None:
    subscriber, publisher = make(), make()
    subscriber.start()
    publisher.start()
    subscriber.subscribe(topic, 1)
    publisher.publish(topic, b"one", 1)
    assert subscriber.get()[0] == b"one"
    subscriber.unsubscribe(topic)
    publisher.publish(topic, b"two", 1)
    assert subscriber.quiet()
