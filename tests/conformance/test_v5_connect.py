"""CONNECT, CONNACK, wills, sessions and DISCONNECT of MQTT 5.0 (§3.1, §3.2, §3.14, §4.1)."""

import time
from collections.abc import Callable

import pytest

from tests.harness import AnyBroker, Broker, Client, Closed, Connack, Disconnect, Publish, Will, statement

Connect = Callable[..., Client]
KEPT = {"session_expiry_interval": 60}
CONNACK_CODES = {0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}


@statement("5.0", "MQTT-3.1.4-5", "MQTT-3.2.0-1", "MQTT-3.2.2-1", "MQTT-3.2.2-8", "MQTT-4.2.0-1", "MQTT-3.12.4-1")
def test_mqtt_3_1_4_5_a_valid_connect_is_accepted(connect: Connect) -> None:
    client = connect()
    assert client.connack.code == 0
    assert client.connack.raw[2] & 0xFE == 0
    client.ping()


@statement("5.0", "MQTT-3.1.2-4", "MQTT-3.2.2-2", "MQTT-3.1.4-4", "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.2.2-3", "MQTT-3.1.2-23")
def test_mqtt_3_1_2_4_clean_start_and_session_present(connect: Connect, topic: str, new_id: Callable[..., str]) -> None:
    name = new_id()
    first = connect(client_id=name, clean=False, properties=KEPT)
    assert not first.connack.session_present
    first.subscribe(topic, 1)
    first.drop()
    second = connect(client_id=name, clean=False, properties=KEPT)
    assert second.connack.session_present
    publisher = connect()
    publisher.publish(topic, b"resumed", 1)
    second.expect(Publish, payload=b"resumed")
    second.drop()
    third = connect(client_id=name, clean=True, properties=KEPT)
    assert not third.connack.session_present
    publisher.publish(topic, b"gone", 1)
    third.expect_none()


@statement("5.0", "MQTT-3.1.3-2", "MQTT-3.1.3-1", "MQTT-3.1.3-5")
def test_mqtt_3_1_3_2_sessions_are_keyed_by_client_id(
    connect: Connect, topic: str, placement: str, new_id: Callable[..., str]
) -> None:
    names = new_id(), new_id()
    for i, name in enumerate(names):
        client = connect(client_id=name, clean=False, properties=KEPT)
        client.subscribe(f"{topic}/{i}", 1)
        client.drop()
    publisher = connect()
    for i in range(2):
        publisher.publish(f"{topic}/{i}", b"%d" % i, 1)
    for i, name in enumerate(names):
        client = connect(client_id=name, clean=False, properties=KEPT)
        client.expect(Publish, payload=b"%d" % i)
        client.expect_none(0.2)
    for name in ("q", "abcdefghijKLMNOPQRS0123"):
        assert connect(client_id=name).connack.code == 0


