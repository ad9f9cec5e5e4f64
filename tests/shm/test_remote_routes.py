"""Routes of other nodes: the same cases for the table in LMDB and for that of the simulation, and what only the former has."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cluster import rlog
from shardbroker.cluster.messages import Route
from shardbroker.cluster.rlog import DumpSlots, RouteKey, RouteReceiver, RouteSender
from shardbroker.cluster.view import RouteState
from shm import remote_routes
from shm.destinations import DestinationKind, destination
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes
from shm.route_log import LmdbRouteLog
from shm.routes import Group, RouteChange, RouteTable
from tests.cluster.sim.disk import MemoryRoutes

LONG = b"long/" + b"x" * 600
LONG_WILD = b"+/" + b"y" * 600
NODE_1, NODE_2, NODE_3 = (destination(DestinationKind.NODE, number) for number in (1, 2, 3))


@pytest.fixture
def lmdb_store(tmp_path: Path) -> Iterator[RemoteRoutes]:
    store = RemoteRoutes(tmp_path / "remote", map_bytes=1 << 26)
    yield store
    store.close()


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest) -> Any:
    return MemoryRoutes() if request.param == "memory" else request.getfixturevalue("lmdb_store")


def rows_of(store: Any, node: int) -> dict[RouteKey, Route]:
    """Returns what a store has of one node."""
    if isinstance(store, MemoryRoutes):
        return store.routes_of(node)
    found = {}
    for filter, routes in store.page(None, 100_000)[0]:
        for to, group, members in routes:
            if to == destination(DestinationKind.NODE, node):
                assert (filter, group) not in found
                found[filter, group] = Route(filter, group, members)
    return found


def sweep(store: Any, node: int, generation: int, most: int = 2) -> None:
    while not store.sweep(node, generation, most):
        pass


ALL = [Route(b"a"), Route(b"a/+"), Route(b"a/+", b"g", 3), Route(b"a", b"g" * 600, 2), Route(LONG), Route(LONG_WILD, b"h", 4)]


def test_dump_then_log(store: Any) -> None:
    assert (store.mark(7), store.count(7)) == (None, 0)
    generation = store.begin(7)
    store.put(7, generation, ALL, None)
    sweep(store, 7, generation)
    assert store.mark(7) is None and store.count(7) == len(ALL)
    store.complete(7, (99, 5))
    changes = [Route(b"a", members=0), Route(b"new"), Route(b"a/+", b"g", 4), Route(b"no such", members=0), Route(LONG, members=0)]
    store.put(7, generation, changes, (99, 9))
    assert store.mark(7) == (99, 9)
    wanted = [ALL[1], Route(b"a/+", b"g", 4), *ALL[3:4], ALL[5], Route(b"new")]
    assert rows_of(store, 7) == {(route.filter, route.group): route for route in wanted}
    assert store.count(7) == len(wanted)


def test_rows_that_a_dump_does_not_renew_stay_until_swept(store: Any) -> None:
    for node in (7, 8):
        store.put(node, store.begin(node), ALL, None)
        store.complete(node, (1, 1))
    generation = store.begin(7)
    assert store.mark(7) is None
    renewed = [ALL[1], Route(ALL[2].filter, b"g", 9), ALL[4], Route(b"other")]
    store.put(7, generation, renewed[:2], None)
    store.put(7, generation, renewed[2:], None)
    assert store.count(7) == len(ALL) + 1 and len(rows_of(store, 7)) == len(ALL) + 1
    sweep(store, 7, generation)
    assert rows_of(store, 7) == {(route.filter, route.group): route for route in renewed}
    assert store.count(7) == len(renewed)
    store.complete(7, (2, 40))
    assert store.mark(7) == (2, 40)
    assert store.mark(8) == (1, 1) and rows_of(store, 8) == {(route.filter, route.group): route for route in ALL}


def test_a_dump_that_begins_again(store: Any) -> None:
    first = store.begin(7)
    store.put(7, first, [Route(b"a"), Route(b"b")], None)
    second = store.begin(7)
    assert second != first
    store.put(7, second, [Route(b"b"), Route(b"c")], None)
    sweep(store, 7, second)
    assert {filter for filter, _ in rows_of(store, 7)} == {b"b", b"c"}


def test_entries_beside_a_sweep(store: Any) -> None:
    store.put(7, store.begin(7), [Route(b"old/%d" % number) for number in range(20)], None)
    generation = store.begin(7)
    store.put(7, generation, [Route(b"old/3")], None)
    assert not store.sweep(7, generation, 2)
    store.put(7, generation, [Route(b"a"), Route(b"old/19"), Route(b"old/3", members=0)], None)
    sweep(store, 7, generation)
    assert {filter for filter, _ in rows_of(store, 7)} == {b"a", b"old/19"}
    assert store.count(7) == 2


def test_a_resumed_log_needs_no_generation(store: Any) -> None:
    store.put(7, store.begin(7), [Route(b"a"), Route(b"b")], None)
    store.complete(7, (1, 2))
    store.put(7, 0, [Route(b"c"), Route(b"a", members=0)], (1, 4))
    assert {filter for filter, _ in rows_of(store, 7)} == {b"b", b"c"} and store.count(7) == 2
    generation = store.begin(7)
    store.put(7, generation, [Route(b"c")], None)
    sweep(store, 7, generation)
    assert {filter for filter, _ in rows_of(store, 7)} == {b"c"}


@pytest.mark.parametrize("seed", range(4))
def test_streams_of_routes_from_a_log_in_lmdb(tmp_path: Path, store: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sender and receiver of the cluster's core between two tables: changes during dumps, resumption, an overrun log."""
    monkeypatch.setattr(rlog, "BATCH_ROUTES", 5)
    monkeypatch.setattr(rlog, "WINDOW_BATCHES", 2)
    rng = random.Random(seed)
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 26, log=True, log_entries=40)
    log = LmdbRouteLog(table, Route)
    filters = [*(b"t/%d" % number for number in range(30)), b"+/a", b"#", LONG, LONG_WILD]

    def churn(count: int) -> None:
        for _ in range(count):
            group = rng.choice((b"", b"", b"g", b"h" * 600))
            member = rng.randrange(9) if group else 0
            table.update([RouteChange(rng.random() < 0.7, rng.choice(filters), rng.randrange(3), group, member)])

    churn(60)
    log_id = 5
    for _ in range(12):
        sender, receiver = RouteSender(log, log_id, 2, DumpSlots(), 0), RouteReceiver(store, 1, log_id)
        up: list[Any] = [*receiver.start()]
        for turn in range(200):
            down = [answer for message in up for answer in sender.receive(message, 0)] + sender.pump(0)
            up = [answer for message in down for answer in receiver.receive(message)] + receiver.work()
            if turn < 10:
                churn(rng.randrange(12))
            elif turn < 20 and rng.random() < 0.05:
                break  # the connection breaks
        else:
            assert receiver.state == RouteState.NORMAL and sender.is_complete and sender.lag == 0
            assert rows_of(store, 1) == {(row.filter, row.group): row for row in log.rows(None, 10_000)}
        sender.close()
        if rng.random() < 0.2:
            log_id += 1
    table.close()


