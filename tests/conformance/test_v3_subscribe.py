"""SUBSCRIBE, UNSUBSCRIBE, filters and matching of MQTT 3.1.1 (§3.8 to §3.11, §4.7)."""

import contextlib
import itertools
from collections.abc import Callable

import pytest

from tests.conformance import V3, V311
from tests.harness import Broker, Client, Closed, Publish, Pubrel, statement

Connect = Callable[..., Client]


@V3
@statement("3.1.1", "MQTT-3.8.4-4", "MQTT-3.8.4-1", "MQTT-3.8.4-5", "MQTT-3.9.3-1")
def test_mqtt_3_8_4_4_several_filters_one_suback(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(), connect()
    suback = subscriber.subscribe([(f"{topic}/{leaf}", qos) for leaf, qos in (("a", 0), ("b", 2), ("c", 1))])
    assert suback.codes == (0, 2, 1)
    for leaf in "abc":
        publisher.publish(f"{topic}/{leaf}", leaf, 2)
    got = subscriber.messages_from(publisher, 2)  # fails on a second SUBACK
    assert sorted((m.payload, m.qos) for m in got) == [(b"a", 0), (b"b", 2), (b"c", 1)]


@V3
@statement("3.1.1", "MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-4")
def test_mqtt_3_10_4_1_only_the_same_filter_is_removed(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(f"{topic}/#", 1)
    for other in (f"{topic}/+", f"{topic}/a", f"{topic}/", f"{topic.upper()}/#"):
        subscriber.unsubscribe(other)
    publisher.publish(f"{topic}/a", b"still", 1)
    subscriber.expect(Publish, payload=b"still")
    subscriber.unsubscribe(f"{topic}/#")
    publisher.publish(f"{topic}/a", b"stopped", 1)
    subscriber.expect_nothing_from(publisher, 1)


@V3
@statement("3.1.1", "MQTT-3.10.4-2")
def test_mqtt_3_10_4_2_others_go_on_after_one_unsubscribes(connect: Connect, topic: str, placement: str, version: int) -> None:
    leaving, staying, publisher = connect(), connect(), connect()
    for one in (leaving, staying):
        one.subscribe(f"{topic}/+", 1)
    publisher.publish(f"{topic}/a", b"both", 1)
    for one in (leaving, staying):
        one.expect(Publish, payload=b"both")
    leaving.unsubscribe(f"{topic}/+")
    publisher.publish(f"{topic}/a", b"one", 1)
    staying.expect(Publish, payload=b"one")
    leaving.expect_nothing_from(publisher, 1)


@V3
@statement("3.1.1", "MQTT-3.10.4-3")
def test_mqtt_3_10_4_3_begun_deliveries_are_finished(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(auto_ack=False), connect()
    subscriber.subscribe(topic, 2)
    publisher.publish(topic, b"x", 2)
    message = subscriber.expect(Publish, qos=2)
    subscriber.unsubscribe(topic)
    subscriber.ack(message)
    subscriber.expect(Pubrel, packet_id=message.packet_id)


@V3
@statement("3.1.1", "MQTT-3.10.4-6", "MQTT-3.10.4-4")
def test_mqtt_3_10_4_6_several_filters_one_unsuback(connect: Connect, topic: str, placement: str, version: int) -> None:
    subscriber, publisher = connect(), connect()
    filters = [f"{topic}/{leaf}" for leaf in "abc"]
    subscriber.subscribe([(one, 1) for one in [*filters, f"{topic}/d"]])
    subscriber.unsubscribe(*filters)
    for one in [*filters, f"{topic}/d"]:
        publisher.publish(one, one, 1)
    assert [m.topic for m in subscriber.messages_from(publisher, 1)] == [f"{topic}/d"]


@V3
@statement("3.1.1", "MQTT-3.8.3-2", "MQTT-4.7.1-2", "MQTT-4.7.1-3")
def test_mqtt_4_7_1_2_wildcards_match(connect: Connect, topic: str, placement: str, version: int) -> None:
    topics = ["a", "a/b", "a/b/c", "b", "b/b", "/b", "a/", "/", "a//c", "x/y/c"]
    matches = {
        "a/#": ["a", "a/b", "a/b/c", "a/", "a//c"],
        "#": topics,
        "+": ["a", "b"],
        "+/b": ["a/b", "b/b", "/b"],
        "a/+": ["a/b", "a/"],
        "+/+": ["a/b", "b/b", "/b", "a/", "/"],
        "/+": ["/b", "/"],
        "+/+/c": ["a/b/c", "a//c", "x/y/c"],
        "a/+/#": ["a/b", "a/b/c", "a/", "a//c"],
        "+/b/#": ["a/b", "a/b/c", "b/b", "/b"],
        "a//c": ["a//c"],
    }
    publisher = connect()
    watchers = {pattern: connect() for pattern in matches}
    for pattern, watcher in watchers.items():
        watcher.subscribe(f"{topic}/{pattern}", 1)
    for name in topics:
        publisher.publish(f"{topic}/{name}", b"x", 1)
    for pattern, watcher in watchers.items():
        got = [m.topic.removeprefix(f"{topic}/") for m in watcher.messages_from(publisher, 1)]
        assert got == matches[pattern], pattern


@V3
@statement("3.1.1", "MQTT-4.7.2-1")
def test_mqtt_4_7_2_1_wildcards_first_do_not_match_dollar_topics(
    connect: Connect, topic: str, placement: str, version: int
) -> None:
    watcher, positive, publisher = connect(), connect(), connect()
    for pattern in ("#", "+/#", f"+/{topic}", f"+/{topic.split('/')[0]}/+"):
        watcher.subscribe(pattern, 1)
    positive.subscribe(f"$t/{topic}", 1)
    publisher.publish(f"$t/{topic}", b"hidden", 1)
    positive.expect(Publish, payload=b"hidden")
    got = watcher.messages_from(publisher, 1)
    assert not [m.topic for m in got if m.topic.startswith("$")]


@V3
@statement("3.1.1", "MQTT-4.7.3-4")
def test_mqtt_4_7_3_4_matching_is_literal(connect: Connect, topic: str, placement: str, version: int) -> None:
    names = ["\u00e9", "e\u0301", "A", "a", "\u212b", "\u00c5", " a", "a "]
    publisher = connect()
    watchers = {name: connect() for name in names}
    for name, watcher in watchers.items():
        watcher.subscribe(f"{topic}/{name}", 1)
    for name in names:
        publisher.publish(f"{topic}/{name}", name, 1)
    for name, watcher in watchers.items():
        assert [m.payload.decode() for m in watcher.messages_from(publisher, 1)] == [name]


@V3
@statement("3.1.1", "MQTT-3.8.4-1")
def test_mqtt_3_8_4_1_nothing_published_after_suback_is_missed(connect: Connect, topic: str, placement: str, version: int) -> None:
    publisher = connect()
    for number in range(20):
        subscriber = connect()
        subscriber.subscribe(f"{topic}/{number}/+" if number % 2 else f"{topic}/{number}/x", 1)
        publisher.publish(f"{topic}/{number}/x", b"x", 1)
        subscriber.expect(Publish, payload=b"x")


@V311
@statement("3.1.1", "MQTT-3.9.3-2")
def test_mqtt_3_9_3_2_only_defined_return_codes(connect: Connect, topic: str, version: int) -> None:
    """Good filters beside doubtful ones: an answer or a close; the parser refuses any other code."""
    doubtful = ["$share/g/" + topic, "$SYS/#", "$share//x", "$share/g", f"{topic}/" + "a/" * 300]
    for name, qos in itertools.product(doubtful, (0, 2)):
        client = connect()
        with contextlib.suppress(Closed):
            assert client.subscribe([(topic, qos), (name, qos)], check=False).codes[0] == qos


@V311
@pytest.mark.own_broker
@statement("3.1.1", "MQTT-3.8.3-2", "MQTT-3.9.3-2")
def test_mqtt_3_8_3_2_wildcards_turned_off(connect: Connect, broker_with: Callable[..., Broker], topic: str, version: int) -> None:
    client = connect(on=broker_with(mqtt__wildcard_subscription="false"))
    suback = client.subscribe([(f"{topic}/#", 1), (f"{topic}/+/a", 1), (topic, 1)], check=False)
    assert suback.codes == (0x80, 0x80, 1)
