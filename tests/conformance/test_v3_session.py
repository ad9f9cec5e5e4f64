"""Sessions of MQTT 3.1.1: CleanSession, Session Present, stored messages, repeats (§3.1.2.4, §4.1, §4.4)."""

from collections.abc import Callable

from tests.conformance import V3
from tests.harness import Client, Publish, Pubrel, statement, wire

Connect = Callable[..., Client]
NewId = Callable[..., str]


def present(client: Client) -> bool:
    assert client.connack is not None
    return client.connack.session_present


@V3
@statement("3.1.1", "MQTT-3.1.2-4", "MQTT-3.2.2-2", "MQTT-3.2.2-3")
def test_mqtt_3_1_2_4_session_is_resumed(connect: Connect, new_id: NewId, topic: str, placement: str, version: int) -> None:
    name = new_id()
    first = connect(client_id=name, clean=False)
    assert not present(first)
    first.subscribe(topic, 1)
    first.disconnect()
    second = connect(client_id=name, clean=False)
    assert present(second) is (version == 4)  # MQTT 3.1 has no such flag
    publisher = connect()
    publisher.publish(topic, b"resumed", 1)
    second.expect(Publish, payload=b"resumed")


@V3
@statement("3.1.1", "MQTT-3.1.2-5")
def test_mqtt_3_1_2_5_messages_are_stored_while_away(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    away = connect(client_id=name, clean=False)
    away.subscribe(topic, 2)
    away.disconnect()
    publisher = connect()
    publisher.publish(topic, b"one", 1)
    publisher.publish(topic, b"two", 2)
    back = connect(client_id=name, clean=False)
    back.expect(Publish, payload=b"one", qos=1, dup=False)
    back.expect(Publish, payload=b"two", qos=2, dup=False)
    back.expect_nothing_from(publisher, 2)


@V3
@statement("3.1.1", "MQTT-3.1.2-5")
def test_mqtt_3_1_2_5_stored_after_a_cut_connection(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    away = connect(client_id=name, clean=False)
    away.subscribe(topic, 1)
    away.cut()
    publisher = connect()
    publisher.publish(topic, b"one", 1)
    connect(client_id=name, clean=False).expect(Publish, payload=b"one", qos=1)


@V3
@statement("3.1.1", "MQTT-3.1.2-6", "MQTT-3.2.2-1", "MQTT-3.1.4-3")
def test_mqtt_3_1_2_6_clean_session_wipes_the_old_one(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    old = connect(client_id=name, clean=False)
    old.subscribe(f"{topic}/old", 1)
    old.disconnect()
    clean = connect(client_id=name, clean=True)
    assert not present(clean)
    clean.subscribe(f"{topic}/clean", 1)
    clean.drop()
    new = connect(client_id=name, clean=False)
    assert not present(new)
    publisher = connect()
    for leaf in ("old", "clean"):
        publisher.publish(f"{topic}/{leaf}", b"nobody", 1)
    new.expect_nothing_from(publisher, 1)


@V3
@statement("3.1.1", "MQTT-3.1.4-3", "MQTT-3.2.2-2")
def test_mqtt_3_1_4_3_takeover_keeps_or_wipes_by_clean_session(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    first = connect(client_id=name, clean=False)
    first.subscribe(topic, 1)
    second = connect(client_id=name, clean=False)
    assert present(second) is (version == 4)
    publisher = connect()
    publisher.publish(topic, b"kept", 1)
    second.expect(Publish, payload=b"kept")
    third = connect(client_id=name, clean=True)
    assert not present(third)
    publisher.publish(topic, b"wiped", 1)
    third.expect_nothing_from(publisher, 1)


@V3
@statement("3.1.1", "MQTT-2.3.1-4", "MQTT-3.3.1-1", "MQTT-4.3.2-1", "MQTT-4.4.0-1", "MQTT-2.3.1-1")
def test_mqtt_2_3_1_4_unacknowledged_messages_come_again_with_their_ids(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    first = connect(client_id=name, clean=False, auto_ack=False)
    first.subscribe(topic, 1)
    publisher = connect()
    for number in range(5):
        publisher.publish(topic, str(number), 1)
    got = [first.expect(Publish, dup=False, qos=1) for _ in range(5)]
    ids = [one.packet_id for one in got]
    assert len(set(ids)) == 5 and 0 not in ids
    first.ack(got[0])
    first.fence()
    first.cut()
    again = connect(client_id=name, clean=False, auto_ack=False)
    repeated = [again.expect(Publish, dup=True, qos=1) for _ in range(4)]
    assert [(one.packet_id, one.payload) for one in repeated] == [(m.packet_id, m.payload) for m in got[1:]]
    for one in repeated:
        again.ack(one)
    again.fence()
    again.cut()
    connect(client_id=name, clean=False).expect_nothing_from(publisher, 1)


@V3
@statement("3.1.1", "MQTT-4.3.3-1", "MQTT-4.4.0-1", "MQTT-4.1.0-1")
def test_mqtt_4_3_3_1_pubrel_comes_again_and_not_publish(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    client = connect(client_id=name, clean=False, auto_ack=False)
    client.subscribe(topic, 2)
    publisher = connect()
    publisher.publish(topic, b"twice safe", 2)
    message = client.expect(Publish, qos=2, dup=False, payload=b"twice safe")
    client.cut()

    client = connect(client_id=name, clean=False, auto_ack=False)
    client.expect(Publish, qos=2, dup=True, packet_id=message.packet_id, payload=b"twice safe")
    client.ack(message)
    client.expect(Pubrel, packet_id=message.packet_id)
    client.cut()

    client = connect(client_id=name, clean=False, auto_ack=False)
    client.expect(Pubrel, packet_id=message.packet_id)
    assert message.packet_id is not None
    client.send_raw(wire.pubcomp(message.packet_id))
    client.fence()
    client.cut()

    client = connect(client_id=name, clean=False)
    client.expect_nothing_from(publisher, 2)


@V3
@statement("3.1.1", "MQTT-4.1.0-1", "MQTT-4.3.3-2")
def test_mqtt_4_1_0_1_half_done_publish_survives_a_reconnect(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    """The receiver's half of QoS 2 is session state: the repeated PUBLISH is not delivered twice."""
    name = new_id()
    watcher = connect()
    watcher.subscribe(topic, 2)
    publisher = connect(client_id=name, clean=False)
    publisher.publish(topic, b"once", 2, packet_id=77, wait=False)
    publisher.expect(wire.Pubrec, packet_id=77)
    publisher.cut()
    publisher = connect(client_id=name, clean=False)
    publisher.publish(topic, b"once", 2, packet_id=77, dup=True)
    assert [m.payload for m in watcher.messages_from(publisher, 2)] == [b"once"]


@V3
@statement("3.1.1", "MQTT-4.5.0-1")
def test_mqtt_4_5_0_1_every_matching_session_gets_the_message(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    name = new_id()
    offline = connect(client_id=name, clean=False)
    offline.subscribe(f"{topic}/+", 1)
    offline.disconnect()
    online = [connect(), connect()]
    online[0].subscribe(f"{topic}/a", 1)
    online[1].subscribe(f"{topic}/#", 1)
    connect().publish(f"{topic}/a", b"all", 1)
    for one in [*online, connect(client_id=name, clean=False)]:
        one.expect(Publish, payload=b"all", qos=1)
