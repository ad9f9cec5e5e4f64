"""What presets keep, on any database: clients of a broker, and the rows of a database as its own client reads them."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from shardbroker.control import Control
from tests.flows.sinks.broker import SinksBroker
from tests.harness import Client, client_id_on, until

__all__ = ["SCENARIOS", "Store", "caught_up", "check", "keeps", "on", "running", "write_again"]

WORKERS = 2
NODE = "shardbroker@127.0.0.1"
EVERYTHING = {"clients": True, "subscriptions": True, "messages": ["in/#"], "retained": ["kept/#"], "acked": ["in/#"]}
PARTS = tuple(EVERYTHING)
BYTES = b"\x00\xff' \\ \" ; DROP"
PATIENCE_S = 30
Rows = list[dict[str, Any]]


class Store(Protocol):
    """A database. Rows have EMQX's names of columns; payloads are bytes."""

    kind: str
    settings: Mapping[str, Any]
    """Of its connector."""

    def rows(self, part: str) -> Rows:
        """Returns what is kept of a part, in order of its key."""


@contextmanager
def running(store: Store, **section: Any) -> Iterator[SinksBroker]:
    """A broker with the preset of a database, whose tables exist then."""
    named = {f"persistence.{store.kind}": {"connection": dict(store.settings), **section}}
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place,
        SinksBroker(WORKERS, Path(place) / "data", named) as broker,
    ):
        with Control(broker.data_dir) as control:
            for _ in range(2):
                (row,) = control.call("persistence create")["data"]
                assert row == {"database": store.kind, "connector": f"{store.kind}:persistence-{store.kind}", "created": True}
        yield broker


def on(broker: SinksBroker, worker: int, name: str, **options: Any) -> Client:
    return Client(broker.address, 5, client_id_on(worker, WORKERS, name), **options)


def keeps(broker: SinksBroker, store: Store, part: str, *wanted: Mapping[str, Any]) -> Rows:
    """Waits until these are the rows of a part, by the columns that are given; returns all columns."""

    def is_kept() -> bool:
        found = store.rows(part)
        return len(found) == len(wanted) and all(
            {name: row[name] for name in one} == dict(one) for row, one in zip(found, wanted, strict=True)
        )

    until(is_kept, lambda: f"{store.rows(part)} instead of {wanted}: {broker.output[-5:]} {figures(broker, store)}", PATIENCE_S)
    return store.rows(part)


def figures(broker: SinksBroker, store: Store) -> dict[str, Any]:
    ids = [f"{store.kind}:persistence-{store.kind}-{part}" for part in PARTS]
    names = ("matched", "success", "failed", "status", "error", "lag_records")
    return {id: [broker.action(id).get(name) for name in names] for id in ids}


def caught_up(broker: SinksBroker, store: Store) -> None:
    def is_caught_up() -> bool:
        found = [broker.action(f"{store.kind}:persistence-{store.kind}-{part}") for part in PARTS]
        return all(not one or (one["lag_records"] == 0 and one["queuing"] == 0 and one["inflight"] == 0) for one in found)

    until(is_caught_up, lambda: str(figures(broker, store)), PATIENCE_S)


