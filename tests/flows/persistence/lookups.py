"""What a new subscription gets of any database: messages that a client has not acknowledged, and the retained one."""

import time
from collections.abc import Sequence
from functools import partial

from shardbroker.control import Control
from tests.flows.persistence.scenario import PATIENCE_S, Store, caught_up, keeps, on, running
from tests.flows.sinks.broker import SinksBroker
from tests.harness import Client, until
from tests.harness.wire import Publish

__all__ = ["LOOKUPS", "SECTION", "check_lookup", "published", "received"]

SECTION = {
    "messages": ["in/#"],
    "retained": ["kept/#", "in/#"],
    "acked": ["in/#"],
    "fetch": ["in/#"],
    "retain_lookup": ["kept/#", "in/#"],
}
BYTES = b"\x00\xff' \\ \" ; DROP"
TOPIC = 'in/it\'s "x" $1 ${topic}'


def published(broker: SinksBroker, topic: str, payloads: Sequence[bytes], qos: int = 1, *, retain: bool = False) -> None:
    with on(broker, 0, "pub") as client:
        for payload in payloads:
            client.publish(topic, payload, qos, retain)


def received(client: Client, *payloads: bytes) -> list[Publish]:
    """Takes these messages, in this order, and nothing besides."""
    got = client.expect_messages(*payloads, timeout=PATIENCE_S)
    assert [one.payload for one in got] == list(payloads)
    client.expect_none(0.3)
    client.ping()
    return got


def what_is_not_acknowledged(broker: SinksBroker, store: Store) -> None:
    first = [b"%d" % number for number in range(30)]
    published(broker, TOPIC, [*first, BYTES], 2)
    published(broker, "in/other", [b"other"])
    with on(broker, 1, "s") as client:
        client.subscribe([("in/#", 1), ("in/+", 1), ("$share/g/" + TOPIC, 1)])
        client.expect_none(0.3)
        client.unsubscribe("in/#", "in/+", "$share/g/" + TOPIC)
        client.subscribe(TOPIC, 1)
        got = received(client, *first, BYTES)
        assert {(one.qos, one.retain, one.topic) for one in got} == {(1, False, TOPIC)}
        client.subscribe(TOPIC, 1)  # the same session again
        published(broker, TOPIC, [b"live"])
        received(client, b"live")
        client.disconnect()
    with Client(broker.address, 5, client.client_id) as again:
        again.subscribe(TOPIC, 1)  # at once: what was acknowledged last may not be in the database yet
        again.expect_none(0.5)
        again.disconnect()
    published(broker, TOPIC, [b"away 1", b"away 2"])
    with Client(broker.address, 5, client.client_id) as again:
        again.subscribe(TOPIC, 0)
        assert {one.qos for one in received(again, b"away 1", b"away 2")} == {0}
    with Client(broker.address, 4, "another") as another:
        another.subscribe(TOPIC, 2)
        assert [one.qos for one in received(another, *first, BYTES, b"live", b"away 1", b"away 2")] == [2] * 31 + [1] * 3


def a_session_that_was_there(broker: SinksBroker, store: Store) -> None:
    """Its messages are in the session: they are not fetched as well."""
    stays = {"session_expiry_interval": 3600}
    published(broker, "in/x", [b"before"])
    with on(broker, 1, "s", properties=stays) as client:
        client.subscribe("in/x", 1)
        received(client, b"before")
        client.disconnect()
    published(broker, "in/x", [b"1", b"2", b"3"])
    caught_up(broker, store)
    with Client(broker.address, 5, client.client_id, clean=False, properties=stays) as client:
        client.subscribe("in/x", 1)
        received(client, b"1", b"2", b"3")


