"""PUBLISH, QoS flows and order of MQTT 3.1.1 (§3.3, §4.3, §4.6)."""

from collections.abc import Callable

import pytest

from tests.conformance import V3, V311
from tests.harness import Client, Puback, Pubcomp, Publish, Pubrec, Pubrel, statement, wire

Connect = Callable[..., Client]
NewId = Callable[..., str]


@V3
@statement("3.1.1", "MQTT-2.3.1-5", "MQTT-4.3.1-1", "MQTT-2.2.2-1")
def test_mqtt_2_3_1_5_qos_0_bytes(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber = connect()
    subscriber.subscribe(topic)
    connect().publish(topic, b"payload")
    name = topic.encode()
    assert subscriber.expect(Publish).raw == b"\x30" + bytes([len(name) + 9]) + wire.string(name) + b"payload"


@V3
@statement("3.1.1", "MQTT-1.5.3-3")
def test_mqtt_1_5_3_3_feff_is_kept(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber = connect()
    name = f"\ufeff{topic}/\ufeff"
    subscriber.subscribe(name)
    connect().publish(name, b"x")
    assert name.encode() in subscriber.expect(Publish, topic=name).raw


@V3
@statement("3.1.1", "MQTT-3.3.1-2", "MQTT-3.3.1-3")
def test_mqtt_3_3_1_3_dup_is_not_passed_on(connect: Connect, topic: str, placement: str, version: int) -> None:
    receivers = {qos: connect() for qos in (0, 1, 2)}
    for qos, receiver in receivers.items():
        receiver.subscribe(topic, qos)
    publisher = connect()
    for qos in (1, 2):
        publisher.publish(topic, b"x", qos, dup=True)
        for granted, receiver in receivers.items():
            receiver.expect(Publish, dup=False, qos=min(qos, granted))


@V3
@statement("3.1.1", "MQTT-3.3.2-2", "MQTT-4.7.1-1")
def test_mqtt_3_3_2_2_wildcard_topics_are_not_delivered(connect: Connect, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(f"{topic}/#", 1)
    for wild in ("+", "#", "a/+/b"):
        publisher = connect()
        publisher.publish(f"{topic}/{wild}", b"x", 1, wait=False)
        publisher.expect_close()
    watcher.expect_none()


@V3
@statement("3.1.1", "MQTT-3.3.2-3")
def test_mqtt_3_3_2_3_delivered_topics_fit_the_filter(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/a/+", 1)
    for leaf in ("a/b", "a/b/c", "c", "a", "a/"):
        publisher.publish(f"{topic}/{leaf}", leaf, 1)
    assert [m.topic for m in subscriber.messages_from(publisher, 1)] == [f"{topic}/a/b", f"{topic}/a/"]


@V3
@statement("3.1.1", "MQTT-3.3.5-1")
def test_mqtt_3_3_5_1_overlapping_filters_honour_the_highest_qos(
    connect: Connect, topic: str, placement: str, version: int
) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe([(f"{topic}/#", 1), (f"{topic}/a", 2), (f"{topic}/+", 0)])
    publisher.publish(f"{topic}/a", b"x", 2)
    publisher.publish(f"{topic}/b", b"y", 2)
    got = subscriber.messages_from(publisher, 2)
    assert max(m.qos for m in got if m.payload == b"x") == 2
    assert max(m.qos for m in got if m.payload == b"y") == 1
    assert len(got) <= 5


@V3
@statement("3.1.1", "MQTT-3.8.4-6")
def test_mqtt_3_8_4_6_lower_of_both_qos(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(), connect()
    for granted in (0, 1, 2):
        assert subscriber.subscribe(f"{topic}/{granted}", granted).codes == (granted,)
        for sent in (0, 1, 2):
            publisher.publish(f"{topic}/{granted}", str(sent), sent)
            subscriber.expect(Publish, payload=b"%d" % sent, qos=min(granted, sent))


@V3
@statement("3.1.1", "MQTT-4.3.2-1", "MQTT-2.3.1-4", "MQTT-2.3.1-1")
def test_mqtt_4_3_2_1_ids_of_pending_deliveries_differ(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(auto_ack=False), connect()
    subscriber.subscribe(topic, 2)
    for number in range(10):
        publisher.publish(topic, b"x", 1 + number % 2)
    got = [subscriber.expect(Publish, dup=False) for _ in range(10)]
    assert len({m.packet_id for m in got} - {0, None}) == 10


@V3
@statement("3.1.1", "MQTT-2.3.1-4")
def test_mqtt_2_3_1_4_more_messages_than_ids(connect: Connect, topic: str, version: int) -> None:
    """More deliveries than the window has places: ids are free for use again after their acks."""
    client = connect()
    client.subscribe(topic, 1)
    for number in range(300):
        client.publish(topic, str(number), 1)
        client.expect(Publish, payload=b"%d" % number)


@V3
@statement("3.1.1", "MQTT-4.3.2-2")
def test_mqtt_4_3_2_2_each_publish_after_the_ack_is_a_new_message(
    connect: Connect, topic: str, placement: str, version: int
) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 1)
    publisher.publish(topic, b"first", 1, packet_id=1)
    publisher.publish(topic, b"second", 1, packet_id=1, dup=True)
    subscriber.expect(Publish, payload=b"first")
    subscriber.expect(Publish, payload=b"second")


@V3
@statement("3.1.1", "MQTT-4.3.3-1", "MQTT-2.3.1-6")
def test_mqtt_4_3_3_1_delivery_at_qos_2(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(auto_ack=False), connect()
    subscriber.subscribe(topic, 2)
    publisher.publish(topic, b"x", 2)
    message = subscriber.expect(Publish, qos=2, dup=False)
    assert message.packet_id
    subscriber.ack(message)
    subscriber.expect(Pubrel, packet_id=message.packet_id)
    subscriber.send_raw(wire.pubcomp(message.packet_id))
    subscriber.fence()
    subscriber.expect_none(0.1)


@V3
@statement("3.1.1", "MQTT-4.3.3-2")
def test_mqtt_4_3_3_2_delivered_once_until_pubrel(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 2)
    for _ in range(2):
        publisher.publish(topic, b"once", 2, packet_id=1, wait=False)
        publisher.expect(Pubrec, packet_id=1)
    assert publisher.release(1) == Pubcomp(1)
    publisher.publish(topic, b"new", 2, packet_id=1)
    assert [m.payload for m in subscriber.messages_from(publisher, 2)] == [b"once", b"new"]


@V3
@statement("3.1.1", "MQTT-3.3.4-1")
def test_mqtt_3_3_4_1_acks_without_subscribers(connect: Connect, topic: str, version: int) -> None:
    client = connect()
    client.publish(topic, b"x", 0)
    client.fence()
    assert client.publish(topic, b"x", 1, packet_id=65535) == Puback(65535)
    assert client.publish(topic, b"x", 2, packet_id=65534) == Pubcomp(65534)
    client.expect_none(0.05)


@V3
@pytest.mark.parametrize("qos", [0, 1, 2])
@statement("3.1.1", "MQTT-4.6.0-5", "MQTT-4.6.0-6")
def test_mqtt_4_6_0_5_order_of_1000_messages(connect: Connect, topic: str, placement: str, version: int, qos: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/#", qos)
    got: list[int] = []
    for start in range(0, 1000, 100):
        for number in range(start, start + 100):
            publisher.publish(f"{topic}/{number % 7}", str(number), qos, wait=qos == 2)
        publisher.fence()
        got += [int(subscriber.expect(Publish, qos=qos).payload) for _ in range(100)]
    by_topic = [[n for n in got if n % 7 == leaf] for leaf in range(7)]
    assert by_topic == [list(range(leaf, 1000, 7)) for leaf in range(7)]


@V3
@statement("3.1.1", "MQTT-4.6.0-6", "MQTT-3.3.1-1")
def test_mqtt_4_6_0_6_order_of_messages_sent_again(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    first = connect(client_id=name, clean=False, auto_ack=False)
    first.subscribe(topic, 1)
    publisher = connect()
    for number in range(100):
        publisher.publish(topic, str(number), 1)
    seen = [first.expect(Publish).payload for _ in range(5)]
    assert seen == [b"%d" % n for n in range(5)]
    first.cut()
    again = connect(client_id=name, clean=False)
    got = [again.expect(Publish) for _ in range(100)]
    assert [m.payload for m in got] == [b"%d" % n for n in range(100)]
    assert [m.dup for m in got] == sorted((m.dup for m in got), reverse=True) and got[0].dup


@V311
@statement("3.1.1", "MQTT-4.8.0-1")
def test_mqtt_4_8_0_1_only_the_offender_is_closed(connect: Connect, topic: str, placement: str, version: int) -> None:
    good, bad = connect(), connect()
    good.subscribe(topic)
    bad.send_raw(b"\xf0\x00")
    bad.expect_close()
    good.publish(topic, b"unharmed")
    good.expect(Publish, payload=b"unharmed")


@V3
@pytest.mark.parametrize("size", [0, 127, 16_384, 300_000])
@statement("3.1.1", "MQTT-7.1.1-1")
def test_mqtt_7_1_1_1_payloads_of_all_sizes(connect: Connect, topic: str, placement: str, version: int, size: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 1)
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    publisher.publish(topic, payload, 1)
    subscriber.expect(Publish, payload=payload, qos=1)
