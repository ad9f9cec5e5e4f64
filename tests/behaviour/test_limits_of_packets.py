"""What the broker makes fits: into packets that the client takes, lengths of the protocol and limits of the configuration."""

import time
from collections.abc import Callable

import pytest

from shardbroker.config import load
from shardbroker.mqtt import packets as mqtt
from shardbroker.mqtt.spec import PropertyId
from shardbroker.worker.sansio import SansIoRouter
from tests.harness import Broker, Client, Closed, Connack, Disconnect, Publish, statement, until, wire
from tests.sim.simulator import MemoryRoutes

Connect = Callable[..., Client]
NewId = Callable[..., str]
MALFORMED, PROTOCOL_ERROR, PACKET_TOO_LARGE = 0x81, 0x82, 0x95
TOPIC_MAX = 65535
PACKET_MAX = 5 + 0xFFFFFFF
NOW_MS = 1_700_000_000_000


# --- Maximum Packet Size of the client ----------------------------------------------------------------------------------------


def test_a_client_that_takes_no_connack_is_refused_and_takes_nobody_over(connect: Connect, new_id: NewId) -> None:
    """[MQTT-3.1.2-24]"""
    name = new_id()
    first = connect(client_id=name)
    small = connect(client_id=name, connect=False, properties={"maximum_packet_size": 12})
    small.send_raw(small._connect_packet)
    answer = small.expect(Connack)
    assert answer.code == PACKET_TOO_LARGE and len(answer.raw) + 2 <= 12
    small.expect_close()
    tiny = connect(client_id=name, connect=False, properties={"maximum_packet_size": 4})
    tiny.send_raw(tiny._connect_packet)
    with pytest.raises(Closed):
        tiny.recv()
    first.ping()


@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_answers_with_codes_are_no_longer_than_the_client_takes(connect: Connect, new_id: NewId, topic: str, kind: str) -> None:
    """[MQTT-3.1.2-24]"""
    name, kept = new_id(), {"session_expiry_interval": 60}
    client = connect(client_id=name, clean=False, properties={"maximum_packet_size": 60, **kept})
    filters = [f"{topic}/{number}" for number in range(56)]
    fits, longer = filters[:55], filters
    if kind == "subscribe":
        assert len(client.subscribe([(one, 0) for one in fits]).codes) == 55
        client.send_raw(wire.subscribe(9, [(one, 0) for one in longer]))
    else:
        client.send_raw(wire.unsubscribe(8, fits))
        assert len(client.expect(wire.Unsuback).codes) == 55
        client.send_raw(wire.unsubscribe(9, longer))
    ended = client.expect_close()
    assert ended is not None and ended.code == PACKET_TOO_LARGE
    back = connect(client_id=name, clean=False, properties=kept)
    connect().publish(filters[-1], b"x", 1)
    back.expect_none(0.2)
    back.ping()


# --- MQTT 3.1 -----------------------------------------------------------------------------------------------------------------


def test_3_1_clients_may_set_dup_on_what_they_send_again(connect: Connect, topic: str) -> None:
    """MQTT 3.1 §2.1: PUBLISH, PUBREL, SUBSCRIBE and UNSUBSCRIBE have DUP, the other bits are unused."""
    client = connect(3, auto_ack=False)
    client.send_raw(wire.packet(wire.SUBSCRIBE, wire.subscribe(1, [(topic, 1)], version=3)[2:], flags=0xA))
    client.expect(wire.Suback, packet_id=1)
    client.send_raw(wire.packet(wire.SUBSCRIBE, b"\x00\x02" + wire.string(topic) + b"\xfd", flags=0xB))
    assert client.expect(wire.Suback, packet_id=2).codes == (1,)
    client.send_raw(wire.publish(topic, b"x", version=3, qos=2, packet_id=3))
    while not isinstance(client.recv(), wire.Pubrec):
        pass
    client.send_raw(wire.packet(wire.PUBREL, b"\x00\x03", flags=0xA))
    while not isinstance(client.recv(), wire.Pubcomp):
        pass
    client.send_raw(wire.packet(wire.UNSUBSCRIBE, wire.unsubscribe(4, [topic], version=3)[2:], flags=0xA))
    client.expect(wire.Unsuback, packet_id=4)
    client.send_raw(wire.packet(wire.PINGREQ, flags=8))
    client.expect(wire.Pingresp)


