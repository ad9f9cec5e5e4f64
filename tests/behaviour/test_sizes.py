"""Large messages, long filters, many retained messages: across workers too."""

from collections.abc import Callable

import pytest

from tests.harness import Broker, Client, Publish

Connect = Callable[..., Client]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_900_kb(connect: Connect, topic: str, placement: str, qos: int) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, qos)
    for i in range(5):
        publisher.publish(topic, b"%d" % i * 900_000, qos)
    for i in range(5):
        assert subscriber.expect(Publish, qos=qos).payload == b"%d" % i * 900_000


def test_messages_larger_than_a_ring(broker_with: Callable[..., Broker], connect: Connect, topic: str, placement: str) -> None:
    own = broker_with(mqtt__max_packet_size="16MB")
    subscriber, publisher = connect(on=own), connect(on=own)
    subscriber.subscribe(topic, 1)
    publisher.publish(topic, b"before", 1)
    publisher.publish(topic, b"y" * 10_000_000, 1)
    publisher.publish(topic, b"behind", 1)
    subscriber.expect(Publish, payload=b"before")
    assert len(subscriber.expect(Publish, timeout=20).payload) == 10_000_000
    subscriber.expect(Publish, payload=b"behind")


def test_filters_longer_than_a_key(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect()
    long = f"{topic}/" + "/".join("x" * 90 for _ in range(10))
    subscriber.subscribe([(long, 1), (f"{long}/+", 1), (f"{topic}/+/{'z' * 600}/#", 1)])
    for name in (long, f"{long}/a", f"{topic}/q/{'z' * 600}", f"{topic}/q/{'z' * 600}/deep/er"):
        publisher.publish(name, b"hit", 1)
    publisher.publish(long[:-1], b"miss", 1)
    publisher.publish(f"{long}/a/b", b"miss", 1)
    for _ in range(4):
        subscriber.expect(Publish, payload=b"hit")
    subscriber.expect_nothing_from(publisher, 1)
    subscriber.unsubscribe(f"{long}/+")
    publisher.publish(f"{long}/a", b"gone", 1)
    subscriber.expect_nothing_from(publisher, 1)


def test_5000_retained_messages_to_one_subscriber(connect: Connect, topic: str, placement: str) -> None:
    publisher, subscriber = connect(), connect()
    for i in range(5000):
        publisher.publish(f"{topic}/{i % 50}/{i}", b"%d" % i, 0, True)
    publisher.ping()
    subscriber.subscribe(f"{topic}/+/+", 1)
    assert {int(subscriber.expect(Publish, retain=True).payload) for _ in range(5000)} == set(range(5000))


def test_many_filters(connect: Connect, topic: str, placement: str) -> None:
    """As many as three clients may have by default."""
    subscribers, publisher = [connect() for _ in range(3)], connect()
    for first in range(0, 3000, 100):
        filters = [(f"{topic}/{i}/+" if i % 2 else f"{topic}/{i}", 0) for i in range(first, first + 100)]
        subscribers[first // 1000].subscribe(filters)
    for i in (0, 1, 1500, 2999):
        publisher.publish(f"{topic}/{i}/a" if i % 2 else f"{topic}/{i}", b"%d" % i, 1)
        subscribers[i // 1000].expect(Publish, payload=b"%d" % i)


def test_flood_across_workers_is_pushed_back_not_lost(connect: Connect, topic: str, placement: str) -> None:
    """More than the rings hold: publishers wait, nothing is lost, order is kept."""
    from tests.harness import wire

    subscriber, publishers = connect(), [connect(), connect()]
    subscriber.subscribe(f"{topic}/+", 1)
    payload = b"z" * 20_000
    for number in range(2):
        for i in range(400):
            publishers[number].send_raw(wire.publish(f"{topic}/{number}", payload + b"%d" % i, qos=1, packet_id=i + 1, version=5))
    seen: dict[str, list[int]] = {}
    for _ in range(800):
        message = subscriber.expect(Publish, timeout=20)
        seen.setdefault(message.topic[-1], []).append(int(message.payload[len(payload) :]))
    assert seen == {"0": list(range(400)), "1": list(range(400))}


def test_many_shared_groups_on_one_topic(connect: Connect, topic: str, placement: str) -> None:
    """More records for one publish than a ring has room for at a time: all arrive."""
    member, publisher = connect(), connect()
    count = 80
    member.subscribe([(f"$share/group{i}/{topic}", 1) for i in range(count)])
    for number in range(3):
        publisher.publish(topic, b"%d" % number * 100_000, 1, wait=False)
    for _ in range(3 * count):
        member.expect(Publish, timeout=20)
    publisher.ping()
