"""PUBLISH, properties, QoS flows and flow control of MQTT 5.0 (§3.3 to §3.7, §4.3, §4.4, §4.6, §4.9)."""

import time
from collections.abc import Callable

import pytest

from tests.harness import Client, Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, statement, wire

Connect = Callable[..., Client]
KEPT = {"session_expiry_interval": 60}


@statement("5.0", "MQTT-1.5.4-3", "MQTT-4.7.3-4")
def test_mqtt_1_5_4_3_topics_are_taken_literally(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe([(f"\ufeff{topic}", 0), (f"{topic}/\u00e9", 0), (f"{topic}/A", 0)])
    for name in (f"\ufeff{topic}", f"{topic}/e\u0301", f"{topic}/a", topic):
        publisher.publish(name, name.encode(), 1)
    assert subscriber.expect(Publish).topic == f"\ufeff{topic}"
    subscriber.expect_nothing_from(publisher, 1)


@statement("5.0", "MQTT-2.2.1-2", "MQTT-4.3.1-1", "MQTT-3.3.1-2", "MQTT-3.3.1-3", "MQTT-2.2.2-1")
def test_mqtt_3_3_1_3_dup_is_not_passed_on(connect: Connect, topic: str, placement: str) -> None:
    low, high, publisher = connect(), connect(), connect()
    low.subscribe(topic, 0)
    high.subscribe(topic, 1)
    publisher.publish(topic, b"x", 1, dup=True)
    assert low.expect(Publish, payload=b"x").raw[0] == 0x30
    assert high.expect(Publish, payload=b"x").raw[0] == 0x32


@statement(
    "5.0",
    "MQTT-2.2.1-5",
    "MQTT-2.2.1-6",
    "MQTT-3.3.4-1",
    "MQTT-4.3.2-4",
    "MQTT-4.3.3-8",
    "MQTT-4.3.3-11",
    "MQTT-3.4.2-1",
    "MQTT-3.5.2-1",
    "MQTT-3.7.2-1",
    "MQTT-3.10.4-5",
)
def test_mqtt_2_2_1_5_acknowledgements_carry_the_id(connect: Connect, topic: str) -> None:
    """0x10 (nobody subscribes) and 0x92 (id not found) may be sent; 0 is right too (§3.4.2.1, §4.3.3)."""
    client = connect(auto_ack=False)
    client.publish(topic, b"x", 0)
    client.send_raw(wire.publish(topic, b"x", qos=1, packet_id=0x1234, version=5))
    assert client.expect(Puback, packet_id=0x1234).code in (0, 0x10)
    client.send_raw(wire.publish(topic, b"x", qos=2, packet_id=0x4321, version=5))
    assert client.expect(Pubrec, packet_id=0x4321).code in (0, 0x10)
    client.send_raw(wire.packet(6, b"\x43\x21", flags=2))
    assert client.expect(Pubcomp, packet_id=0x4321).code == 0
    client.send_raw(wire.packet(6, b"\x43\x21", flags=2))
    assert client.expect(Pubcomp, packet_id=0x4321).code in (0, 0x92)
    assert client.subscribe(topic, packet_id=0xABCD).packet_id == 0xABCD
    client.publish(topic, b"own", 1)
    client.expect(Publish, payload=b"own")
    client.expect_none(0.1)


@statement("5.0", "MQTT-3.6.2-1", "MQTT-4.3.3-4")
def test_mqtt_3_6_2_1_pubrel_for_an_unknown_id(connect: Connect) -> None:
    client = connect(auto_ack=False)
    client.send_raw(wire.packet(5, b"\x12\x34"))
    assert client.expect(Pubrel, packet_id=0x1234).code in (0, 0x92)


@statement("5.0", "MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.2-2", "MQTT-4.3.3-1", "MQTT-4.3.3-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_2_2_1_4_ids_in_flight_differ(connect: Connect, topic: str, placement: str, qos: int) -> None:
    subscriber, publisher = connect(auto_ack=False), connect()
    subscriber.subscribe(topic, qos)
    for i in range(10):
        publisher.publish(topic, b"%d" % i, qos)
    got = [subscriber.expect(Publish, qos=qos, dup=False) for _ in range(10)]
    assert [message.packet_id for message in got] == list(range(1, 11))


@statement("5.0", "MQTT-4.3.2-3", "MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.4.0-2")
def test_mqtt_4_3_2_3_qos_1_is_sent_again_on_resume_only(
    connect: Connect, topic: str, placement: str, new_id: Callable[..., str]
) -> None:
    name = new_id()
    subscriber, publisher = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False), connect()
    subscriber.subscribe(topic, 1)
    for payload in (b"a", b"b", b"c"):
        publisher.publish(topic, payload, 1)
    got = [subscriber.expect(Publish) for _ in range(3)]
    subscriber.expect_none(1)
    subscriber.send_raw(wire.packet(4, got[1].packet_id.to_bytes(2, "big") + b"\x80"))
    subscriber.ping()
    subscriber.drop()
    again = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False)
    for message in (got[0], got[2]):
        again.expect(Publish, packet_id=message.packet_id, payload=message.payload, dup=True)
        again.ack(message)
    again.ping()
    again.drop()
    connect(client_id=name, clean=False, properties=KEPT).expect_none(0.3)