def test_3_1_clients_may_use_the_unused_bits_of_connect(connect: Connect) -> None:
    client = connect(3, connect=False)
    data = bytearray(client._connect_packet)
    data[0] |= 0x0F
    data[2 + 2 + 6 + 1] |= 1
    client.send_raw(bytes(data))
    assert client.expect(Connack).code == 0
    client.ping()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("place", [0, 2 + 2 + 4 + 1])
def test_later_clients_may_not(connect: Connect, version: int, place: int) -> None:
    client = connect(version, connect=False)
    data = bytearray(client._connect_packet)
    data[place] |= 8 if place == 0 else 1
    client.send_raw(bytes(data))
    if version == 5 and place:
        assert client.expect(Connack).code == MALFORMED
    client.expect_close()
    connect().ping()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("flags", [0x0, 0x8, 0xA, 0x3])
def test_flags_of_a_subscribe(connect: Connect, topic: str, version: int, flags: int) -> None:
    client = connect(version)
    client.send_raw(wire.packet(wire.SUBSCRIBE, wire.subscribe(1, [(topic, 1)], version=version)[2:], flags=flags))
    if version == 3 and flags & 6 == 2:
        client.expect(wire.Suback)
    else:
        client.expect_close()
    connect().ping()


# --- acknowledgements of the wrong type ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(("qos", "answer"), [(1, wire.PUBREC), (1, wire.PUBCOMP), (2, wire.PUBACK), (2, wire.PUBCOMP)])
def test_an_acknowledgement_of_the_wrong_type_ends_the_connection(
    connect: Connect, new_id: NewId, topic: str, version: int, qos: int, answer: int
) -> None:
    """Its message would stay in flight for ever; it is sent again when the client is back [MQTT-4.4.0-1]."""
    options = {"client_id": new_id(), "clean": False, "auto_ack": False}
    kept = {"properties": {"session_expiry_interval": 60}} if version == 5 else {}
    client = connect(version, **options, **kept)
    client.subscribe(topic, qos)
    connect().publish(topic, b"x", qos)
    message = client.expect(Publish)
    client.send_raw(wire.ack(answer, message.packet_id))
    ended = client.expect_close()
    if version == 5:
        assert isinstance(ended, Disconnect) and ended.code == PROTOCOL_ERROR
    again = connect(version, **options, **kept).expect(Publish)
    assert (again.packet_id, again.payload, again.dup) == (message.packet_id, b"x", True)


# --- Session Expiry Interval --------------------------------------------------------------------------------------------------


@statement("5.0", "MQTT-3.1.2-23")
@pytest.mark.parametrize("seconds", [60, 0xFFFFFFFF])
def test_disconnect_grants_no_longer_session_than_connect(
    broker_with: Callable[..., Broker], connect: Connect, new_id: NewId, seconds: int
) -> None:
    limited, name = broker_with(mqtt__max_session_expiry_interval="1s"), new_id()
    client = connect(on=limited, client_id=name, clean=False, properties={"session_expiry_interval": 1})
    client.disconnect(properties={"session_expiry_interval": seconds})
    time.sleep(1.3)
    back = connect(on=limited, client_id=name, clean=False)
    assert back.connack is not None and not back.connack.session_present


# --- topics of the broker's own making ----------------------------------------------------------------------------------------


