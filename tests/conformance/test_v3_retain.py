"""Retained messages of MQTT 3.1.1 (§3.3.1.3)."""

from collections.abc import Callable, Iterator

import pytest

from tests.conformance import V3
from tests.harness import Client, Publish, statement

Connect = Callable[..., Client]
Retain = Callable[..., None]


@pytest.fixture
def retain(connect: Connect) -> Iterator[Retain]:
    """retain(topic, payload, qos=1) from a client of its own; what is retained is cleared after the test."""
    topics: set[str] = set()

    def publish(topic: str, payload: bytes, qos: int = 1) -> None:
        topics.add(topic)
        client = connect()
        client.publish(topic, payload, qos, retain=True)
        client.disconnect()

    yield publish
    cleaner = connect(4)
    for topic in topics:
        cleaner.publish(topic, b"", 1, retain=True)


@V3
@pytest.mark.parametrize("qos", [0, 1, 2])
@statement("3.1.1", "MQTT-3.3.1-5", "MQTT-3.3.1-8", "MQTT-3.1.2-7")
def test_mqtt_3_3_1_5_retained_with_its_qos(
    connect: Connect, retain: Retain, topic: str, placement: str, version: int, qos: int
) -> None:
    retain(topic, b"kept", qos)
    late = connect()
    late.subscribe(topic, 2)
    late.expect(Publish, topic=topic, payload=b"kept", qos=qos, retain=True, dup=False)


@V3
@statement("3.1.1", "MQTT-3.1.2-7")
def test_mqtt_3_1_2_7_retained_messages_outlive_sessions(
    connect: Connect, new_id: Callable[..., str], topic: str, placement: str, version: int
) -> None:
    name = new_id()
    publisher = connect(client_id=name, clean=False)
    publisher.publish(topic, b"left behind", 1, retain=True)
    publisher.disconnect()
    connect(client_id=name, clean=True).disconnect()
    late = connect()
    late.subscribe(topic, 1)
    late.expect(Publish, payload=b"left behind", retain=True)
    late.publish(topic, b"", retain=True)


@V3
@statement("3.1.1", "MQTT-3.3.1-6")
def test_mqtt_3_3_1_6_every_matching_retained_message(
    connect: Connect, retain: Retain, topic: str, placement: str, version: int
) -> None:
    for leaf in ("1", "2", "2/deeper"):
        retain(f"{topic}/{leaf}", leaf.encode())
    cases = {f"{topic}/+": {"1", "2"}, f"{topic}/#": {"1", "2", "2/deeper"}, f"{topic}/2": {"2"}}
    for topic_filter, leaves in cases.items():
        late = connect()
        late.subscribe(topic_filter, 1)
        got = late.expect_messages(*(leaf.encode() for leaf in leaves))
        assert all(one.retain and one.topic == f"{topic}/{one.payload.decode()}" for one in got)
        late.expect_nothing_from(late)


@V3
@statement("3.1.1", "MQTT-3.3.1-7", "MQTT-3.3.1-6")
def test_mqtt_3_3_1_7_qos_0_displaces_the_older_one(
    connect: Connect, retain: Retain, topic: str, placement: str, version: int
) -> None:
    retain(topic, b"old", 1)
    retain(topic, b"new", 0)
    late = connect()
    late.subscribe(topic, 1)
    late.expect(Publish, payload=b"new", qos=0, retain=True)
    late.expect_nothing_from(late)


@V3
@statement("3.1.1", "MQTT-3.3.1-9")
def test_mqtt_3_3_1_9_live_copies_are_not_marked(
    connect: Connect, retain: Retain, topic: str, placement: str, version: int
) -> None:
    watcher = connect()
    watcher.subscribe(topic, 1)
    retain(topic, b"live")
    watcher.expect(Publish, payload=b"live", retain=False)


@V3
@statement("3.1.1", "MQTT-3.3.1-10")
def test_mqtt_3_3_1_10_empty_payload_erases(connect: Connect, retain: Retain, topic: str, placement: str, version: int) -> None:
    retain(topic, b"X")
    watcher = connect()
    watcher.subscribe(topic, 1)
    watcher.expect(Publish, payload=b"X", retain=True)
    retain(topic, b"")
    watcher.expect(Publish, payload=b"", retain=False)
    late = connect()
    late.subscribe(topic, 1)
    late.expect_none()


@V3
@statement("3.1.1", "MQTT-3.3.1-11")
def test_mqtt_3_3_1_11_empty_payload_is_never_kept(
    connect: Connect, retain: Retain, topic: str, placement: str, version: int
) -> None:
    retain(topic, b"")
    late = connect()
    late.subscribe(topic, 1)
    late.expect_none()


@V3
@statement("3.1.1", "MQTT-3.3.1-12")
def test_mqtt_3_3_1_12_ordinary_messages_leave_it_alone(
    connect: Connect, retain: Retain, topic: str, placement: str, version: int
) -> None:
    retain(topic, b"X")
    publisher = connect()
    publisher.publish(topic, b"Y", 1)
    publisher.publish(topic, b"", 1)
    late = connect()
    late.subscribe(topic, 1)
    late.expect(Publish, payload=b"X", retain=True)
    late.expect_nothing_from(publisher, 1)


@V3
@statement("3.1.1", "MQTT-3.8.4-3")
def test_mqtt_3_8_4_3_subscribing_again_replaces_and_replays(
    connect: Connect, retain: Retain, topic: str, placement: str, version: int
) -> None:
    retain(topic, b"kept")
    client, publisher = connect(), connect()
    client.subscribe(topic, 0)
    client.expect(Publish, payload=b"kept", qos=0, retain=True)
    client.subscribe(topic, 1)
    client.expect(Publish, payload=b"kept", qos=1, retain=True)
    publisher.publish(topic, b"one copy", 1)
    assert [(m.payload, m.qos) for m in client.messages_from(publisher, 1)] == [(b"one copy", 1)]


@V3
@statement("3.1.1", "MQTT-3.8.4-3")
def test_mqtt_3_8_4_3_no_message_is_lost_while_resubscribing(connect: Connect, topic: str, placement: str, version: int) -> None:
    client, publisher = connect(), connect()
    client.subscribe(topic, 1)
    for number in range(30):
        publisher.publish(topic, str(number), 1, wait=False)
        client.subscribe(topic, number % 2)
    got = [m.payload for m in client.messages_from(publisher, 1)]
    assert sorted(got, key=int) == [b"%d" % n for n in range(30)]
