"""Sessions: what waits for an offline client, what a takeover moves, what expires."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.harness import Client, Publish, Pubrec, Pubrel, wire

Connect = Callable[..., Client]
NewId = Callable[..., str]
KEPT = {"session_expiry_interval": 60}


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_an_offline_client(connect: Connect, topic: str, placement: str, new_id: NewId, qos: int) -> None:
    name, publishers = new_id(), [connect(), connect()]
    first = connect(client_id=name, clean=False, properties=KEPT)
    first.subscribe([(f"{topic}/0", qos), (f"{topic}/+", qos)])
    first.drop()
    for i in range(200):
        for number, publisher in enumerate(publishers):
            publisher.publish(f"{topic}/{number}", b"%d" % i, qos)
    back = connect(client_id=name, clean=False, properties=KEPT)
    seen: dict[str, list[int]] = {}
    for _ in range(400):
        message = back.expect(Publish, qos=qos)
        seen.setdefault(message.topic[-1], []).append(int(message.payload))
    assert seen == {"0": list(range(200)), "1": list(range(200))}
    back.expect_nothing_from(publishers[0], qos)


@pytest.mark.parametrize("version", [4, 5])
def test_takeover_moves_the_session(connect: Connect, topic: str, placement: str, new_id: NewId, version: int) -> None:
    """Subscriptions, messages in flight in either direction and the queue go to the new connection."""
    name, publisher = new_id(), connect(5)
    options = {"version": version, "client_id": name, "clean": False, "properties": KEPT if version == 5 else None}
    old = connect(auto_ack=False, **options)
    old.subscribe(topic, 2)
    for i in range(40):
        publisher.publish(topic, b"%d" % i, 2)
    flight = [old.expect(Publish, payload=b"%d" % i) for i in range(32)]
    old.ack(flight[0])
    old.expect(Pubrel, packet_id=flight[0].packet_id)
    old.send_raw(wire.publish(topic, b"own", version=version, qos=2, packet_id=500))
    old.expect(Pubrec, packet_id=500)
    new = connect(auto_ack=False, **options)
    assert new.connack.session_present
    ended = old.expect_close()
    assert (ended.code == 0x8E) if version == 5 else (ended is None)
    again = [new.recv() for _ in range(32)]
    assert {p.packet_id for p in again if isinstance(p, Pubrel)} == {flight[0].packet_id}
    repeated = [p for p in again if isinstance(p, Publish)]
    assert [(p.packet_id, p.payload, p.dup) for p in repeated] == [(p.packet_id, p.payload, True) for p in flight[1:]]
    assert new.release(500).packet_id == 500
    new.send_raw(wire.pubcomp(flight[0].packet_id))
    rest = []
    for message in repeated:
        new.ack(message)
        new.send_raw(wire.pubcomp(message.packet_id))
    while len(rest) < 9:
        packet = new.recv()
        assert packet is not None
        if isinstance(packet, Publish):
            rest.append(packet.payload)
            new.ack(packet)
        elif isinstance(packet, Pubrel):
            new.send_raw(wire.pubcomp(packet.packet_id))
    assert rest == [b"%d" % i for i in range(32, 40)] + [b"own"]


@pytest.mark.parametrize("qos", [1, 2])
def test_takeover_under_traffic_loses_nothing(connect: Connect, topic: str, placement: str, new_id: NewId, qos: int) -> None:
    name, publisher, count = new_id(), connect(), 300
    client = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False)
    client.subscribe(topic, qos)

    def publish() -> None:
        for i in range(count):
            publisher.publish(topic, b"%d" % i, qos)

    thread = threading.Thread(target=publish)
    thread.start()
    seen: list[int] = []
    while len(set(seen)) < count:
        if len(seen) % 40 == 39 and client.auto_ack is False:
            client = connect(client_id=name, clean=False, properties=KEPT, auto_ack=False)
        packet = client.recv()
        assert packet is not None, f"{len(set(seen))} of {count}"
        if isinstance(packet, Publish):
            seen.append(int(packet.payload))
            client.ack(packet)
        elif isinstance(packet, Pubrel):
            client.send_raw(wire.pubcomp(packet.packet_id))
    thread.join()
    # First arrivals are in order; what was in flight at a takeover may come twice, marked as such.
    assert list(dict.fromkeys(seen)) == list(range(count))


def test_many_takeovers_at_once(connect: Connect, new_id: NewId) -> None:
    name = new_id()
    clients = [connect(client_id=name, clean=False, properties=KEPT) for _ in range(20)]
    for client in clients[:-1]:
        assert client.expect_close().code == 0x8E
    clients[-1].ping()


def test_takeover_with_clean_start(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    name, publisher = new_id(), connect()
    old = connect(client_id=name, clean=False, properties=KEPT)
    old.subscribe(topic, 1)
    new = connect(client_id=name, clean=True)
    assert not new.connack.session_present
    assert old.expect_close().code == 0x8E
    assert publisher.publish(topic, b"x", 1).code == 0x10
    new.expect_nothing_from(publisher, 1)


def test_takeover_over_versions(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    name, publisher = new_id(), connect()
    for old, new in ((4, 5), (5, 4)):
        first = connect(old, client_id=name, clean=False, properties=KEPT if old == 5 else None)
        first.subscribe(topic, 1)
        second = connect(new, client_id=name, clean=False, properties=KEPT if new == 5 else None)
        assert second.connack.session_present
        first.expect_close()
        publisher.publish(topic, b"x", 1)
        second.expect(Publish, payload=b"x")


def test_an_expired_session_leaves_no_routes(connect: Connect, topic: str, placement: str) -> None:
    client, publisher = connect(properties={"session_expiry_interval": 1}), connect()
    client.subscribe([(topic, 1), (f"{topic}/#", 1)])
    client.drop()
    assert publisher.publish(topic, b"x", 1).code == 0
    deadline = time.monotonic() + 4
    while publisher.publish(topic, b"x", 1).code != 0x10:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_messages_expire_while_they_wait(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    name, publisher = new_id(), connect()
    first = connect(client_id=name, clean=False, properties=KEPT)
    first.subscribe(topic, 1)
    first.drop()
    for i in range(30):
        publisher.publish(topic, b"%d" % i, 1, properties={"message_expiry_interval": 1} if i % 3 else None)
    time.sleep(1.2)
    back = connect(client_id=name, clean=False, properties=KEPT)
    for i in range(0, 30, 3):
        back.expect(Publish, payload=b"%d" % i)
    back.expect_nothing_from(publisher, 1)