def test_no_topic_is_longer_than_its_length_can_say(broker_with: Callable[..., Broker], connect: Connect) -> None:
    """Event topics with the client id in them, and rewritten topics: what does not fit is not published; the stream stays whole."""
    rules = '[{action="publish", source_topic="short/#", re="^short/(.+)$", dest_topic="$1/$1"}]'
    events = {"sys__event_messages__client_subscribed": "true", "rewrite__rules": rules}
    own = broker_with(mqtt__max_clientid_len=TOPIC_MAX, **events)
    watcher = connect(on=own)
    watcher.subscribe([("$SYS/brokers/+/clients/#", 0), ("#", 1)])
    for size in (TOPIC_MAX, TOPIC_MAX - 20, 1000):
        connect(on=own, client_id="x" * size).subscribe("t", 0)
    long = "y" * 40_000
    watcher.publish(f"short/{long}", b"whole", 1)
    seen = []
    while "end" not in seen:
        if len(seen) and seen[-1].startswith("short/"):
            watcher.publish("end", b"", 1, wait=False)
        packet = watcher.expect(Publish) if seen else until(lambda: watcher.recv())
        if isinstance(packet, Publish):
            seen.append(packet.topic)
            assert packet.topic.startswith(("$SYS/brokers/", "short/", "end")), packet.topic[:100]
    assert f"short/{long}" in seen
    assert any("x" * 1000 + "/subscribed" in topic for topic in seen)


# --- the longest packet -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_a_topic_from_an_alias_makes_no_packet_longer_than_there_is(version: int) -> None:
    """Five bytes of length stood in four that were reserved, and the byte behind the buffer was overwritten."""
    routes, settings = MemoryRoutes(), load(None, {}, ["mqtt.max_packet_size=256MB"]).settings
    router = SansIoRouter(settings, routes, 0, NOW_MS, seed=1)
    routes.shards = [router]
    subscriber, publisher = router.connect("subscriber"), router.connect("publisher")
    publisher.receive(mqtt.Connect(5, b"publisher").encode(5))
    subscriber.receive(mqtt.Connect(version, b"subscriber").encode(version))
    subscriber.receive(mqtt.Subscribe(1, [(b"t/" * 50, 0)]).encode(version))
    router.advance(NOW_MS)
    subscriber.take_output()
    publisher.receive(mqtt.Publish(b"t/" * 50, b"", properties={PropertyId.TOPIC_ALIAS: 1}).encode(5))
    subscriber.take_output()
    head = b"\x00\x00\x03\x23\x00\x01"  # no topic, the alias
    remaining = settings.mqtt.max_packet_size - 5
    publisher.receive(b"\x30" + wire.varint(remaining) + head + bytes(remaining - len(head)))
    router.advance(NOW_MS)
    assert len(publisher.take_output()) < 200 and not publisher.is_closing
    output = subscriber.take_output()
    assert len(output) <= PACKET_MAX, len(output)
    assert output == b""


@pytest.mark.parametrize("announced", [300_000, 600_000], ids=["mqtt.max_packet_size", "before CONNACK"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_connect_that_is_too_long_has_the_same_answer_however_it_is_cut(version: int, announced: int) -> None:
    """What 5.0 answers and 3.x does not is known with the level, which may arrive after the length."""
    settings = load(None, {}, ["mqtt.max_packet_size=64KB"]).settings
    name = b"\x00\x06MQIsdp" if version == 3 else b"\x00\x04MQTT"
    length = bytes([announced & 0x7F | 0x80, announced >> 7 & 0x7F | 0x80, announced >> 14])
    start = b"\x10" + length + name + bytes([version, 2, 0, 60])
    answers = []
    for cut in range(1, len(start)):
        routes = MemoryRoutes()
        router = SansIoRouter(settings, routes, 0, NOW_MS, seed=1)
        routes.shards = [router]
        channel = router.connect("cut", b"cut")
        channel.receive(start[:cut])
        channel.receive(start[cut:])
        assert channel.is_closing
        answers.append(channel.take_output())
    assert len(set(answers)) == 1
    assert (answers[0][0] == 0x20 and answers[0][3] == PACKET_TOO_LARGE) if version == 5 else not answers[0]