@statement("5.0", "MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.3.3-7", "MQTT-4.3.3-4", "MQTT-3.10.4-3")
@pytest.mark.parametrize("expires", [False, True], ids=["lasting", "expiring"])
def test_mqtt_4_3_3_6_qos_2_over_reconnects(
    connect: Connect, topic: str, placement: str, new_id: Callable[..., str], expires: bool
) -> None:
    name = new_id()
    first, publisher = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False), connect()
    first.subscribe(topic, 2)
    publisher.publish(topic, b"x", 2, properties={"message_expiry_interval": 1} if expires else None)
    message = first.expect(Publish, qos=2, dup=False)
    first.unsubscribe(topic)
    first.drop()
    time.sleep(2.2 if expires else 0)  # mosquitto counts in whole seconds
    second = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False)
    second.expect(Publish, packet_id=message.packet_id, dup=True, payload=b"x")
    second.ack(message)
    second.expect(Pubrel, packet_id=message.packet_id)
    second.drop()
    third = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False)
    third.expect(Pubrel, packet_id=message.packet_id)
    third.expect_none(0.2)
    third.send_raw(wire.packet(7, message.packet_id.to_bytes(2, "big")))
    third.ping()
    third.drop()
    connect(client_id=name, clean=False, properties=KEPT).expect_none(0.2)


