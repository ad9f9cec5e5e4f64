"""Delivery over workers: fan-out, order, versions, acknowledgements, subscriptions that change under traffic.

What the standard leaves to the broker is pinned here as EMQX has it: one copy for overlapping subscriptions, 0x10
without subscribers, 0x91 and 0x92 for packet ids, 0x8F for an ill-formed filter, 0x99 for text that is none.
"""

import threading
from collections.abc import Callable

import pytest

from tests.harness import Client, Publish, Pubrec, Pubrel, client_id_on, wire

Connect = Callable[..., Client]
NewId = Callable[..., str]
KEPT = {"session_expiry_interval": 60}
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


def stream(publisher: Client, topic: str, count: int, qos: int, window: int = 50) -> None:
    """Numbers as payloads; waits for an acknowledgement (QoS 0: a ping) once per window, for every one at QoS 2."""
    for i in range(count):
        last = i % window == window - 1
        publisher.publish(topic, b"%d" % i, qos, wait=qos == 2 or last)
        if last and not qos:
            publisher.ping()


@QOS
def test_order_of_400_messages(connect: Connect, topic: str, placement: str, qos: int) -> None:
    """From each of two publishers to three subscribers, exact and wildcard, while the subscribers read.

    Both together stay below mqtt.max_mqueue_len, for nothing keeps the subscribers up with the publishers.
    """
    subscribers, publishers = [connect(timeout=20) for _ in range(3)], [connect(timeout=20) for _ in range(2)]
    for subscriber, name in zip(subscribers, (f"{topic}/+", f"{topic}/#", f"{topic}/0"), strict=True):
        subscriber.subscribe(name, qos)
    subscribers[2].subscribe(f"{topic}/1", qos)
    seen: list[dict[str, list[int]]] = [{} for _ in subscribers]

    def read(number: int) -> None:
        for _ in range(800):
            message = subscribers[number].expect(Publish, qos=qos)
            seen[number].setdefault(message.topic[-1], []).append(int(message.payload))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(3)]
    threads += [threading.Thread(target=stream, args=(publishers[i], f"{topic}/{i}", 400, qos)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{"0": list(range(400)), "1": list(range(400))}] * 3


@QOS
def test_fan_out_over_all_workers(connect: Connect, topic: str, placement: str, qos: int) -> None:
    subscribers, publisher = [connect() for _ in range(12)], connect()
    for number, subscriber in enumerate(subscribers):
        subscriber.subscribe(topic if number % 2 else f"{topic}/#", qos)
    for i in range(20):
        publisher.publish(topic, b"%d" % i, qos)
    for subscriber in subscribers:
        assert [message.payload for message in subscriber.messages_from(publisher, qos)] == [b"%d" % i for i in range(20)]


@pytest.mark.parametrize("from_version", [3, 4, 5])
@QOS
def test_versions_mix(connect: Connect, topic: str, placement: str, from_version: int, qos: int) -> None:
    subscribers, publisher = [connect(version) for version in (3, 4, 5)], connect(from_version)
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos)
    properties = {"content_type": "t", "user_property": [("k", "v")]} if from_version == 5 else None
    publisher.publish(topic, b"x", qos, properties=properties)
    for subscriber in subscribers:
        message = subscriber.expect(Publish, payload=b"x", qos=qos)
        assert message.properties == ((properties or {}) if subscriber.version == 5 else {})


@QOS
def test_every_pair_of_workers(connect: Connect, topic: str, qos: int) -> None:
    clients = [connect(client_id=client_id_on(worker, 3, f"pair{qos}{worker}x")) for worker in range(3)]
    for number, client in enumerate(clients):
        client.subscribe(f"{topic}/{number}/+", qos)
    for i, publisher in enumerate(clients):
        for j, subscriber in enumerate(clients):
            publisher.publish(f"{topic}/{j}/{i}", b"x", qos)
            subscriber.expect(Publish, topic=f"{topic}/{j}/{i}", qos=qos)


