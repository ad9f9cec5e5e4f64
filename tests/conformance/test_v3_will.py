"""Will messages of MQTT 3.1.1 (§3.1.2.5 to §3.1.2.7)."""

from collections.abc import Callable

import pytest

from tests.conformance import V3
from tests.harness import Client, Publish, Will, statement

Connect = Callable[..., Client]
NewId = Callable[..., str]


@V3
@pytest.mark.parametrize("qos", [0, 1, 2])
@statement("3.1.1", "MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.1.2-9")
def test_mqtt_3_1_2_8_will_is_sent_once_on_a_cut(connect: Connect, topic: str, placement: str, version: int, qos: int) -> None:
    watcher = connect()
    watcher.subscribe(topic, 2)
    connect(will=Will(topic, b"gone", qos=qos)).cut()
    watcher.expect(Publish, topic=topic, payload=b"gone", qos=qos, retain=False)
    watcher.expect_none()


@V3
@statement("3.1.1", "MQTT-3.1.2-8")
def test_mqtt_3_1_2_8_will_is_sent_on_an_orderly_close_without_disconnect(
    connect: Connect, topic: str, placement: str, version: int
) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    connect(will=Will(topic, b"fin")).drop()
    watcher.expect(Publish, payload=b"fin")


@V3
@statement("3.1.1", "MQTT-3.1.2-8")
def test_mqtt_3_1_2_8_will_is_sent_on_a_protocol_error(connect: Connect, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    client = connect(will=Will(topic, b"error"))
    client.send_raw(b"\xf0\x00")
    client.expect_close()
    watcher.expect(Publish, payload=b"error")


@V3
@statement("3.1.1", "MQTT-3.1.2-8", "MQTT-3.1.4-2")
def test_mqtt_3_1_2_8_will_is_sent_on_takeover(connect: Connect, new_id: NewId, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    name = new_id()
    connect(client_id=name, will=Will(topic, b"taken over"))
    connect(client_id=name)
    watcher.expect(Publish, payload=b"taken over")


@V3
@statement("3.1.1", "MQTT-3.14.4-3", "MQTT-3.1.2-10")
def test_mqtt_3_14_4_3_disconnect_removes_the_will(
    connect: Connect, new_id: NewId, topic: str, placement: str, version: int
) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    name = new_id()
    connect(client_id=name, will=Will(topic, b"never")).disconnect()
    connect(client_id=name).disconnect()  # by now the broker has finished with the first connection
    watcher.expect_none()


@V3
@statement("3.1.1", "MQTT-3.1.2-12", "MQTT-3.1.2-10")
def test_mqtt_3_1_2_12_no_will_without_will_flag(connect: Connect, new_id: NewId, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    name = new_id()
    connect(client_id=name, clean=False, will=Will(topic, b"first")).cut()
    watcher.expect(Publish, payload=b"first")
    connect(client_id=name, clean=False).cut()
    watcher.expect_none()


@V3
@statement("3.1.1", "MQTT-3.1.2-16")
def test_mqtt_3_1_2_16_will_without_retain_is_not_stored(connect: Connect, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    connect(will=Will(topic, b"live only")).cut()
    watcher.expect(Publish, payload=b"live only", retain=False)
    late = connect()
    late.subscribe(topic)
    late.fence()
    late.expect_none()


@V3
@statement("3.1.1", "MQTT-3.1.2-17")
def test_mqtt_3_1_2_17_will_with_retain_is_stored(connect: Connect, topic: str, placement: str, version: int) -> None:
    watcher = connect()
    watcher.subscribe(topic)
    connect(will=Will(topic, b"stored", qos=1, retain=True)).cut()
    watcher.expect(Publish, payload=b"stored", retain=False)
    late = connect()
    late.subscribe(topic, 1)
    late.expect(Publish, payload=b"stored", retain=True, qos=1)
    watcher.publish(topic, b"", 1, retain=True)
