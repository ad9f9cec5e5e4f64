"""Exclusive subscriptions, `$exclusive/<filter>` (docs/features.md): one client at a time, over all workers and restarts."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config import load
from shardbroker.control import Control
from shardbroker.mqtt import packets as mqtt
from shardbroker.stores.exclusive import Claim, ExclusiveTable, ExclusiveTableFull
from shardbroker.worker.exclusive import RELEASES_A_PASS
from shardbroker.worker.sansio import SansIoChannel, SansIoRouter
from tests.behaviour.test_durability import ENDS, WORKERS, come_back, stay
from tests.harness import Broker, Client, Publish, client_id_on, until, wire
from tests.harness.wire import Suback
from tests.sim.simulator import MemoryRoutes

pytestmark = pytest.mark.own_broker
Connect = Callable[..., Client]
NewId = Callable[..., str]
TAKEN, OFF, OLD_FAILURE = 0x97, 0x8F, 0x80


@pytest.fixture
def on(broker_with: Callable[..., Broker]) -> Broker:
    return broker_with(mqtt__exclusive_subscription="true")


@pytest.fixture
def come(on: Broker, connect: Connect, new_id: NewId) -> Connect:
    """A client of that broker."""
    return lambda version=5, **options: connect(version, **{"on": on, "client_id": new_id(), **options})


def take(client: Client, filter: str) -> int:
    return client.subscribe(f"$exclusive/{filter}", 1, check=False).codes[0]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_second_one_is_refused_until_the_first_one_unsubscribes(
    come: Connect, topic: str, placement: str, version: int
) -> None:
    first, second = come(version), come(version)
    assert take(first, topic) == 1 and take(first, topic) == 1
    assert take(second, topic) == (TAKEN if version == 5 else OLD_FAILURE)
    second.publish(topic, b"1", 1)
    assert first.expect(Publish).topic == topic
    first.unsubscribe(f"$exclusive/{topic}")
    assert take(second, topic) == 1 and take(first, topic) != 1
    first.publish(topic, b"2", 1)
    assert second.expect(Publish).payload == b"2"
    first.expect_nothing_from(second, 1)


def test_others_may_have_the_filter_without_it(come: Connect, topic: str, placement: str) -> None:
    first, plain, shared = come(), come(), come()
    assert take(first, f"{topic}/+") == 1
    plain.subscribe(f"{topic}/+", 1)
    shared.subscribe(f"$share/g/{topic}/+", 1)
    plain.publish(f"{topic}/x", b"1", 1)
    for client in (first, plain, shared):
        assert client.expect(Publish).payload == b"1"


def test_a_plain_subscription_in_its_place_frees_the_filter(come: Connect, topic: str, placement: str) -> None:
    first, second = come(), come()
    take(first, topic)
    first.subscribe(topic, 1)
    assert take(second, topic) == 1
    first.unsubscribe(topic)
    assert take(first, topic) == TAKEN


@pytest.mark.parametrize("how", ["disconnect", "cut", "clean start", "kick", "expiry"])
def test_the_end_of_a_session_frees_it(on: Broker, come: Connect, topic: str, placement: str, new_id: NewId, how: str) -> None:
    name, second = new_id(), come()
    kept = {} if how in ("disconnect", "cut") else {"session_expiry_interval": 1 if how == "expiry" else 1000}
    first = come(client_id=name, properties=kept)
    take(first, topic)
    if how == "kick":
        with Control(on.data_dir) as control:
            control.call("clients kick", clientids=[name])
    else:
        (first.disconnect if how == "disconnect" else first.cut)()
    if how == "clean start":
        assert take(second, topic) == TAKEN
        come(client_id=name)
    until(lambda: take(second, topic) == 1)


def test_a_session_with_very_many_subscriptions_takes_its_own_again(come: Connect, topic: str, new_id: NewId) -> None:
    name = new_id()
    first = come(client_id=name, properties={"session_expiry_interval": 1000})
    for part in range(4):
        first.subscribe([(f"{topic}/{part}/{number}", 1) for number in range(100)])
    take(first, topic)
    again = come(client_id=name)
    assert take(again, topic) == 1


def test_of_those_that_race_one_wins(on: Broker, come: Connect, topic: str) -> None:
    clients = [come(client_id=client_id_on(number % 3, 3, f"race{topic[-4:].strip('-/')}{number}x")) for number in range(6)]
    for turn in range(40):
        filters = [f"$exclusive/{topic}/{turn}/{number}" for number in range(5)]
        for client in clients:
            client.send_raw(wire.subscribe(turn + 1, [(one, 1) for one in filters], version=5))
        codes = [client.expect(Suback).codes for client in clients]
        for of_one in zip(*codes, strict=True):
            assert sorted(of_one) == [1] + [TAKEN] * 5, codes
    with Control(on.data_dir) as control:
        rows = [row for row in control.pages("exclusive list", limit=7) if row["topic"].startswith(topic)]
    assert len({row["topic"] for row in rows}) == len(rows) == 200
    assert {row["clientid"] for row in rows} <= {client.client_id for client in clients}


def test_a_long_filter_has_one_owner_too(come: Connect, topic: str, placement: str) -> None:
    first, second = come(), come()
    long = f"{topic}/" + "x" * 600
    assert (take(first, long), take(second, long), take(second, long + "y")) == (1, TAKEN, 1)


@pytest.mark.parametrize("bad", ["$exclusive/", "$exclusive/$share/g/t", "$exclusive/$exclusive/t", "$exclusive/a/#/b"])
def test_what_is_no_exclusive_subscription_is_refused(come: Connect, bad: str) -> None:
    assert come().subscribe(bad, 1, check=False).codes == (OFF,)


def test_it_is_refused_while_it_is_switched_off(connect: Connect, topic: str) -> None:
    client = connect()
    assert take(client, topic) == OFF
    assert client.unsubscribe(f"$exclusive/{topic}").codes == (0x11,)


def test_options_and_retained_messages_are_those_of_any_subscription(come: Connect, topic: str) -> None:
    first, other = come(), come()
    other.publish(topic, b"kept", 1, retain=True)
    first.subscribe(f"$exclusive/{topic}", 1, no_local=True, properties={"subscription_identifier": 9})
    assert first.expect(Publish, payload=b"kept", retain=True).properties["subscription_identifier"] in (9, [9])
    first.publish(topic, b"own", 1)
    first.expect_nothing_from(other, 1)
    other.publish(topic, b"", 1, retain=True)


# --- through the end of processes -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["process", "machine"])
def own(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = {"durability.level": request.param, "mqtt.exclusive_subscription": "true"}
    with (
        tempfile.TemporaryDirectory(prefix="shardbroker-test-") as data_dir,
        Broker(WORKERS, settings, data_dir=Path(data_dir)) as broker,
    ):
        yield broker


@pytest.mark.parametrize(("own", "end"), [*(("process", end) for end in ENDS), ("machine", ENDS[2])], indirect=["own"])
def test_it_stays_with_a_session_that_stays(own: Broker, end: str) -> None:
    names = [client_id_on(worker, WORKERS, f"s{worker}x") for worker in range(WORKERS)]
    for name in names:
        with stay(own, name) as client:
            assert take(client, f"of/{name}") == take(client, f"left/{name}") == 1
            client.unsubscribe(f"$exclusive/left/{name}")
    for _ in range(2):
        come_back(own, end)
        for name, other in zip(names, reversed(names), strict=True):
            with stay(own, other) as client:
                assert take(client, f"of/{name}") == TAKEN
    with stay(own, names[0]) as client:
        client.unsubscribe(f"of/{names[0]}")
    with stay(own, names[1]) as client:
        assert take(client, f"of/{names[0]}") == take(client, f"left/{names[0]}") == 1


def test_a_session_that_ended_with_its_worker_frees_it(own: Broker) -> None:
    with Client(own.address, 5, client_id_on(0, WORKERS, "gone")) as first, stay(own, client_id_on(1, WORKERS, "next")) as second:
        assert (take(first, "t"), take(second, "t")) == (1, TAKEN)
        (pid,) = own.child_pids("sb-worker-0")
        own.kill_process(pid)
        until(lambda: take(second, "t") == 1)


class Watched(ExclusiveTable):
    """Counts write transactions; `is_full` makes them fail."""

    transactions = 0
    is_full = False

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        self.transactions += 1
        if self.is_full:
            raise ExclusiveTableFull("full")
        with super()._writing() as txn:
            yield txn


def holder_of(filters: list[bytes], table: Watched) -> tuple[SansIoRouter, SansIoChannel]:
    """A router and the connection that holds these filters."""
    now_ms = 1_700_000_000_000
    router = SansIoRouter(load(None, {}, ["mqtt.exclusive_subscription=true"]).settings, MemoryRoutes(), 0, now_ms)
    assert router.subscriptions.keep_exclusive(table, router.sessions) == []
    channel = router.connect("127.0.0.1:1")
    channel.receive(mqtt.Connect(5, b"holder").encode(5))
    channel.receive(mqtt.Subscribe(1, [(b"$exclusive/" + filter, 0) for filter in filters]).encode(5))
    router.advance(now_ms)
    assert {table.owner(filter) is not None for filter in filters} == {True}
    return router, channel


def test_those_that_end_together_are_released_in_one_transaction_a_pass(tmp_path: Path) -> None:
    table, filters = Watched(tmp_path / "table"), [b"f/%d" % i for i in range(RELEASES_A_PASS + 100)]
    router, channel = holder_of(filters, table)
    channel.receive(mqtt.Unsubscribe(2, filters).encode(5))
    for step, left in ((1, 100), (2, 0), (3, 0)):
        before = table.transactions
        router.advance(1_700_000_000_000 + 10 * step)
        assert table.transactions - before == (step < 3)
        assert len(table.page(b"", 10_000)[0]) == left


def test_those_that_a_full_table_keeps_are_released_later(tmp_path: Path) -> None:
    table = Watched(tmp_path / "table")
    router, channel = holder_of([b"a", b"b"], table)
    channel.receive(mqtt.Unsubscribe(2, [b"a", b"b"]).encode(5))
    table.is_full = True
    before = table.transactions
    for step in range(10):
        router.advance(1_700_000_000_000 + step)
    assert table.transactions - before == 1, "it is not tried in each pass"
    table.is_full = False
    assert len(table.page(b"", 10)[0]) == 2
    router.advance(1_700_000_001_000)
    assert table.page(b"", 10)[0] == []


def test_a_table_says_what_somebody_else_has_got_meanwhile(tmp_path: Path) -> None:
    table = ExclusiveTable(tmp_path / "table")
    assert table.replace(0, []) == [] and not (tmp_path / "table").exists()
    mine, theirs = Claim(b"t", 0, 1, b"mine"), Claim(b"t", 1, 2, b"theirs")
    assert table.claim(theirs) and not table.claim(mine)
    assert table.replace(0, [mine, Claim(b"u", 0, 1, b"mine")]) == [mine]
    assert table.owner(b"t") == theirs and table.page(b"", 1) == ([theirs], b"t")
    assert table.replace(0, []) == [] and table.owner(b"u") is None
    assert table.claim(mine, ended=2) and table.owner(b"t") == mine
    table.release([(b"t", 2)])
    assert table.owner(b"t") == mine
    table.release([(b"t", 1)])
    assert table.page(b"", 10) == ([], b"")


def test_what_was_granted_in_a_cluster_is_confirmed_or_taken_back(tmp_path: Path) -> None:
    table = ExclusiveTable(tmp_path / "table")
    granted = Claim(b"t", 0, 1, b"mine", 9, False)
    assert table.grant(granted) and table.owner(b"t") == granted
    assert not table.grant(Claim(b"t", 1, 2, b"theirs", 10, False))
    assert not table.confirm(b"t", 2) and table.confirm(b"t", 1)
    assert not table.take_back(b"t") and table.owner(b"t") == granted._replace(confirmed=True)
    assert table.replace(0, [Claim(b"t", 0, 1, b"mine")]) == [], "the stamp of a claim outlives the worker"
    assert table.owner(b"t") == granted._replace(confirmed=True)
    assert table.grant(Claim(b"t", 1, 3, b"mine", 11, False)), "another session of the client"
    assert not table.confirm(b"t", 1)
    assert table.take_back(b"t") and table.owner(b"t") is None and not table.confirm(b"t", 3)
