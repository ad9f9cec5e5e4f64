"""Retained messages over workers: replay to wildcards, changes under traffic, limits."""

import json
from collections.abc import Callable

import pytest

from tests.harness import Broker, Client, Publish, client_id_on

Connect = Callable[..., Client]


@pytest.mark.parametrize("qos", [0, 1])
def test_5000_retained_messages_to_one_subscriber(connect: Connect, topic: str, placement: str, qos: int) -> None:
    """More than a message queue holds: replay is paced by what the subscriber acknowledges, and loses nothing."""
    publisher, subscriber = connect(), connect(timeout=15)
    for i in range(5000):
        publisher.publish(f"{topic}/{i % 50}/{i}", b"%d" % i, 0, True)
    publisher.ping()
    subscriber.subscribe(f"{topic}/#", qos)
    assert {int(subscriber.expect(Publish, retain=True).payload) for _ in range(5000)} == set(range(5000))
    publisher.publish(f"{topic}/live", b"live", 1)
    subscriber.expect(Publish, payload=b"live", retain=False)


def test_wildcards_seek_what_they_match(connect: Connect, topic: str, placement: str) -> None:
    publisher = connect()
    names = ["a", "a/b", "a/b/c", "ab", "a!", "b", "b/", "/", "z/b"]
    for name in names:
        publisher.publish(f"{topic}/{name}", name.encode(), 1, True)
    for name, expected in (
        ("#", set(names)),
        ("+", {"a", "ab", "a!", "b"}),
        ("a/#", {"a", "a/b", "a/b/c"}),
        ("+/b", {"a/b", "z/b"}),
        ("+/+/c", {"a/b/c"}),
        ("b/+", {"b/"}),
        ("a!", {"a!"}),
        ("nothing/#", set()),
    ):
        client = connect()
        client.subscribe(f"{topic}/{name}", 1)
        got = [message.payload.decode() for message in client.messages_from(publisher, 1)]
        assert sorted(got) == sorted(expected), name


def test_dollar_topics_are_not_replayed_to_wildcards(connect: Connect, topic: str, placement: str) -> None:
    publisher, wild, named = connect(), connect(), connect()
    name = f"${topic}"
    publisher.publish(name, b"hidden", 1, True)
    first, rest = name.split("/", 1)
    wild.subscribe(f"+/{rest}", 1)
    wild.expect_nothing_from(publisher, 1)
    named.subscribe(f"{first}/{rest}", 1)
    named.expect(Publish, payload=b"hidden", retain=True)
    publisher.publish(name, b"", 1, True)


def test_a_subscriber_sees_the_newest_whoever_wrote_it(connect: Connect, topic: str, placement: str) -> None:
    publishers = [connect() for _ in range(3)]
    for i in range(30):
        publishers[i % 3].publish(topic, b"%d" % i, 1, True)
        late = connect()
        late.subscribe(topic, 1)
        late.expect(Publish, payload=b"%d" % i, retain=True)
        late.close()
        if i % 5 == 4:
            publishers[(i + 1) % 3].publish(topic, b"", 1, True)
            empty = connect()
            empty.subscribe(topic, 1)
            empty.expect_nothing_from(publishers[0], 1)


def test_limits_of_the_retainer(broker_with: Callable[..., Broker], connect: Connect, topic: str) -> None:
    own = broker_with(retainer__max_messages=3, retainer__max_payload_size="1KB")
    publisher, live, late = (connect(on=own) for _ in range(3))
    live.subscribe(f"{topic}/+", 1)
    for name, size in (("a", 10), ("b", 2000), ("c", 10), ("d", 10), ("e", 10)):
        publisher.publish(f"{topic}/{name}", b"x" * size, 1, True)
        assert len(live.expect(Publish, topic=f"{topic}/{name}").payload) == size
    publisher.publish(f"{topic}/a", b"replaced", 1, True)
    late.subscribe(f"{topic}/+", 1)
    found = [late.expect(Publish, retain=True) for _ in range(3)]
    assert {message.topic.rpartition("/")[2]: message.payload for message in found} == {
        "a": b"replaced",
        "c": b"x" * 10,
        "d": b"x" * 10,
    }
    late.expect_nothing_from(publisher, 1)


def test_retained_messages_stop_at_max_total_bytes_and_an_alarm_tells(connect: Connect, topic: str) -> None:
    """What finds no room is delivered all the same; what is there stays; room that is made is used again."""
    with Broker(3, {"retainer.max_total_bytes": "512KB"}) as own:
        publisher, live, watcher = (connect(client_id=client_id_on(worker, 3, f"total{worker}x"), on=own) for worker in range(3))
        watcher.subscribe("$SYS/brokers/+/alarms/activate", 0)
        live.subscribe(f"{topic}/+", 1)
        for number in range(100):
            publisher.publish(f"{topic}/{number}", b"%03d" % number + b"x" * 10_000, 1, True)
            assert live.expect(Publish).payload[:3] == b"%03d" % number
        alarm = watcher.expect(Publish, timeout=10)  # though all was dropped before the manager looked for the first time
        assert json.loads(alarm.payload)["name"] == "retained_limit"

        def retained() -> set[int]:
            found = set()
            with connect(on=own) as late:
                late.subscribe(f"{topic}/+", 1)
                while isinstance(message := late.recv(1), Publish):
                    found.add(int(message.payload[:3]))
            return found

        kept = retained()
        assert set(range(20)) <= kept and len(kept) <= 43  # 12 KB each, in pages; who was there first stays
        for number in range(10):
            publisher.publish(f"{topic}/{number}", b"", 1, True)
        publisher.publish(f"{topic}/late", b"999", 1, True)
        assert retained() == {*kept, 999} - {*range(10)}


def test_properties_are_retained(connect: Connect, topic: str, placement: str) -> None:
    publisher, late = connect(), connect()
    sent = {"content_type": "t", "correlation_data": b"\0", "user_property": [("b", "1"), ("a", "2")]}
    publisher.publish(topic, b"x", 2, True, sent)
    late.subscribe(topic, 2, properties={"subscription_identifier": 9})
    message = late.expect(Publish, payload=b"x", qos=2, retain=True)
    assert message.properties == sent | {"subscription_identifier": [9]}