def clients_online_and_offline(broker: SinksBroker, store: Store) -> None:
    begun_ms = time.time_ns() // 1_000_000
    one, other = on(broker, 0, "a"), on(broker, 1, "b")
    one_id, other_id = one.client_id, other.client_id
    both = [{"clientid": id, "state": 1, "node": NODE, "offline_at": None} for id in sorted((one_id, other_id))]
    first = keeps(broker, store, "clients", *both)
    assert all(begun_ms - 1000 <= row["online_at"] <= time.time_ns() // 1_000_000 for row in first)
    one.disconnect()
    gone = [{"clientid": id, "state": int(id != one_id)} for id in sorted((one_id, other_id))]
    (left,) = [row for row in keeps(broker, store, "clients", *gone) if row["clientid"] == one_id]
    assert left["offline_at"] >= left["online_at"]
    time.sleep(0.005)
    with Client(broker.address, 5, other_id) as again:  # the end of the first connection is not that of the second
        (before_ms,) = [row["online_at"] for row in first if row["clientid"] == other_id]

        def is_online() -> bool:
            (row,) = [row for row in store.rows("clients") if row["clientid"] == other_id]
            return bool(row["state"] == 1 and row["online_at"] > before_ms)

        until(is_online, lambda: str(store.rows("clients")), PATIENCE_S)
        caught_up(broker, store)
        assert is_online()
        again.disconnect()
        other.close()
    keeps(broker, store, "clients", *({**one, "state": 0} for one in gone))


def clients_of_a_killed_broker(broker: SinksBroker, store: Store) -> None:
    with on(broker, 0, "dies") as one:
        keeps(broker, store, "clients", {"clientid": one.client_id, "state": 1})
        broker.kill()
    killed_ms = time.time_ns() // 1_000_000
    broker.start()
    keeps(broker, store, "clients", {"clientid": one.client_id, "state": 0})
    offline_at = until(lambda: store.rows("clients")[0]["offline_at"], lambda: str(store.rows("clients")), PATIENCE_S)
    assert offline_at >= killed_ms
    with Client(broker.address, 5, one.client_id):
        keeps(broker, store, "clients", {"clientid": one.client_id, "state": 1})


def subscriptions(broker: SinksBroker, store: Store) -> None:
    with on(broker, 0, "s") as client:
        client.subscribe("a/+", 1)
        client.subscribe("b/#", 0)
        client.subscribe('it\'s "b" ', 2)
        rows = [{"topic": "a/+", "qos": 1}, {"topic": "b/#", "qos": 0}, {"topic": 'it\'s "b" ', "qos": 2}]
        keeps(broker, store, "subscriptions", *({"clientid": client.client_id, **row} for row in rows))
        client.subscribe("a/+", 2)
        client.unsubscribe("b/#")
        rows = [{"topic": "a/+", "qos": 2}, rows[2]]
        keeps(broker, store, "subscriptions", *rows)
        for _ in range(50):  # many changes of one key within a batch
            client.subscribe("often", 1)
            client.unsubscribe("often")
        client.subscribe("often", 0)
        keeps(broker, store, "subscriptions", rows[0], rows[1], {"topic": "often", "qos": 0})


def messages(broker: SinksBroker, store: Store) -> None:
    begun_ms = time.time_ns() // 1_000_000
    with on(broker, 0, "p") as client:
        client.publish("in/0", b"not kept", 0)
        client.publish("out/1", b"not kept", 1)
        client.publish("in/1", BYTES, 1)
        client.publish("in/2", b"{}", 2)
        client.publish("in/3", b"", 1, retain=True)
        common = {"sender": client.client_id, "node": NODE}
        found = keeps(
            broker,
            store,
            "messages",
            {"topic": "in/1", "qos": 1, "retain": 0, "payload": BYTES, **common},
            {"topic": "in/2", "qos": 2, "retain": 0, "payload": b"{}", **common},
            {"topic": "in/3", "qos": 1, "retain": 1, "payload": b"", **common},
        )
    assert len({row["msgid"] for row in found}) == 3
    assert all(begun_ms - 1000 <= row["arrived"] <= time.time_ns() // 1_000_000 for row in found)


def retained(broker: SinksBroker, store: Store) -> None:
    with on(broker, 0, "r") as client:
        client.publish("kept/a", b"1", 1)
        client.publish("kept/a", b"2", 1, retain=True)
        client.publish("kept/b", BYTES, 0, retain=True)
        client.publish("other", b"2", 1, retain=True)
        keeps(broker, store, "retained", {"topic": "kept/a", "payload": b"2", "qos": 1}, {"topic": "kept/b", "payload": BYTES})
        client.publish("kept/b", b"", 1, retain=True)
        time.sleep(0.002)
        client.publish("kept/a", b"3", 1, retain=True)
        keeps(broker, store, "retained", {"topic": "kept/a", "payload": b"3", "sender": client.client_id})


def acknowledged(broker: SinksBroker, store: Store) -> None:
    with on(broker, 1, "sub") as client, on(broker, 0, "pub") as publisher:
        client.subscribe("#", 1)
        for number in range(3):
            publisher.publish("in/x", b"%d" % number, 1)
        publisher.publish("other", b"", 1)
        client.expect_messages(b"0", b"1", b"2", b"")
        client.ping()
        stored = [row["msgid"] for row in keeps(broker, store, "messages", *({"payload": b"%d" % one} for one in range(3)))]
        keeps(broker, store, "acked", {"clientid": client.client_id, "topic": "in/x", "mid": stored[-1]})


def acknowledged_messages_are_removed(broker: SinksBroker, store: Store) -> None:
    """Of a broker with on_acked = delete."""
    with on(broker, 0, "pub") as publisher:
        publisher.publish("in/x", b"stays", 1)
        keeps(broker, store, "messages", {"payload": b"stays"})
        with on(broker, 0, "sub") as client:
            client.subscribe("in/#", 1)
            for number in range(3):
                publisher.publish("in/y", b"%d" % number, 1)
            client.expect_messages(b"0", b"1", b"2")
            client.ping()
            keeps(broker, store, "messages", {"payload": b"stays"})


def everything(broker: SinksBroker, store: Store) -> None:
    """Rows of all parts, in clients that stay offline."""
    with on(broker, 0, "one") as client:
        client.subscribe("in/#", 1)
        client.subscribe("gone", 1)
        client.unsubscribe("gone")
        with on(broker, 1, "two") as publisher:
            for number in range(200):
                publisher.publish(f"in/{number % 5}", b"%d" % number, 1)
            publisher.publish("kept/a", b"1", 1, retain=True)
            publisher.publish("kept/b", b"1", 1, retain=True)
            publisher.publish("kept/b", b"", 1, retain=True)
            client.expect_messages(*(b"%d" % number for number in range(200)))
            publisher.disconnect()
        client.disconnect()
    keeps(broker, store, "clients", {"state": 0}, {"state": 0})
    keeps(broker, store, "subscriptions", {"topic": "in/#"})
    keeps(broker, store, "retained", {"topic": "kept/a"})
    stored = keeps(broker, store, "messages", *({"payload": b"%d" % number} for number in range(200)))
    keeps(broker, store, "acked", *({"topic": row["topic"], "mid": row["msgid"]} for row in stored[-5:]))


def repeats_change_nothing(broker: SinksBroker, store: Store) -> None:
    everything(broker, store)
    caught_up(broker, store)
    before = {part: store.rows(part) for part in PARTS}
    broker.kill_process(broker.child_pids("flows-0")[0])
    until(lambda: bool(broker.child_pids("flows-0")), lambda: str(broker.output[-5:]), PATIENCE_S)
    for part in PARTS:
        write_again(broker, store, part, 200 if part in ("messages", "acked") else 1)
    caught_up(broker, store)
    assert {part: store.rows(part) for part in PARTS} == before


def write_again(broker: SinksBroker, store: Store, part: str, count: int) -> None:
    """Has all rows of a part written again; returns when so many are."""
    id = f"{store.kind}:persistence-{store.kind}-{part}"
    with Control(broker.data_dir) as control:
        control.call("actions reset", id=id)
        until(lambda: not broker.action(id).get("success"), lambda: str(figures(broker, store)), PATIENCE_S)
        control.call("actions rewind", id=id, at="earliest")
    until(lambda: broker.action(id).get("success", 0) >= count, lambda: str(figures(broker, store)), PATIENCE_S)


def messages_of_qos_0(broker: SinksBroker, store: Store) -> None:
    """Of a broker with store_qos0."""
    with on(broker, 0, "p") as client:
        client.publish("in/0", b"0", 0)
        client.publish("in/1", b"1", 1)
        keeps(broker, store, "messages", {"payload": b"0", "qos": 0}, {"payload": b"1", "qos": 1})


OF_MESSAGES = {"messages": ["in/#"]}
SCENARIOS = {
    "clients online and offline": (EVERYTHING, clients_online_and_offline),
    "clients of a killed broker": (EVERYTHING, clients_of_a_killed_broker),
    "subscriptions": (EVERYTHING, subscriptions),
    "messages": (EVERYTHING, messages),
    "messages of QoS 0": ({**OF_MESSAGES, "store_qos0": True}, messages_of_qos_0),
    "retained": (EVERYTHING, retained),
    "acknowledged": (EVERYTHING, acknowledged),
    "acknowledged messages are removed": (
        {**OF_MESSAGES, "acked": ["in/#"], "on_acked": "delete"},
        acknowledged_messages_are_removed,
    ),
    "repeats change nothing": (EVERYTHING, repeats_change_nothing),
}
"""Name -> section, and what is kept then."""


def check(store: Store, name: str) -> None:
    """Runs a scenario."""
    section, scenario = SCENARIOS[name]
    with running(store, **section) as broker:
        scenario(broker, store)
