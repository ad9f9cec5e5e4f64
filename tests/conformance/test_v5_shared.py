"""Shared subscriptions of MQTT 5.0 (§4.8.2) and the seven strategies by which a member is chosen."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.harness import Broker, Client, Publish, statement, wire

Connect = Callable[..., Client]
KEPT = {"session_expiry_interval": 60}


def payloads(client: Client, publisher: Client, qos: int = 1) -> list[bytes]:
    """What came until a marker that this publisher sends now."""
    client.fence(publisher, qos)
    found = []
    while (message := client.recv(0.01)) is not None:
        if isinstance(message, Publish):
            found.append(message.payload)
    return found


@statement("5.0", "MQTT-4.8.2-3")
def test_mqtt_4_8_2_3_the_qos_of_the_member(connect: Connect, topic: str, placement: str) -> None:
    member, publisher = connect(), connect()
    member.subscribe(f"$share/g/{topic}", 0)
    publisher.publish(topic, b"x", 2)
    member.expect(Publish, qos=0)


@statement("5.0", "MQTT-4.8.2-1")
def test_mqtt_4_8_2_1_one_member_gets_each_message(connect: Connect, topic: str, placement: str) -> None:
    members, publisher = [connect(), connect(), connect()], connect()
    for member in members:
        member.subscribe(f"$share/g/{topic}/+", 1)
    plain = connect()
    plain.subscribe(f"{topic}/#", 1)
    sent = [b"%d" % i for i in range(30)]
    for payload in sent:
        publisher.publish(f"{topic}/a", payload, 1)
    got = [payloads(member, publisher) for member in members]
    assert sorted(payload for part in got for payload in part) == sorted(sent)
    assert [len(part) for part in got] == [10, 10, 10]
    assert payloads(plain, publisher) == sent


@statement("5.0", "MQTT-4.8.2-4", "MQTT-4.8.2-5")
def test_mqtt_4_8_2_4_qos_2_stays_with_its_member(connect: Connect, topic: str, placement: str, new_id: Callable[..., str]) -> None:
    name, ending = new_id(), new_id()
    first = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False)
    second = connect(client_id=ending, clean=False, properties={"session_expiry_interval": 1}, auto_ack=False)
    publisher = connect()
    first.subscribe(f"$share/g/{topic}", 2)
    publisher.publish(topic, b"begun", 2)
    begun = first.expect(Publish, payload=b"begun")
    first.drop()
    second.subscribe(f"$share/g/{topic}", 2)
    second.expect_none(0.2)
    again = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False)
    again.expect(Publish, packet_id=begun.packet_id, dup=True)
    again.unsubscribe(f"$share/g/{topic}")
    publisher.publish(topic, b"ends", 2)
    second.expect(Publish, payload=b"ends")
    again.subscribe(f"$share/g/{topic}", 2)
    second.drop()
    again.expect_none(1.5)


@statement("5.0", "MQTT-4.8.2-6")
def test_mqtt_4_8_2_6_a_refused_message_goes_to_nobody_else(connect: Connect, topic: str, placement: str) -> None:
    refusing, other, publisher = connect(auto_ack=False), connect(), connect()
    refusing.subscribe(f"$share/g/{topic}", 1)
    publisher.publish(topic, b"x", 1)
    message = refusing.expect(Publish)
    other.subscribe(f"$share/g/{topic}", 1)
    refusing.send_raw(wire.packet(4, message.packet_id.to_bytes(2, "big") + b"\x80"))
    refusing.ping()
    refusing.drop()
    other.expect_none(0.4)


def test_unfinished_qos_1_messages_go_to_other_members(connect: Connect, topic: str, placement: str) -> None:
    leaving, staying, publisher = connect(auto_ack=False), connect(), connect()
    leaving.subscribe(f"$share/g/{topic}", 1)
    for i in range(40):
        publisher.publish(topic, b"%d" % i, 1)
    leaving.expect(Publish, payload=b"0")
    staying.subscribe(f"$share/g/{topic}", 1)
    leaving.disconnect()
    staying.expect_messages(*(b"%d" % i for i in range(40)))


def test_queue_is_a_group_of_its_own(connect: Connect, topic: str, placement: str) -> None:
    queue, queue_2, group, publisher = connect(), connect(), connect(), connect()
    queue.subscribe(f"$queue/{topic}", 1)
    queue_2.subscribe(f"$queue/{topic}", 1)
    group.subscribe(f"$share/g/{topic}", 1)
    for i in range(10):
        publisher.publish(topic, b"%d" % i, 1)
    assert len(payloads(group, publisher)) == 10
    assert [len(payloads(client, publisher)) for client in (queue, queue_2)] == [5, 5]


def test_retained_messages_are_not_sent_to_shared_subscriptions(connect: Connect, topic: str, placement: str) -> None:
    publisher, member = connect(), connect()
    publisher.publish(topic, b"kept", 1, True)
    member.subscribe(f"$share/g/{topic}", 1)
    member.expect_none(0.2)


def test_offline_members_with_a_session_get_their_share(
    connect: Connect, topic: str, placement: str, new_id: Callable[..., str]
) -> None:
    name = new_id()
    away = connect(client_id=name, clean=False, properties=KEPT)
    away.subscribe(f"$share/g/{topic}", 1)
    away.drop()
    here, publisher = connect(), connect()
    here.subscribe(f"$share/g/{topic}", 1)
    for i in range(10):
        publisher.publish(topic, b"%d" % i, 1)
    back = connect(client_id=name, clean=False, properties=KEPT)
    assert len(payloads(here, publisher)) == 5
    back.expect_messages(*(m for m in (b"%d" % i for i in range(0)) if m))
    assert len([back.expect(Publish) for _ in range(5)]) == 5


STRATEGIES = ["random", "round_robin", "round_robin_per_group", "sticky", "local", "hash_topic", "hash_clientid"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy(
    broker_with: Callable[..., Broker], connect: Connect, topic: str, placement: str, new_id: Callable[..., str], strategy: str
) -> None:
    own = broker_with(mqtt__shared_subscription_strategy=strategy)
    members = [connect(on=own) for _ in range(3)]
    publishers = [connect(on=own) for _ in range(2)]
    for member in members:
        member.subscribe(f"$share/g/{topic}/#", 1)
    where: dict[bytes, int] = {}
    for i in range(60):
        publishers[i % 2].publish(f"{topic}/{i % 5}", b"%d" % i, 1)
    for number, member in enumerate(members):
        for payload in payloads(member, publishers[0]):
            assert payload not in where
            where[payload] = number
    assert len(where) == 60
    counts = Counter(where.values())
    chosen = [where[b"%d" % i] for i in range(60)]
    if strategy in ("round_robin", "round_robin_per_group"):
        assert set(counts.values()) == {20}
    elif strategy in ("sticky", "hash_clientid"):
        assert len(set(chosen[0::2])) == len(set(chosen[1::2])) == 1
    elif strategy == "hash_topic":
        assert all(len(set(chosen[t::5])) == 1 for t in range(5))
    elif strategy == "local" and placement == "different":
        # Clients were placed on workers 0, 1, 2 for members and 0, 1 for publishers.
        assert set(chosen[0::2]) == {0}
        assert set(chosen[1::2]) == {1}
    else:
        assert len(counts) == 3