def test_one_copy_for_overlapping_subscriptions(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect()
    for number, name in enumerate((f"{topic}/#", f"{topic}/+", f"{topic}/b", f"+/{topic.split('/')[1]}/b"), 1):
        subscriber.subscribe(name, number % 3, properties={"subscription_identifier": number})
    publisher.publish(f"{topic}/b", b"x", 2)
    message = subscriber.expect(Publish, qos=2)
    assert sorted(message.properties["subscription_identifier"]) == [1, 2, 3, 4]
    subscriber.expect_nothing_from(publisher, 2)


def test_acknowledgements_tell_whether_anybody_subscribes(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect(auto_ack=False)

    def codes() -> tuple[int, int]:
        first = publisher.publish(f"{topic}/a", b"x", 1).code
        publisher.publish(f"{topic}/a", b"x", 2, packet_id=900, wait=False)
        second = publisher.expect(Pubrec, packet_id=900).code
        assert publisher.release(900).code == 0
        return first, second

    assert codes() == (0x10, 0x10)
    for name in (f"{topic}/a", f"{topic}/+"):
        subscriber.subscribe(name, 0)
        assert codes() == (0, 0)
        subscriber.unsubscribe(name)
        assert codes() == (0x10, 0x10)


def test_packet_ids_that_are_unknown_or_in_use(connect: Connect, topic: str) -> None:
    client = connect(auto_ack=False)
    client.send_raw(wire.pubrec(0x1234))
    client.expect(Pubrel, packet_id=0x1234, code=0x92)
    assert client.release(0x1234).code == 0x92
    client.publish(topic, b"x", 2, packet_id=9, wait=False)
    client.expect(Pubrec, packet_id=9)
    client.publish(topic, b"y", 2, packet_id=9, wait=False)
    client.expect(Pubrec, packet_id=9, code=0x91)
    client.publish(topic, b"x", 2, packet_id=9, dup=True, wait=False)
    assert client.expect(Pubrec, packet_id=9).code in (0, 0x10)
    assert client.release(9).code == 0


def test_ill_formed_filters_do_not_hinder_the_others(connect: Connect, topic: str) -> None:
    wrong = ["a#", "a/#/b", "a+", "$share//t", "$share/g+/t", "$share/g"]
    filters = [(name, 1) for good, bad in enumerate(wrong) for name in (f"{topic}/{good}", bad)]
    assert connect().subscribe(filters, check=False).codes == (1, 0x8F) * len(wrong)


def test_text_that_is_not_utf_8_is_refused(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect(auto_ack=False)
    subscriber.subscribe(topic, 2)
    text = {"payload_format_indicator": 1}
    publisher.publish(topic, b"\xc3\x28", 2, packet_id=9, wait=False, properties=text)
    publisher.expect(Pubrec, packet_id=9, code=0x99)
    publisher.publish(topic, b"good", 2, packet_id=9, properties=text)
    subscriber.expect(Publish, payload=b"good")
    subscriber.expect_nothing_from(publisher, 2)


def test_connack_tells_the_limits(connect: Connect) -> None:
    found = connect().connack.properties
    assert (found["receive_maximum"], found["topic_alias_maximum"], found["maximum_packet_size"]) == (100, 65535, 1 << 20)
    assert not {"maximum_qos", "retain_available", "server_keep_alive"} & set(found)
    for name in ("wildcard", "subscription_identifier", "shared"):
        key = f"{name}_subscription_available" if name != "subscription_identifier" else f"{name}_available"
        assert found.get(key, 1) == 1


def test_the_default_window_is_32(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(auto_ack=False), connect()
    subscriber.subscribe(topic, 1)
    for i in range(40):
        publisher.publish(topic, b"%d" % i, 1)
    got = [subscriber.expect(Publish) for _ in range(32)]
    subscriber.expect_none(0.2)
    subscriber.ack(got[0])
    subscriber.expect(Publish, payload=b"32")


def test_subscriptions_change_under_traffic(connect: Connect, topic: str, placement: str) -> None:
    """After SUBACK everything comes, after UNSUBACK nothing, however warm the topic cache is."""
    subscriber, publisher = connect(), connect()
    for round_number in range(20):
        name = (topic, f"{topic}/#", f"+/{topic.split('/')[1]}", "test/#")[round_number % 4]
        for _ in range(5):
            publisher.publish(topic, b"before", 1)
        subscriber.subscribe(name, 1, retain_handling=2)  # `test/#` would bring what other tests retained
        publisher.publish(topic, b"%d" % round_number, 1)
        subscriber.expect(Publish, payload=b"%d" % round_number)
        subscriber.unsubscribe(name)
        publisher.publish(topic, b"after", 1)
    subscriber.expect_nothing_from(publisher, 1)


def test_churn_of_others_disturbs_nobody(connect: Connect, topic: str, placement: str) -> None:
    subscriber, churning, publisher = connect(), connect(), connect()
    subscriber.subscribe(f"{topic}/+", 1)
    for i in range(100):
        churning.subscribe([(f"{topic}/a", 0), (f"{topic}/#", 1), (f"other/{i}", 0)])
        publisher.publish(f"{topic}/a", b"%d" % i, 1)
        subscriber.expect(Publish, payload=b"%d" % i)
        churning.expect(Publish, payload=b"%d" % i)
        churning.unsubscribe(f"{topic}/a", f"{topic}/#", f"other/{i}")


def test_no_local_holds_over_a_reconnect(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    name, other = new_id(), connect()
    first = connect(client_id=name, clean=False, properties=KEPT)
    first.subscribe(topic, 1, no_local=True)
    first.drop()
    other.publish(topic, b"while away", 1)
    second = connect(client_id=name, clean=False, properties=KEPT)
    second.expect(Publish, payload=b"while away")
    second.publish(topic, b"own", 1)
    other.publish(topic, b"other", 1)
    second.expect(Publish, payload=b"other")
    second.expect_nothing_from(other, 1)


def test_aliases_from_one_client_to_another(connect: Connect, topic: str, placement: str) -> None:
    """Aliases of the publisher mean nothing to the subscriber, who has its own."""
    subscriber, publisher = connect(properties={"topic_alias_maximum": 3}), connect()
    subscriber.subscribe(f"{topic}/+", 1)
    for i in range(4):
        publisher.publish(f"{topic}/{i}", b"%d" % i, 1, properties={"topic_alias": 100 + i})
    for i in (3, 2, 1, 0):
        publisher.publish("", b"%d" % i, 1, properties={"topic_alias": 100 + i})
    names: dict[int, str] = {}
    for i in (0, 1, 2, 3, 3, 2, 1, 0):
        message = subscriber.expect(Publish, payload=b"%d" % i)
        alias = message.properties.get("topic_alias", 0)
        assert alias <= 3
        if alias and message.topic:
            names[alias] = message.topic
        assert (message.topic or names[alias]) == f"{topic}/{i}"
    assert set(names) == {1, 2, 3}


def test_a_client_publishes_to_itself(connect: Connect, topic: str) -> None:
    client = connect()
    client.subscribe(topic, 2)
    for qos in (0, 1, 2):
        client.publish(topic, b"%d" % qos, qos)
        client.expect(Publish, payload=b"%d" % qos, qos=qos)


def test_empty_and_binary_payloads(connect: Connect, topic: str, placement: str) -> None:
    subscriber, publisher = connect(), connect()
    subscriber.subscribe(topic, 1)
    for payload in (b"", bytes(range(256)), b"\0" * 1000):
        publisher.publish(topic, payload, 1)
        subscriber.expect(Publish, payload=payload)