@statement("5.0", "MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
def test_mqtt_3_1_3_7_an_empty_client_id_is_assigned_one(connect: Connect) -> None:
    clients = [connect(client_id="", properties=KEPT) for _ in range(3)]
    names = [client.connack.properties["assigned_client_identifier"] for client in clients]
    assert len(set(names)) == 3
    clients[0].drop()
    assert connect(client_id=names[0], clean=False, properties=KEPT).connack.session_present


@statement("5.0", "MQTT-3.1.3-8")
def test_mqtt_3_1_3_8_a_client_id_may_be_refused(broker_with: Callable[..., Broker], connect: Connect) -> None:
    small = broker_with(mqtt__max_clientid_len=23, mqtt__max_topic_alias=2, mqtt__max_packet_size=2048)
    client = connect(client_id="x" * 24, on=small, connect=False)
    assert client.connect(expect_code=None).code == 0x85
    client.expect_close()


@statement("5.0", "MQTT-3.2.2-15", "MQTT-3.2.2-17", "MQTT-3.3.2-9", "MQTT-3.3.2-12")
def test_mqtt_3_2_2_15_limits_of_the_server(broker_with: Callable[..., Broker], connect: Connect, topic: str) -> None:
    small = broker_with(mqtt__max_clientid_len=23, mqtt__max_topic_alias=2, mqtt__max_packet_size=2048)
    client = connect(on=small)
    assert client.connack.properties["maximum_packet_size"] == 2048
    assert client.connack.properties["topic_alias_maximum"] == 2
    client.subscribe(topic)
    for alias in (1, 2):
        client.publish(topic, b"set", properties={"topic_alias": alias})
        client.publish("", b"used", properties={"topic_alias": alias})
        client.expect_messages(b"set", b"used")
    client.publish(topic, b"x", properties={"topic_alias": 3}, wait=False)
    assert client.expect_close().code == 0x94
    client = connect(on=small)
    client.publish(topic, b"x" * 3000, wait=False)
    assert client.expect_close().code == 0x95


@statement("5.0", "MQTT-3.2.2-18")
def test_mqtt_3_2_2_18_no_alias_maximum_no_alias(broker_with: Callable[..., Broker], connect: Connect, topic: str) -> None:
    limited = broker_with(mqtt__max_topic_alias=0, mqtt__max_qos_allowed=1, mqtt__retain_available="false")
    client = connect(on=limited)
    assert "topic_alias_maximum" not in client.connack.properties
    client.publish(topic, b"x", properties={"topic_alias": 1}, wait=False)
    assert client.expect_close().code in (0x94, 0x82)


@statement("5.0", "MQTT-3.2.2-9", "MQTT-3.2.2-10", "MQTT-3.2.2-11", "MQTT-3.2.2-12")
def test_mqtt_3_2_2_9_limited_qos(broker_with: Callable[..., Broker], connect: Connect, topic: str) -> None:
    limited = broker_with(mqtt__max_topic_alias=0, mqtt__max_qos_allowed=1, mqtt__retain_available="false")
    client = connect(on=limited)
    assert client.connack.properties["maximum_qos"] == 1
    assert client.subscribe(topic, 2).codes[0] <= 2
    client.publish(topic, b"x", 2, wait=False)
    assert client.expect_close().code == 0x9B
    refused = connect(on=limited, connect=False, will=Will(topic, b"w", 2))
    assert refused.connect(expect_code=None).code == 0x9B
    refused.expect_close()


@statement("5.0", "MQTT-3.2.2-13", "MQTT-3.2.2-14")
def test_mqtt_3_2_2_13_no_retain(broker_with: Callable[..., Broker], connect: Connect, topic: str) -> None:
    limited = broker_with(mqtt__max_topic_alias=0, mqtt__max_qos_allowed=1, mqtt__retain_available="false")
    client = connect(on=limited)
    assert client.connack.properties["retain_available"] == 0
    client.publish(topic, b"x", retain=True, wait=False)
    assert client.expect_close().code == 0x9A
    refused = connect(on=limited, connect=False, will=Will(topic, b"w", retain=True))
    assert refused.connect(expect_code=None).code == 0x9A
    refused.expect_close()


@statement("5.0", "MQTT-3.1.4-3", "MQTT-3.14.2-1", "MQTT-3.14.2-2", "MQTT-3.14.4-1", "MQTT-3.14.4-2")
def test_mqtt_3_1_4_3_takeover(connect: Connect, new_id: Callable[..., str]) -> None:
    name = new_id()
    first = connect(client_id=name)
    second = connect(client_id=name)
    ended = first.expect_close()
    assert isinstance(ended, Disconnect)
    assert ended.code == 0x8E
    assert "session_expiry_interval" not in ended.properties
    second.ping()


@statement("5.0", "MQTT-3.1.4-2", "MQTT-3.1.4-6", "MQTT-3.2.2-6")
def test_mqtt_3_1_4_6_data_behind_a_refused_connect_is_ignored(connect: Connect, topic: str, new_id: Callable[..., str]) -> None:
    from tests.harness import wire

    name = new_id()
    kept = connect(client_id=name, clean=False, properties=KEPT)
    kept.drop()
    subscriber = connect()
    subscriber.subscribe(topic)
    client = connect(connect=False)
    refused = wire.connect(name, version=5, clean=False, properties={"authentication_method": "none such"})
    client.send_raw(refused + wire.publish(topic, b"x", version=5))
    answer = client.expect(Connack)
    assert answer.code == 0x8C
    assert not answer.session_present
    client.expect_close()
    subscriber.expect_none(0.3)


@statement("5.0", "MQTT-3.1.2-7", "MQTT-3.1.2-10", "MQTT-3.1.2-14", "MQTT-3.1.3-10")
def test_mqtt_3_1_2_7_will(connect: Connect, topic: str, placement: str) -> None:
    watcher = connect()
    watcher.subscribe(topic, 2)
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    doomed = connect(will=Will(topic, b"gone", 1, properties={"user_property": pairs, "content_type": "text/plain"}))
    doomed.cut()
    message = watcher.expect(Publish, payload=b"gone", qos=1, retain=False)
    assert message.properties["user_property"] == pairs
    assert message.properties["content_type"] == "text/plain"
    watcher.expect_none(0.3)
    late = connect()
    late.subscribe(topic)
    late.expect_none(0.3)


@statement("5.0", "MQTT-3.1.2-15")
def test_mqtt_3_1_2_15_retained_will(connect: Connect, topic: str, placement: str) -> None:
    watcher = connect()
    watcher.subscribe(topic, 1)
    connect(will=Will(topic, b"kept", 1, retain=True)).cut()
    watcher.expect(Publish, payload=b"kept", retain=False)
    late = connect()
    late.subscribe(topic, 1)
    late.expect(Publish, payload=b"kept", retain=True)


@statement("5.0", "MQTT-3.14.4-3", "MQTT-3.1.2-10")
@pytest.mark.parametrize(("code", "comes"), [(0, False), (4, True)])
def test_mqtt_3_14_4_3_disconnect_and_the_will(connect: Connect, topic: str, placement: str, code: int, comes: bool) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    connect(will=Will(topic, b"gone")).disconnect(code)
    if comes:
        watcher.expect(Publish, payload=b"gone")
    else:
        watcher.expect_none(0.4)


@statement("5.0", "MQTT-3.1.2-8", "MQTT-3.1.3-9")
def test_mqtt_3_1_2_8_will_delay(connect: Connect, topic: str, placement: str, new_id: Callable[..., str]) -> None:
    watcher = connect()
    watcher.subscribe(f"{topic}/+")

    def doomed(leaf: str, expiry: int, delay: int, name: str) -> Client:
        will = Will(f"{topic}/{leaf}", leaf.encode(), properties={"will_delay_interval": delay})
        return connect(client_id=name, clean=False, will=will, properties={"session_expiry_interval": expiry})

    back = new_id()
    for leaf, expiry, delay, name in (("delay", 60, 1, new_id()), ("expiry", 1, 60, new_id()), ("back", 60, 1, back)):
        doomed(leaf, expiry, delay, name).cut()
    connect(client_id=back, clean=False, properties=KEPT)
    watcher.expect_none(0.6)
    watcher.expect_messages(b"delay", b"expiry")
    watcher.expect_none(0.7)


@statement("5.0", "MQTT-3.1.2-22", "MQTT-3.2.2-22")
def test_mqtt_3_1_2_22_keepalive(broker: AnyBroker, connect: Connect, topic: str) -> None:
    watcher, started = connect(), time.monotonic()
    watcher.subscribe(topic)
    silent, alive = connect(keepalive=1, will=Will(topic, b"silent")), connect(keepalive=1)
    message = None
    while message is None:
        alive.ping()
        message = watcher.recv(0.2)
    latest_s = 9 if broker.external else 3  # mosquitto looks only every 5 s
    assert 1.3 < time.monotonic() - started < latest_s
    assert isinstance(message, Publish)
    assert message.payload == b"silent"
    ended = silent.expect_close()
    assert ended is None or ended.code == 0x8D


@statement("5.0", "MQTT-4.1.0-1", "MQTT-4.1.0-2")
def test_mqtt_4_1_0_2_session_expiry(connect: Connect, topic: str, new_id: Callable[..., str]) -> None:
    gone, stays = new_id(), connect(properties={"session_expiry_interval": 1})
    stays.subscribe(topic, 1)
    connect(client_id=gone, clean=False, properties={"session_expiry_interval": 1}).drop()
    time.sleep(2)
    assert not connect(client_id=gone, clean=False, properties=KEPT).connack.session_present
    connect().publish(topic, b"still", 1)
    stays.expect(Publish, payload=b"still")


@statement("5.0", "MQTT-3.1.2-28")
def test_mqtt_3_1_2_28_response_information(broker_with: Callable[..., Broker], connect: Connect) -> None:
    own = broker_with(mqtt__response_information="answers/")
    asked = connect(on=own, properties={"request_response_information": 1})
    assert asked.connack.properties["response_information"] == "answers/"
    for properties in ({}, {"request_response_information": 0}):
        assert "response_information" not in connect(on=own, properties=properties).connack.properties


@statement(
    "5.0",
    "MQTT-3.1.2-29",
    "MQTT-3.9.2-1",
    "MQTT-3.9.2-2",
    "MQTT-3.11.2-1",
    "MQTT-3.11.2-2",
    "MQTT-3.4.2-2",
    "MQTT-3.4.2-3",
    "MQTT-3.5.2-2",
    "MQTT-3.5.2-3",
    "MQTT-3.6.2-2",
    "MQTT-3.6.2-3",
    "MQTT-3.7.2-2",
    "MQTT-3.7.2-3",
    "MQTT-3.14.2-3",
    "MQTT-3.14.2-4",
    "MQTT-3.2.2-19",
    "MQTT-3.2.2-20",
)
@pytest.mark.own_broker  # what is refused here is this broker's choice
def test_mqtt_3_1_2_29_no_diagnosis_where_it_does_not_fit(connect: Connect, topic: str) -> None:
    """Failures of every kind, to a client that takes tiny packets and asked for no problem information."""
    from tests.harness import wire

    limit = 24
    small = {"maximum_packet_size": limit, "request_problem_information": 0}
    client = connect(properties=small, auto_ack=False)
    assert len(client.connack.raw) <= limit
    refused = connect(connect=False, properties={**small, "authentication_method": "none such"})
    assert len(refused.connect(expect_code=None).raw) <= limit
    answers = [
        client.unsubscribe("never"),
        client.publish("$SYS/x", b"x", 1),
        client.publish("$SYS/x", b"x", 2, wait=False) or client.recv(),
    ]
    client.send_raw(wire.packet(6, b"\x77\x77", flags=2) + wire.packet(5, b"\x77\x78"))
    answers += [client.recv(), client.recv()]
    for answer in answers:
        assert answer is not None
        assert len(answer.raw) <= limit
        assert not {"reason_string", "user_property"} & set(answer.properties)
    client.send_raw(wire.packet(8, b"", flags=0))
    ended = client.expect_close()
    assert ended is None or len(ended.raw) <= limit
    subscriber = connect(properties=small)
    try:
        answer = subscriber.subscribe("a#", check=False)
    except Closed:
        return
    assert len(answer.raw) <= limit
    assert not answer.properties


@statement("5.0", "MQTT-4.12.0-6")
def test_mqtt_4_12_0_6_no_method_no_auth(connect: Connect) -> None:
    client = connect()
    assert "authentication_method" not in client.connack.properties
    client.expect_none(0.2)
