"""Reason strings in answers that report a failure (MQTT 5.0 §3.1.2.11.7, §4.13)."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness import Client, Pubrec, statement, wire

Connect = Callable[..., Client]


def failures(client: Client, topic: str) -> list[Any]:
    """Answers of all kinds that report a failure."""
    answers: list[Any] = [
        client.subscribe([(topic, 0), ("a#", 0), ("b/#/c", 1)], check=False),
        client.unsubscribe(topic, "a#"),
        client.publish("$SYS/x", b"x", 1),
        client.publish("$SYS/x", b"x", 2, wait=False) or client.recv(),
        client.publish(topic, b"\xff", 1, properties={"payload_format_indicator": 1}),
    ]
    client.send_raw(wire.publish(topic, b"x", qos=2, packet_id=0x7776, version=5))
    client.send_raw(wire.publish(topic, b"y", qos=2, packet_id=0x7776, version=5))
    assert client.expect(Pubrec, packet_id=0x7776).code < 0x80
    answers.append(client.recv())
    client.send_raw(wire.packet(6, b"\x77\x77", flags=2) + wire.packet(5, b"\x77\x78"))
    answers += [client.recv(), client.recv()]
    found = [answer for answer in answers if answer is not None]
    codes = [getattr(answer, "code", None) or list(answer.codes) for answer in found]
    assert codes == [[0, 0x8F, 0x8F], [0, 0x8F], 0x87, 0x87, 0x99, 0x91, 0x92, 0x92]
    return found


@statement("5.0", "MQTT-3.4.2-2", "MQTT-3.5.2-2", "MQTT-3.6.2-2", "MQTT-3.7.2-2", "MQTT-3.9.2-1", "MQTT-3.11.2-1")
@pytest.mark.own_broker
def test_mqtt_3_4_2_2_failures_are_told_in_words(connect: Connect, topic: str) -> None:
    answers = failures(connect(auto_ack=False), topic)
    texts = [answer.properties["reason_string"] for answer in answers]
    assert texts == [
        "filter 2: topic filter invalid; filter 3: topic filter invalid",
        "filter 2: topic filter invalid",
        "topics below $SYS/ and $event/ are reserved",
        "topics below $SYS/ and $event/ are reserved",
        "payload is not valid UTF-8 although Payload Format Indicator is 1",
        "packet id 30582 is in use",
        "no message with packet id 30583 is in flight",
        "no message with packet id 30584 is in flight",
    ]
    for number, answer in enumerate(answers):
        for limit in (len(answer.raw), len(answer.raw) - 1):
            other = failures(connect(auto_ack=False, properties={"maximum_packet_size": limit}), topic)[number]
            assert ("reason_string" in other.properties) == (limit == len(answer.raw))


@statement("5.0", "MQTT-3.1.2-29")
@pytest.mark.parametrize("wanted", [None, 1, 0])
@pytest.mark.own_broker  # what is refused here is this broker's choice
def test_mqtt_3_1_2_29_words_only_for_those_who_want_them(connect: Connect, topic: str, wanted: int | None) -> None:
    properties = {} if wanted is None else {"request_problem_information": wanted}
    answers = failures(connect(auto_ack=False, properties=properties), topic)
    for answer in answers:
        assert wanted != 0 or not {"reason_string", "user_property"} & set(answer.properties)


@statement("5.0", "MQTT-3.4.2-2", "MQTT-3.9.2-1")
def test_mqtt_3_4_2_2_success_needs_no_words(connect: Connect, topic: str) -> None:
    client = connect(auto_ack=False)
    assert client.subscribe(topic, 2).properties == {}
    assert len(client.publish(topic, b"x", 1).raw) == 4
    assert client.unsubscribe(topic).properties == {}
    assert client.unsubscribe(topic).properties == {}
