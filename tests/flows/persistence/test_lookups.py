"""Look-ups of new subscriptions: the database is away, many SUBSCRIBEs, messages of another broker; against PostgreSQL."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shardbroker.control import Control
from tests.flows.persistence.lookups import SECTION, published, received
from tests.flows.persistence.scenario import PATIENCE_S, caught_up, keeps, on, running
from tests.flows.persistence.test_pgsql import TABLES, Database
from tests.flows.sinks.broker import SinksBroker
from tests.harness import Client, until, wire
from tests.harness.wire import Publish
from tests.servers.postgresql import Postgresql, postgresql

pytestmark = pytest.mark.own_broker
QUERIES = 4
TOPICS = 1500
"""Of which a client subscribes to all and leaves some: it has at most the 1,000 of mqtt.max_subscriptions."""
WITH_MESSAGES = (0, 700, 1400)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with postgresql() as found:
        yield found


@pytest.fixture
def store(server: Postgresql) -> Iterator[Database]:
    yield Database(server)
    server.psql(f"DROP TABLE IF EXISTS {', '.join(TABLES.values())}")


def test_a_database_that_dies_holds_messages_back_and_loses_none(store: Database) -> None:
    payloads = [b"%03d" % number for number in range(300)]
    with running(store, **SECTION) as broker:
        published(broker, "in/x", payloads)
        published(broker, "in/y", [b"y"], retain=True)
        caught_up(broker, store)
        with on(broker, 1, "s", properties={"receive_maximum": 10}, auto_ack=False) as client, on(broker, 0, "other") as other:
            client.subscribe("in/x", 1)
            got = [client.expect(Publish, PATIENCE_S) for _ in range(10)]
            store.server.server.kill()
            try:
                other.subscribe("in/x", 1)
                begun_s = time.monotonic()
                other.subscribe("in/y", 1)  # the broker has the retained message itself
                assert other.expect(Publish, PATIENCE_S).payload == b"y"
                assert time.monotonic() - begun_s < 10
                published(broker, "live", [b"live"])
                other.subscribe("live", 1)
                published(broker, "live", [b"live"])
                assert other.expect(Publish, PATIENCE_S).payload == b"live"
            finally:
                store.server.server.start()
            for message in got:
                client.ack(message)
            while len(got) < len(payloads):
                got.append(client.expect(Publish, PATIENCE_S))
                client.ack(got[-1])
            assert [one.payload for one in got] == payloads
            received(other, *payloads)
        until(lambda: any("lookup repeated" in line for line in broker.output))
        broker.expects("lookup repeated|sink|action|connector")


def test_many_subscriptions_at_once_cost_neither_the_database_nor_the_broker_much(store: Database) -> None:
    with running(store, **SECTION) as broker:
        published(broker, "in/last", [b"last"])
        for number in WITH_MESSAGES:
            published(broker, f"in/{number}", [b"%d" % number])
        caught_up(broker, store)
        workers = [psutil.Process(pid) for pid in (*broker.child_pids("worker-0"), *broker.child_pids("flows-0"))]
        before = sum(one.memory_info().rss for one in workers)
        most = 0
        with on(broker, 0, "flood") as client, on(broker, 0, "one") as one:
            for first in range(0, TOPICS, 100):
                client.send_raw(wire.subscribe(first + 1, [(f"in/{first + at}", 1) for at in range(100)], version=5))
                client.send_raw(wire.unsubscribe(first + 2, [f"in/{first + at}" for at in range(0, 100, 2) if at % 10]))
            begun_s = time.monotonic()
            one.subscribe("in/last", 1)
            while (got := one.recv(0.05)) is None:  # its turn is not behind those of the other client
                most = max(most, int(store.server.psql("SELECT count(*) FROM pg_stat_activity WHERE state = 'active'")))
                assert time.monotonic() - begun_s < PATIENCE_S
            assert isinstance(got, Publish) and got.payload == b"last"
            found: set[bytes] = set()
            until(lambda: _taken(client, found) == {b"%d" % number for number in WITH_MESSAGES}, lambda: str(found), PATIENCE_S)
        assert most <= 2 * QUERIES + 2
        assert sum(one.memory_info().rss for one in workers) - before < 60 << 20


def _taken(client: Client, found: set[bytes]) -> set[bytes]:
    packet = client.recv(1.0)
    if isinstance(packet, Publish):
        found.add(packet.payload)
    return found


def test_the_newer_retained_message_is_delivered(store: Database) -> None:
    section = {"connection": dict(store.settings), **SECTION}
    with (
        running(store, **SECTION) as broker,
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place,
        SinksBroker(1, Path(place) / "data", {"persistence.pgsql": section}) as second,
    ):
        published(broker, "kept/a", [b"old"], retain=True)
        published(broker, "kept/b", [b"old"], retain=True)
        keeps(broker, store, "retained", {"topic": "kept/a"}, {"topic": "kept/b"})
        time.sleep(0.01)
        with Client(second.address, 5, "second") as client:
            client.publish("kept/a", b"new", 1, retain=True)
        keeps(broker, store, "retained", {"topic": "kept/a", "payload": b"new"}, {"topic": "kept/b", "payload": b"old"})
        store.server.psql("UPDATE mqtt_retain SET msgid = repeat('0', 32), payload = 'older' WHERE topic = 'kept/b'")
        with on(broker, 1, "s") as client:
            client.subscribe("kept/a", 1)
            assert [one.retain for one in received(client, b"new")] == [True]
            client.subscribe("kept/b", 1)
            assert [one.retain for one in received(client, b"old")] == [True]


def test_two_processes_flows_know_what_the_other_has_written(store: Database) -> None:
    section = {"connection": dict(store.settings), **SECTION}
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as place,
        SinksBroker(2, Path(place) / "data", {"persistence.pgsql": section}, {"flows.processes": 2}) as broker,
    ):
        with Control(broker.data_dir) as control:
            control.call("persistence create")
        for number in range(4):
            with on(broker, number % 2, f"pub{number}") as publisher:
                for at in range(50):
                    publisher.publish("in/x", b"%d.%d" % (number, at), 1)
            with on(broker, 1 - number % 2, f"s{number}") as client:
                client.subscribe("in/x", 1)
                received(client, *(b"%d.%d" % (one, at) for one in range(number + 1) for at in range(50)))


def test_rows_of_others_are_left_out(store: Database) -> None:
    zeros = "repeat('0', 31)"
    rows = f"('00', 'in/x', 1, '', 1), ({zeros} || 'X', 'in/x', 1, '', 1), ({zeros} || '1', 'in/x', 7, '', 1)"
    with running(store, **SECTION) as broker:
        store.server.psql(f"INSERT INTO mqtt_msg (msgid, topic, qos, payload, arrived) VALUES {rows}")
        store.server.psql("INSERT INTO mqtt_retain (topic, msgid, qos, payload, arrived) VALUES ('kept/x', 'any', 1, 'kept', 1)")
        published(broker, "in/x", [b"1"])
        with on(broker, 1, "s") as client:
            client.subscribe("in/x", 1)
            received(client, b"1")
            client.subscribe("kept/x", 1)
            assert [one.retain for one in received(client, b"kept")] == [True]
        until(lambda: any("lookup rows not used" in line for line in broker.output))
        broker.expects("lookup rows not used")