def the_rest_after_a_lost_connection(broker: SinksBroker, store: Store) -> None:
    """A client that goes in the middle, and a worker that is killed: what is missing arrives later, in order."""
    payloads = [b"%03d" % number for number in range(250)]
    published(broker, "in/x", payloads)
    stays = {"session_expiry_interval": 3600, "receive_maximum": 20}
    for is_kept in (True, False):
        found: list[bytes] = []
        options = {"properties": stays if is_kept else {"receive_maximum": 20}, "auto_ack": False}
        client = on(broker, 1, f"s{is_kept:d}", **options)
        client.subscribe("in/x", 1)
        for round in range(4):
            for _ in range(40):
                message = client.expect(Publish, PATIENCE_S)
                found.append(message.payload)
                client.ack(message)
            if round == 1:
                published(broker, "in/x", [b"live"])
                payloads = [*payloads, b"live"] if b"live" not in payloads else payloads
            client.ping()
            if round == 2:
                broker.kill_process(broker.child_pids("worker-1")[0])
                client.close()
            else:
                client.drop()
            again = partial(_connected, broker, client.client_id, is_kept, options)
            client = until(again, str, PATIENCE_S)
            if not is_kept:
                client.subscribe("in/x", 1)
        while (last := client.recv(1.0)) is not None:
            assert isinstance(last, Publish)
            found.append(last.payload)
            client.ack(last)
        client.close()
        assert set(found) >= set(payloads), sorted(set(payloads) - set(found))
        firsts = [one for at, one in enumerate(found) if one not in found[:at] and one != b"live"]
        assert firsts == payloads[:250]


def _connected(broker: SinksBroker, client_id: str, is_kept: bool, options: dict[str, object]) -> Client | None:
    try:
        return Client(broker.address, 5, client_id, clean=not is_kept, **options)  # type: ignore[arg-type]
    except (OSError, AssertionError):
        return None


def the_retained_message(broker: SinksBroker, store: Store) -> None:
    published(broker, "kept/a", [b"1"], retain=True)
    keeps(broker, store, "retained", {"topic": "kept/a", "payload": b"1"})
    with on(broker, 1, "s") as client:
        client.subscribe("kept/a", 1)  # both have it
        (got,) = received(client, b"1")
        assert (got.retain, got.qos) == (True, 1)
        client.subscribe("kept/a", 1, retain_handling=1)
        client.subscribe("kept/a", 1, retain_handling=2)
        client.expect_none(0.3)
    with Control(broker.data_dir) as control:
        control.call("retained delete", topic="kept/a")
    with on(broker, 1, "s") as client:
        client.subscribe("kept/+", 1)
        client.expect_none(0.3)
        client.subscribe("kept/a", 2)  # only the database has it
        (got,) = received(client, b"1")
        assert (got.retain, got.qos, got.topic) == (True, 1, "kept/a")
        published(broker, "kept/a", [b""], retain=True)
        client.expect_messages(b"")
        client.subscribe("kept/a", 1)  # at once: the removal may not be in the database yet
        client.expect_none(0.5)


def a_message_that_is_both(broker: SinksBroker, store: Store) -> None:
    """Kept and retained: it arrives once."""
    published(broker, "in/x", [b"1"])
    published(broker, "in/x", [b"2"], retain=True)
    with on(broker, 1, "s") as client:
        client.subscribe("in/x", 1)
        got = client.expect_messages(b"1", b"2", timeout=PATIENCE_S)
        assert sorted((one.payload, one.retain) for one in got) == [(b"1", False), (b"2", True)]
        client.expect_none(0.3)


def messages_that_are_removed(broker: SinksBroker, store: Store) -> None:
    """Of a broker with on_acked = delete."""
    published(broker, "in/x", [b"1", b"2"])
    with on(broker, 1, "s") as client:
        client.subscribe("in/x", 1)
        received(client, b"1", b"2")
        keeps(broker, store, "messages")
    with on(broker, 1, "s") as client:
        client.subscribe("in/x", 1)
        client.expect_none(0.3)


def old_messages(broker: SinksBroker, store: Store) -> None:
    """Of a broker with fetch_time_range."""
    published(broker, "in/x", [b"old"])
    time.sleep(6.1)
    published(broker, "in/x", [b"new"])
    with on(broker, 1, "s") as client:
        client.subscribe("in/x", 1)
        received(client, b"new")


LOOKUPS = {
    "what is not acknowledged": (SECTION, what_is_not_acknowledged),
    "a session that was there": (SECTION, a_session_that_was_there),
    "the rest after a lost connection": (SECTION, the_rest_after_a_lost_connection),
    "the retained message": (SECTION, the_retained_message),
    "a message that is both": (SECTION, a_message_that_is_both),
    "messages that are removed": (
        {"messages": ["in/#"], "acked": ["in/#"], "on_acked": "delete", "fetch": ["in/#"]},
        messages_that_are_removed,
    ),
    "old messages": ({**SECTION, "fetch_time_range": 6}, old_messages),
}
"""Name -> section, and what a subscription gets then."""


def check_lookup(store: Store, name: str) -> None:
    """Runs a scenario."""
    section, scenario = LOOKUPS[name]
    with running(store, **section) as broker:
        scenario(broker, store)