def test_old_rows_serve_while_an_overrun_log_is_followed_by_another_dump(tmp_path: Path, lmdb_store: RemoteRoutes) -> None:
    """A slow peer misses more than the log keeps. Routes that have not changed are found at every moment, none twice."""
    kept, count = 100, 9_000
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 27, log=True, log_entries=kept)
    log = LmdbRouteLog(table, Route)
    filters = [b"bench/%d/#" % number for number in range(count)]
    table.update([RouteChange(True, filter, 0) for filter in filters])
    sender, receiver = RouteSender(log, 5, 2, DumpSlots(), 0), RouteReceiver(lmdb_store, 1, 5)

    def stream(up: list[Any], least: int) -> None:
        for _ in range(200):
            down = [answer for message in up for answer in sender.receive(message, 0)] + sender.pump(0)
            up = [answer for message in down for answer in receiver.receive(message)] + receiver.work()
            assert lmdb_store.count(1) >= least
            if not up and sender.is_complete and sender.lag == 0 and receiver.state == RouteState.NORMAL:
                return
        pytest.fail(f"{receiver.state} after 200 rounds, {sender.lag} behind")

    stream([*receiver.start()], 0)
    assert (sender.bootstraps, lmdb_store.count(1)) == (1, count)
    gone, added = filters[:500], [b"later/%d/#" % number for number in range(10 * kept)]
    table.update([RouteChange(False, filter, 0) for filter in gone] + [RouteChange(True, filter, 0) for filter in added])
    stream([], count - len(gone))
    assert sender.bootstraps == 2
    assert rows_of(lmdb_store, 1).keys() == {(filter, b"") for filter in filters[500:] + added}
    table.close()


# --- only in LMDB ---------------------------------------------------------------------------------------------------


def test_state_outlives_the_process(tmp_path: Path) -> None:
    store = RemoteRoutes(tmp_path / "remote", map_bytes=1 << 24)
    store.put(7, store.begin(7), ALL, None)
    store.complete(7, (1, 2))
    generation = store.begin(8)
    store.put(8, generation, ALL[:2], None)
    store.close()
    again = RemoteRoutes(tmp_path / "remote", map_bytes=1 << 24)
    assert (again.mark(7), again.count(7), again.mark(8), again.count(8)) == ((1, 2), len(ALL), None, 2)
    assert again.begin(8) > generation and again.nodes() == [7, 8]
    sweep(again, 8, 0xFFFF)
    assert again.count(8) == 0
    again.close()


