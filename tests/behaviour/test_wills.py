"""Wills over workers: many at once, to offline clients, with delays, retained, with an expiry."""

import time
from collections.abc import Callable

from tests.harness import Client, Publish, Will

Connect = Callable[..., Client]
NewId = Callable[..., str]
KEPT = {"session_expiry_interval": 60}


def test_wills_of_many_clients(connect: Connect, topic: str, placement: str) -> None:
    watchers = [connect(), connect()]
    for watcher in watchers:
        watcher.subscribe(f"{topic}/+", 1)
    doomed = [connect(will=Will(f"{topic}/{i}", b"%d" % i, 1)) for i in range(30)]
    for number, client in enumerate(doomed):
        (client.cut if number % 2 else client.drop)()
    for watcher in watchers:
        watcher.expect_messages(*(b"%d" % i for i in range(30)))


def test_a_will_waits_for_an_offline_client(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    name, witness = new_id(), connect()
    away = connect(client_id=name, clean=False, properties=KEPT)
    for client in (away, witness):
        client.subscribe(topic, 1)
    away.drop()
    connect(will=Will(topic, b"gone", 1)).cut()
    witness.expect(Publish, payload=b"gone")
    connect(client_id=name, clean=False, properties=KEPT).expect(Publish, payload=b"gone", qos=1)


def test_a_will_for_a_shared_group(connect: Connect, topic: str, placement: str) -> None:
    members, publisher = [connect(), connect()], connect()
    for member in members:
        member.subscribe(f"$share/g/{topic}", 1)
    for i in range(4):
        doomed = connect(will=Will(topic, b"%d" % i, 1))
        doomed.drop()
    got = [message.payload for member in members for message in member.messages_from(publisher, 1)]
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


def test_takeover_sends_the_will_that_has_no_delay(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    """MQTT 5.0 §3.1.4: the network connection is closed, and the will goes out unless its delay holds it back."""
    name, watcher = new_id(), connect()
    watcher.subscribe(f"{topic}/+", 1)
    now, later = Will(f"{topic}/now", b"now"), Will(f"{topic}/later", b"later", properties={"will_delay_interval": 1})
    first = connect(client_id=name, clean=False, properties=KEPT, will=now)
    second = connect(client_id=name, clean=False, properties=KEPT, will=later)
    first.expect_close()
    watcher.expect(Publish, payload=b"now")
    third = connect(client_id=name, clean=False, properties=KEPT)
    second.expect_close()
    watcher.expect_none(1.3)
    third.ping()


def test_a_delayed_will_that_is_overtaken_by_a_new_one(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    name, watcher = new_id(), connect()
    watcher.subscribe(topic, 1)
    options = {"client_id": name, "clean": False, "properties": KEPT}
    connect(will=Will(topic, b"old", properties={"will_delay_interval": 1}), **options).cut()
    connect(will=Will(topic, b"new", properties={"will_delay_interval": 1}), **options).cut()
    cut_at = time.monotonic()
    watcher.expect(Publish, payload=b"new", timeout=3)
    assert time.monotonic() - cut_at > 0.9
    watcher.expect_nothing_from(connect())


def test_expiry_of_a_will_begins_when_it_is_sent(connect: Connect, topic: str, placement: str) -> None:
    watcher, late = connect(), connect()
    watcher.subscribe(topic, 1)
    will = Will(topic, b"gone", 1, True, {"message_expiry_interval": 1, "will_delay_interval": 1})
    connect(will=will, properties=KEPT).cut()
    assert watcher.expect(Publish, payload=b"gone", timeout=3).properties["message_expiry_interval"] == 1
    time.sleep(1.2)
    late.subscribe(topic, 1)
    late.expect_nothing_from(connect())


def test_a_retained_will_replaces_what_was_retained(connect: Connect, topic: str, placement: str) -> None:
    watcher, publisher = connect(), connect()
    publisher.publish(topic, b"online", 1, True)
    watcher.subscribe(topic, 1)
    watcher.expect(Publish, payload=b"online", retain=True)
    connect(will=Will(topic, b"offline", 1, True)).cut()
    watcher.expect(Publish, payload=b"offline", retain=False)
    late = connect()
    late.subscribe(topic, 1)
    late.expect(Publish, payload=b"offline", retain=True)
    connect(will=Will(topic, b"", 1, True)).cut()
    watcher.expect(Publish, payload=b"")
    empty = connect()
    empty.subscribe(topic, 1)
    empty.expect_nothing_from(publisher, 1)


def test_no_local_holds_for_wills(connect: Connect, topic: str, placement: str, new_id: NewId) -> None:
    name, witness = new_id(), connect()
    witness.subscribe(topic, 1)
    doomed = connect(client_id=name, clean=False, properties=KEPT, will=Will(topic, b"gone", 1))
    doomed.subscribe(topic, 1, no_local=True)
    doomed.cut()
    witness.expect(Publish, payload=b"gone")
    back = connect(client_id=name, clean=False, properties=KEPT)
    back.expect_nothing_from(witness, 1)
