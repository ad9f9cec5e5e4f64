"""CONNECT, CONNACK, DISCONNECT and Keep Alive of MQTT 3.1.1 (§3.1, §3.2, §3.14) across connections."""

import time
from collections.abc import Callable

from tests.conformance import V3, V311
from tests.harness import AnyBroker, Client, Connack, Publish, Will, statement, wire

Connect = Callable[..., Client]
NewId = Callable[..., str]


@V3
@statement("3.1.1", "MQTT-3.1.3-1")
def test_mqtt_3_1_3_1_all_payload_fields_in_order(connect: Connect, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(f"{topic}/#", 1)
    will = Will(f"{topic}/will", b"gone", qos=1)
    full = connect(will=will, username="user", password="secret")
    full.cut()
    watcher.expect(Publish, topic=f"{topic}/will", payload=b"gone", qos=1)


@V3
@statement("3.1.1", "MQTT-3.1.3-2")
def test_mqtt_3_1_3_2_state_is_keyed_by_client_id(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    ids = [new_id(), new_id()]
    for name in ids:
        one = connect(client_id=name, clean=False)
        one.subscribe(f"{topic}/{name}", 1)
        one.disconnect()
    publisher = connect()
    for name in ids:
        publisher.publish(f"{topic}/{name}", f"for {name}", 1)
    for name in ids:
        back = connect(client_id=name, clean=False)
        back.expect(Publish, topic=f"{topic}/{name}", payload=f"for {name}".encode())
        back.expect_nothing_from(publisher, 1)


@V311
@statement("3.1.1", "MQTT-3.1.3-6")
def test_mqtt_3_1_3_6_empty_ids_are_unique(connect: Connect, topic: str, version: int) -> None:
    first, second = connect(client_id=""), connect(client_id="")
    for one in (first, second):
        one.subscribe(topic)
    first.publish(topic, b"both")
    first.expect(Publish, payload=b"both")
    second.expect(Publish, payload=b"both")


@V3
@statement("3.1.1", "MQTT-3.1.3-9", "MQTT-3.2.2-5")
def test_mqtt_3_1_3_9_unusual_ids_are_served_or_refused(broker: AnyBroker, version: int) -> None:
    for name in ("a b/c+#$\u00e9", "x" * 600, "y" * 65535):
        with Client(broker.address, version, name, connect=False) as client:
            if client.connect(expect_code=None).code == 0:
                client.ping()
            else:
                assert client.connack == Connack(False, 2)
                client.expect_close()


@V3
@statement("3.1.1", "MQTT-3.1.4-2")
def test_mqtt_3_1_4_2_second_connection_takes_over(connect: Connect, new_id: NewId, topic: str, version: int) -> None:
    name = new_id()
    for clean in (True, False):
        first = connect(client_id=name, clean=clean)
        first.subscribe(f"{topic}/{clean}", 1)
        second = connect(client_id=name, clean=clean)
        first.expect_close()
        second.subscribe(topic, 1)
        second.publish(topic, b"alive", 1)
        second.expect(Publish, payload=b"alive")
        second.disconnect()


@V3
@statement("3.1.1", "MQTT-3.1.4-2")
def test_mqtt_3_1_4_2_takeover_between_versions(connect: Connect, new_id: NewId, version: int) -> None:
    name = new_id()
    other = connect(version=7 - version, client_id=name)
    connect(client_id=name).ping()
    other.expect_close()


@V3
@statement("3.1.1", "MQTT-3.1.4-5")
def test_mqtt_3_1_4_5_data_behind_a_refusal_is_ignored(broker: AnyBroker, connect: Connect, topic: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    with Client(broker.address, version, connect=False) as refused:
        connect_packet = wire.connect("", version, clean=False)
        refused.send_raw(connect_packet + wire.publish(topic, b"never", version=version))
        refused.expect(Connack, code=2, session_present=False)
        refused.expect_close()
    watcher.expect_nothing_from(watcher)
    watcher.expect_none()


@V3
@statement("3.1.1", "MQTT-3.1.4-4")
def test_packets_behind_connect_in_one_segment_are_served(broker: AnyBroker, new_id: NewId, topic: str, version: int) -> None:
    with Client(broker.address, version, connect=False) as client:
        client.send_raw(
            wire.connect(new_id(), version)
            + wire.subscribe(1, [(topic, 0)], version=version)
            + wire.publish(topic, b"at once", version=version)
            + wire.pingreq()
        )
        client.expect(Connack, code=0)
        client.expect(wire.Suback, packet_id=1, codes=(0,))
        client.fence()
        client.expect(Publish, payload=b"at once")


@V3
@statement("3.1.1", "MQTT-3.2.2-4")
def test_mqtt_3_2_2_4_no_session_present_in_a_refusal(broker: AnyBroker, connect: Connect, new_id: NewId, version: int) -> None:
    name = new_id()
    connect(client_id=name, clean=False).disconnect()
    with Client(broker.address, version, connect=False) as refused:
        refused.send_raw(wire.connect(name, version, clean=False, protocol_name="MQTT", level=6))
        refused.expect(Connack, code=1, session_present=False)
        refused.expect_close()
    back = connect(client_id=name, clean=False)
    assert back.connack is not None and back.connack.session_present is (version == 4)


@V3
@statement("3.1.1", "MQTT-3.2.2-6")
def test_mqtt_3_2_2_6_only_defined_return_codes(broker: AnyBroker, version: int) -> None:
    """Refusals of every kind that can be had: a code from 1 to 5, or a close without one."""
    attempts = [
        wire.connect("w", version, level=0),
        wire.connect("w", version, level=255),
        wire.connect("w", version, protocol_name="MQTTX"),
        wire.connect("", version, clean=False),
        wire.connect("w\0", version),
        wire.connect("w", version, will=Will("a/+", b"")),
        wire.connect("w", version, will=Will("", b"")),
    ]
    for attempt in attempts:
        with Client(broker.address, version, connect=False) as client:
            client.send_raw(attempt)
            client.expect_close(ignore=(Connack,))


@V3
@statement("3.1.1", "MQTT-3.2.0-1")
def test_mqtt_3_2_0_1_connack_comes_first(connect: Connect, new_id: NewId, topic: str, placement: str, version: int) -> None:
    name = new_id()
    away = connect(client_id=name, clean=False)
    away.subscribe(topic, 1)
    away.disconnect()
    publisher = connect()
    for number in range(20):
        publisher.publish(topic, str(number), 1)
    back = connect(client_id=name, clean=False)  # Client.connect fails unless CONNACK is the first packet
    assert [back.expect(Publish).payload for _ in range(20)] == [b"%d" % n for n in range(20)]


@V311
@statement("3.1.1", "MQTT-3.14.1-1")
def test_mqtt_3_14_1_1_flagged_disconnect_is_no_clean_end(connect: Connect, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    client = connect(will=Will(topic, b"unclean"))
    client.send_raw(b"\xe1\x00")
    client.expect_close()
    watcher.expect(Publish, payload=b"unclean")


@statement("3.1.1", "MQTT-3.1.2-24")
def test_mqtt_3_1_2_24_silent_clients_are_cut_off(broker: AnyBroker, connect: Connect, topic: str) -> None:
    """All versions at once, since the wait is the cost: Keep Alive 2 ends after 3 s, 0 and pings do not."""
    watcher = connect(4)
    watcher.subscribe(f"{topic}/+")
    begin = time.monotonic()
    silent = {v: connect(v, keepalive=2, will=Will(f"{topic}/{v}", b"silent")) for v in (3, 4)}
    unlimited = connect(4, keepalive=0)
    pinging = connect(4, keepalive=1)
    pinging.subscribe(f"{topic}/own/x")
    while time.monotonic() < begin + 2.4:
        time.sleep(0.4)
        pinging.ping()
    pinging.publish(f"{topic}/own/x", b"still")
    pinging.expect(Publish, payload=b"still")
    latest_s = 9 if broker.external else 4.5  # mosquitto looks only every 5 s
    for client in silent.values():
        client.expect_close(timeout=latest_s)
        assert 2.5 < time.monotonic() - begin < latest_s
    assert {watcher.expect(Publish, payload=b"silent").topic for _ in silent} == {f"{topic}/{v}" for v in silent}
    unlimited.ping()


@statement("3.1.1", "MQTT-4.1.0-2")
def test_mqtt_4_1_0_2_session_lives_as_long_as_its_connection(connect: Connect, topic: str) -> None:
    client = connect(4, keepalive=1)
    client.subscribe(topic, 1)
    for _ in range(5):
        time.sleep(0.5)
        client.ping()
    client.publish(topic, b"still there", 1)
    client.expect(Publish, payload=b"still there")


@V3
@statement("3.1.1", "MQTT-7.0.0-2", "MQTT-7.1.1-1")
def test_mqtt_7_0_0_2_a_plain_client_can_do_everything(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 2)
    for qos in (0, 1, 2):
        publisher.publish(topic, str(qos), qos)
    got = subscriber.messages_from(publisher, 2)
    assert [(m.payload, m.qos) for m in got] == [(b"0", 0), (b"1", 1), (b"2", 2)]


@V3
@statement("3.1.1", "MQTT-7.1.1-1")
def test_mqtt_7_1_1_1_packets_split_anywhere(broker: AnyBroker, new_id: NewId, topic: str, version: int) -> None:
    with Client(broker.address, version, connect=False) as client:
        stream = (
            wire.connect(new_id(), version, will=Will(f"{topic}/will", b"w"))
            + wire.subscribe(1, [(topic, 1)], version=version)
            + wire.publish(topic, b"p" * 200, version=version, qos=1, packet_id=9)
            + wire.pingreq()
        )
        for at in range(len(stream)):
            client.send_raw(stream[at : at + 1])
            if at % 40 == 0:
                time.sleep(0.001)  # lets a part arrive by itself
        client.expect(Connack, code=0)
        client.expect(wire.Suback, codes=(1,))
        client.fence()
        got = {type(client.recv()), type(client.recv())}
        assert got == {Publish, wire.Puback}