def test_purge_in_batches_leaves_nothing_of_a_node(lmdb_store: RemoteRoutes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_routes, "SWEEP_VISITS", 3)
    for node in (7, 8):
        lmdb_store.put(node, lmdb_store.begin(node), ALL, None)
        lmdb_store.complete(node, (1, 1))
    calls = 1
    while not lmdb_store.purge(7, 2):
        calls += 1
        assert lmdb_store.mark(7) is None
    assert calls > len(ALL) // 2 and lmdb_store.nodes() == [8]
    assert rows_of(lmdb_store, 7) == {} and len(rows_of(lmdb_store, 8)) == len(ALL)
    assert lmdb_store.purge(8, 1000) or lmdb_store.purge(8, 1000) or lmdb_store.purge(8, 1000) or lmdb_store.purge(8, 1000)
    with lmdb_store._env.begin() as txn:
        assert txn.stat(lmdb_store._long)["entries"] == 0


def test_a_sweep_goes_on_where_each_begins_a_dump(lmdb_store: RemoteRoutes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is gone is removed so; rows of others may be more than one call visits."""
    monkeypatch.setattr(remote_routes, "SWEEP_VISITS", 3)
    for node in (7, 8):
        lmdb_store.put(node, lmdb_store.begin(node), [Route(b"%d/%d" % (15 - node, number)) for number in range(10)], None)
    for _ in range(20):
        if lmdb_store.sweep(7, lmdb_store.begin(7), 2):
            break
    assert (lmdb_store.count(7), lmdb_store.count(8)) == (0, 10)


def test_epochs_are_raised_for_what_changes(tmp_path: Path) -> None:
    epochs = Epochs.create(str(tmp_path / "epochs"))
    store = RemoteRoutes(tmp_path / "remote", epochs, map_bytes=1 << 24)
    topics = [b"a", b"b", b"c", b"d"]

    def raised(action: Callable[[], object]) -> set[bytes]:
        before = {topic: epochs.of(topic) for topic in topics}
        action()
        return {topic for topic in topics if epochs.of(topic) != before[topic]}

    rows = [Route(b"a"), Route(b"b", b"g", 2), Route(b"d/#")]
    first = store.begin(7)
    assert raised(lambda: store.put(7, first, rows, None)) == {b"a", b"b", b"d"}
    second = store.begin(7)
    assert raised(lambda: store.put(7, second, rows[:2], None)) == set()  # renewed
    assert raised(lambda: store.put(7, second, [Route(b"b", b"g", 3)], (1, 1))) == {b"b"}
    assert raised(lambda: sweep(store, 7, second)) == {b"d"}
    assert raised(lambda: store.put(7, second, [Route(b"a", members=0), Route(b"c", members=0)], (1, 2))) == {b"a"}
    store.close()
    epochs.unlink()


def test_one_look_up_over_both_tables(tmp_path: Path) -> None:
    remote = RemoteRoutes(tmp_path / "remote", map_bytes=1 << 24)
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 24, remote=remote, node=2)
    long_group = b"g" * 600
    table.update([
        RouteChange(True, b"a/+", 0), RouteChange(True, b"a/b", 1), RouteChange(True, b"a/b", 0, b"g", 11),
        RouteChange(True, b"a/b", 1, b"g", 12), RouteChange(True, b"a/#", 1, long_group, 13),
    ])  # fmt: skip
    assert table.match(b"a/b").destinations == (0, 1)
    remote.put(3, remote.begin(3), [Route(b"a/b"), Route(b"#"), Route(b"a/b", b"g", 2), Route(b"a/#", long_group, 1)], None)
    remote.put(1, remote.begin(1), [Route(b"a/b"), Route(b"a/b", b"g", 1), Route(b"+/b", b"g", 3)], None)
    found = table.match(b"a/b")
    assert sorted(found.filters) == [b"a/+", b"a/b"]  # those with subscribers here
    assert found.destinations == (0, 1, NODE_1, NODE_3)
    assert found.groups == [
        Group(b"g", b"+/b", ((NODE_1, 0), (NODE_1, 1), (NODE_1, 2))),
        Group(b"g", b"a/b", ((NODE_1, 0), (0, 11), (1, 12), (NODE_3, 0), (NODE_3, 1))),
        Group(long_group, b"a/#", ((1, 13), (NODE_3, 0))),
    ]
    assert table.match(b"x").destinations == (NODE_3,) and table.match(b"x").groups == []
    search = table.search(b"a/b")
    steps = 1
    while (stepped := search.step(1)) is None:
        steps += 1
        assert search.visits <= 3
    assert stepped == found and steps > 4
    remote.close()
    table.close()


def test_a_large_group_on_another_node_has_evenly_spaced_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shm.routes.NODE_MEMBERS_MAX", 4)
    remote = RemoteRoutes(tmp_path / "remote", map_bytes=1 << 24)
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 24, remote=remote, node=1)
    remote.put(2, remote.begin(2), [Route(b"a", b"g", 1000)], None)
    assert [index for _, index in table.match(b"a").groups[0].members] == [0, 250, 500, 750]
    remote.close()
    table.close()