@statement("5.0", "MQTT-4.3.2-5", "MQTT-4.3.3-10", "MQTT-4.3.3-12")
def test_mqtt_4_3_3_10_repeats_and_ids_used_again(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect(auto_ack=False)
    subscriber.subscribe(topic, 2)
    for dup in (False, True):
        publisher.send_raw(wire.publish(topic, b"one", qos=1, packet_id=7, dup=dup, version=5))
        publisher.expect(Puback, packet_id=7)
    for dup in (False, True):
        publisher.send_raw(wire.publish(topic, b"two", qos=2, packet_id=9, dup=dup, version=5))
        assert publisher.expect(Pubrec, packet_id=9).code == 0
    publisher.release(9)
    publisher.publish(topic, b"two", 2, packet_id=9)
    subscriber.expect_messages(b"one", b"one", b"two", b"two")
    subscriber.expect_nothing_from(publisher, 2)


@statement("5.0", "MQTT-4.3.3-13")
def test_mqtt_4_3_3_13_acknowledgements_go_on_after_expiry(connect: Connect, topic: str) -> None:
    subscriber, publisher = connect(), connect(auto_ack=False)
    subscriber.subscribe(topic, 2)
    expiring = {"message_expiry_interval": 1}
    publisher.send_raw(wire.publish(topic, b"x", qos=2, packet_id=9, version=5, properties=expiring))
    assert publisher.expect(Pubrec, packet_id=9).code == 0
    time.sleep(1.2)
    assert publisher.release(9).code == 0


@statement(
    "5.0", "MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20", "MQTT-3.3.2-3"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_2_17_properties_are_passed_on(connect: Connect, topic: str, placement: str, qos: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/+", qos)
    sent = {
        "payload_format_indicator": 1,
        "response_topic": "r/1",
        "correlation_data": b"\0\xff\x10",
        "content_type": "text/plain",
        "user_property": [("c", "1"), ("a", ""), ("b", "2"), ("a", "3")],
    }
    publisher.publish(f"{topic}/b", b"x", qos, properties=sent)
    publisher.publish(f"{topic}/b/c", b"deeper", qos)
    assert subscriber.expect(Publish, qos=qos).properties == sent
    subscriber.expect_nothing_from(publisher, qos)


@statement("5.0", "MQTT-3.3.2-5", "MQTT-3.3.2-6")
def test_mqtt_3_3_2_6_message_expiry(connect: Connect, topic: str, placement: str, new_id: Callable[..., str]) -> None:
    name = new_id()
    subscriber = connect(client_id=name, clean=False, properties=KEPT)
    subscriber.subscribe(topic, 1)
    subscriber.drop()
    publisher = connect()
    publisher.publish(topic, b"short", 1, properties={"message_expiry_interval": 1})
    publisher.publish(topic, b"long", 1, properties={"message_expiry_interval": 60})
    time.sleep(2)
    message = connect(client_id=name, clean=False, properties=KEPT).expect(Publish, payload=b"long")
    assert 56 <= message.properties["message_expiry_interval"] <= 58


@statement("5.0", "MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11")
def test_mqtt_3_1_2_26_aliases_to_the_client(connect: Connect, topic: str, placement: str) -> None:
    with_aliases, without, publisher = connect(properties={"topic_alias_maximum": 2}), connect(), connect()
    for subscriber in (with_aliases, without):
        subscriber.subscribe(f"{topic}/#")
    for _ in range(2):
        for i in range(5):
            publisher.publish(f"{topic}/{i}", b"%d" % i, 1)
    names: dict[int, str] = {}
    for i in [*range(5), *range(5)]:
        message = with_aliases.expect(Publish, payload=b"%d" % i)
        alias = message.properties.get("topic_alias")
        assert alias in (None, 1, 2)
        if alias and message.topic:
            names[alias] = message.topic
        assert (message.topic or names[alias]) == f"{topic}/{i}"
        assert "topic_alias" not in without.expect(Publish).properties


@statement("5.0", "MQTT-3.3.2-7")
def test_mqtt_3_3_2_7_aliases_end_with_the_connection(connect: Connect, topic: str, new_id: Callable[..., str]) -> None:
    name = new_id()
    client = connect(client_id=name, clean=False, properties=KEPT)
    client.publish(topic, b"x", 1, properties={"topic_alias": 1})
    client.drop()
    client = connect(client_id=name, clean=False, properties=KEPT)
    client.publish("", b"x", properties={"topic_alias": 1}, wait=False)
    assert client.expect_close().code in (0x82, 0x94)


@statement("5.0", "MQTT-3.1.2-24", "MQTT-3.1.2-25")
def test_mqtt_3_1_2_25_too_large_for_the_client(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(properties={"maximum_packet_size": 60, "receive_maximum": 1}), connect()
    subscriber.subscribe(topic, 1)
    publisher.publish(topic, b"x" * 200, 1)
    publisher.publish(topic, b"small", 1)
    subscriber.expect(Publish, payload=b"small")


@statement("5.0", "MQTT-3.3.4-9", "MQTT-3.3.4-10", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-4.9.0-3")
def test_mqtt_3_3_4_9_receive_maximum_of_the_client(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(properties={"receive_maximum": 2}, auto_ack=False), connect()
    subscriber.subscribe(topic, 1)
    for i in range(6):
        publisher.publish(topic, b"%d" % i, 1)
    window = [subscriber.expect(Publish) for _ in range(2)]
    subscriber.expect_none(0.2)
    publisher.publish(topic, b"zero", 0)
    subscriber.expect(Publish, payload=b"zero", qos=0)
    subscriber.ping()
    assert subscriber.subscribe(f"{topic}/other").codes == (0,)
    subscriber.publish(f"{topic}/own", b"x", 1)
    for i in range(2, 6):
        subscriber.ack(window.pop(0))
        window.append(subscriber.expect(Publish, payload=b"%d" % i))
        subscriber.expect_none(0.05)


@statement("5.0", "MQTT-3.3.4-7")
def test_mqtt_3_3_4_7_receive_maximum_of_the_server(connect: Connect, topic: str) -> None:
    client = connect(auto_ack=False)
    limit = client.connack.properties["receive_maximum"]
    client.send_raw(b"".join(wire.publish(topic, b"x", qos=2, packet_id=i + 1, version=5) for i in range(limit + 1)))
    assert client.expect_close(ignore=(Pubrec,)).code == 0x93


@statement("5.0", "MQTT-4.6.0-5", "MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_4_6_0_5_order(connect: Connect, topic: str, placement: str, qos: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/+", qos)
    count = 300
    for first in range(0, count, 50):
        for i in range(first, first + 50):
            publisher.publish(f"{topic}/{i % 3}", b"%d" % i, qos, wait=qos == 2)
    got = [int(subscriber.expect(Publish, qos=qos).payload) for _ in range(count)]
    assert got == list(range(count))


@statement("5.0", "MQTT-4.5.0-1")
def test_mqtt_4_5_0_1_everybody_who_matches(connect: Connect, topic: str, placement: str, new_id: Callable[..., str]) -> None:
    away = new_id()
    offline = connect(client_id=away, clean=False, properties=KEPT)
    offline.subscribe(f"{topic}/#", 1)
    offline.drop()
    online = [connect(), connect()]
    online[0].subscribe(f"{topic}/+", 1)
    online[1].subscribe(f"{topic}/a", 2)
    connect().publish(f"{topic}/a", b"x", 1)
    for client in [*online, connect(client_id=away, clean=False, properties=KEPT)]:
        client.expect(Publish, payload=b"x", qos=1)


@statement("5.0", "MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7", "MQTT-3.3.1-8", "MQTT-3.3.1-9")
def test_mqtt_3_3_1_5_retained_messages(connect: Connect, topic: str, placement: str) -> None:
    publisher, live = connect(), connect()
    for payload, retain in ((b"A", True), (b"B", True), (b"not kept", False)):
        publisher.publish(topic, payload, 1, retain)
    publisher.publish(f"{topic}/fresh", b"", 1, True)
    live.subscribe(f"{topic}/#", 1)
    live.expect(Publish, payload=b"B", retain=True)
    live.expect_nothing_from(publisher, 1)
    live.subscribe(f"{topic}/#", 1)
    live.expect(Publish, payload=b"B", retain=True)
    publisher.publish(topic, b"", 1, True)
    live.expect(Publish, payload=b"", retain=False)
    late = connect()
    late.subscribe(f"{topic}/#", 1)
    late.expect_nothing_from(publisher, 1)


@statement("5.0", "MQTT-3.3.1-10", "MQTT-3.3.1-11")
def test_mqtt_3_3_1_10_retain_handling(connect: Connect, topic: str, placement: str) -> None:
    publisher = connect()
    publisher.publish(topic, b"kept", 1, True)
    once, never = connect(), connect()
    once.subscribe(topic, 1, retain_handling=1)
    once.expect(Publish, payload=b"kept")
    once.subscribe(topic, 1, retain_handling=1)
    never.subscribe(topic, 1, retain_handling=2)
    for client in (once, never):
        client.expect_nothing_from(publisher, 1)


@statement("5.0", "MQTT-3.3.1-12", "MQTT-3.3.1-13")
def test_mqtt_3_3_1_13_retain_as_published(connect: Connect, topic: str, placement: str) -> None:
    plain, kept, publisher = connect(), connect(), connect()
    plain.subscribe(topic, 1)
    kept.subscribe(topic, 1, retain_as_published=True)
    for retain in (True, False):
        publisher.publish(topic, b"x", 1, retain)
        plain.expect(Publish, retain=False)
        kept.expect(Publish, retain=retain)


@statement("5.0", "MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.3.4-5")
def test_mqtt_3_3_4_4_overlapping_subscriptions(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/#", 1, properties={"subscription_identifier": 1})
    subscriber.subscribe(f"{topic}/b", 2, properties={"subscription_identifier": [300]})
    publisher.publish(f"{topic}/b", b"x", 2)
    got = subscriber.messages_from(publisher, 2)
    assert max(message.qos for message in got) == 2
    found = sorted(sorted(message.properties["subscription_identifier"]) for message in got)
    assert found in ([[1, 300]], [[1], [300]])


@statement("5.0", "MQTT-3.8.3-3")
def test_mqtt_3_8_3_3_no_local(connect: Connect, topic: str, placement: str) -> None:
    client, other = connect(), connect()
    client.subscribe(topic, 1, no_local=True)
    client.publish(topic, b"own", 1)
    other.publish(topic, b"other", 1)
    client.expect(Publish, payload=b"other")
    client.expect_none(0.2)


@statement(
    "5.0",
    "MQTT-3.8.4-1",
    "MQTT-3.8.4-2",
    "MQTT-3.8.4-5",
    "MQTT-3.8.4-6",
    "MQTT-3.8.4-7",
    "MQTT-3.9.3-1",
    "MQTT-3.9.3-2",
    "MQTT-4.8.2-1",
)
def test_mqtt_3_9_3_2_suback_codes(connect: Connect, topic: str) -> None:
    client = connect()
    filters = [
        (f"{topic}/a", 0),
        (f"{topic}/b", 2),
        (f"{topic}/c", 1),
        (f"$share/g/{topic}", 1),
    ]
    suback = client.subscribe(filters, check=False)
    assert isinstance(suback, Suback)
    assert suback.codes == (0, 2, 1, 1)


@statement("5.0", "MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize("wrong", ["a#", "a/#/b", "a+", "$share//t", "$share/g+/t", "$share/g"])
def test_mqtt_4_7_1_1_ill_formed_filters(connect: Connect, wrong: str) -> None:
    """Refused in the SUBACK, or the end of the connection: the standard does not say which."""
    client = connect()
    client.send_raw(wire.subscribe(1, [(wrong, 1)], version=5))
    answer = client.recv()
    if isinstance(answer, Suback):
        assert answer.codes[0] in (0x80, 0x8F)
    else:
        assert isinstance(answer, Disconnect)
        assert answer.code in (0x81, 0x82, 0x8F)


@statement("5.0", "MQTT-3.8.4-3")
def test_mqtt_3_8_4_3_subscribing_again_replaces(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect()
    publisher.publish(topic, b"kept", 1, True)
    subscriber.subscribe(topic, 0)
    subscriber.expect(Publish, payload=b"kept", qos=0)
    subscriber.subscribe(topic, 1)
    subscriber.expect(Publish, payload=b"kept", qos=1)
    publisher.publish(topic, b"once", 1)
    subscriber.expect(Publish, payload=b"once", qos=1)
    subscriber.expect_nothing_from(publisher, 1)


@statement("5.0", "MQTT-3.8.4-4")
@pytest.mark.parametrize("handling", [0, 1, 2])
def test_mqtt_3_8_4_4_subscribing_again_in_the_middle_of_a_stream(
    connect: Connect, topic: str, placement: str, handling: int
) -> None:
    """No message of the stream is lost or comes twice, and retained ones come again if Retain Handling is 0, and only then."""
    rounds, batch = 20, 5
    subscriber, publisher = connect(), connect()
    publisher.publish(f"{topic}/kept", b"kept", 1, True)
    subscriber.subscribe(f"{topic}/+", 1)
    subscriber.expect(Publish, payload=b"kept", retain=True)
    for number in range(rounds * batch):
        if number % batch == batch // 2:
            subscriber.send_raw(wire.subscribe(subscriber.next_id(), [(f"{topic}/+", 1 | handling << 4)], version=5))
        publisher.publish(f"{topic}/stream", b"%d" % number, 1, wait=False)
    subscriber.ping()
    publisher.ping()
    got = [one for one in _packets(subscriber, publisher) if isinstance(one, Publish)]
    assert [one.payload for one in got if one.topic.endswith("/stream")] == [b"%d" % number for number in range(rounds * batch)]
    kept = [one for one in got if one.topic.endswith("/kept")]
    while not handling and len(kept) < rounds:         # a broker may send them behind what was published meanwhile
        kept.append(subscriber.expect(Publish, topic=f"{topic}/kept"))
    assert len(kept) == (0 if handling else rounds) and all(one.retain and one.payload == b"kept" for one in kept)
    subscriber.expect_nothing_from(publisher, 1)


def _packets(subscriber: Client, publisher: Client) -> list[object]:
    """All that came to the subscriber, once the publisher's earlier messages have arrived."""
    subscriber.fence(publisher, 1)
    packets: list[object] = []
    while (packet := subscriber.recv(0)) is not None:
        packets.append(packet)
    return packets


@statement("5.0", "MQTT-3.8.4-8")
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_mqtt_3_8_4_8_the_lower_qos(connect: Connect, topic: str, placement: str, published: int, granted: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, granted)
    publisher.publish(topic, b"x", published)
    subscriber.expect(Publish, qos=min(published, granted))


@statement("5.0", "MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-4", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2")
def test_mqtt_3_10_4_1_unsubscribe(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe([(f"{topic}/#", 1), (f"{topic}/b", 1)])
    assert subscriber.unsubscribe(f"{topic}/+").codes == (0x11,)
    publisher.publish(f"{topic}/a", b"still", 1)
    subscriber.expect(Publish, payload=b"still")
    assert subscriber.unsubscribe(f"{topic}/#", "unknown", f"{topic}/b").codes == (0, 0x11, 0)
    for leaf in "ab":
        publisher.publish(f"{topic}/{leaf}", b"gone", 1)
    subscriber.expect_nothing_from(publisher, 1)


@statement("5.0", "MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.2-1")
def test_mqtt_4_7_1_1_wildcards(connect: Connect, topic: str, placement: str) -> None:
    publisher = connect()
    cases = {
        f"{topic}/a/#": {"a", "a/b", "a/b/c"},
        f"+/{topic.split('/')[1]}/a": {"a"},
        f"{topic}/+/b": {"a/b"},
        f"{topic}/+/+/c": {"a/b/c"},
    }
    clients = {filter: connect() for filter in cases}
    for filter, client in clients.items():
        client.subscribe(filter, 1)
    everything = connect()
    everything.subscribe([("#", 0), (f"+/{topic}", 0)])
    publisher.publish(f"${topic}", b"dollar", 1)
    for leaf in ("a", "a/b", "a/b/c", "c"):
        publisher.publish(f"{topic}/{leaf}", leaf.encode(), 1)
    for filter, expected in cases.items():
        clients[filter].expect_messages(*(leaf.encode() for leaf in expected))
        clients[filter].expect_nothing_from(publisher, 1)
    assert everything.expect(Publish).payload != b"dollar"


@statement("5.0", "MQTT-4.3.3-9")
@pytest.mark.own_broker  # what is refused here is this broker's choice
def test_mqtt_4_3_3_9_after_a_failed_pubrec_the_id_is_new(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect(auto_ack=False)
    subscriber.subscribe(topic, 2)
    publisher.send_raw(wire.publish(f"$SYS/{topic}", b"bad", qos=2, packet_id=9, version=5))
    assert publisher.expect(Pubrec, packet_id=9).code == 0x87
    publisher.publish(topic, b"good", 2, packet_id=9)
    subscriber.expect(Publish, payload=b"good")
    subscriber.expect_nothing_from(publisher, 2)


@statement("3.1.1", "MQTT-3.3.5-2")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.own_broker  # what is refused here is this broker's choice
def test_mqtt_3_3_5_2_a_publish_without_permission(connect: Connect, topic: str, version: int) -> None:
    """The broker's own topics are closed to clients: acknowledged as the version allows, and delivered to nobody."""
    watcher, client = connect(5), connect(version)
    watcher.subscribe(f"$SYS/{topic}", 1)
    for qos in (1, 2):
        ack = client.publish(f"$SYS/{topic}", b"x", qos, wait=version == 4 or qos == 1)
        if version == 5:
            ack = ack or client.expect(Pubrec)
            assert ack.code == 0x87
    watcher.expect_nothing_from(connect(), 1)
