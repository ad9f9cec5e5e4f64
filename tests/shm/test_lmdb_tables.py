"""Route table, retained store, registry: against brute force, and with writers that are killed."""

import os
import signal
import time
from pathlib import Path

import multiprocess
from hypothesis import given, settings
from hypothesis import strategies as st

from shm.registry import Registry
from shm.retained import RetainedMessage, RetainedStore
from shm.routes import Group, RouteChange, RouteTable, matches, worker_destination

LEVELS = [b"a", b"b", b"", b"ab", b"$x", b"long" * 150]
topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map(b"/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.sampled_from([*LEVELS, b"+"]), min_size=1, max_size=4), st.booleans())
    .map(lambda parts: b"/".join([*parts[0], *([b"#"] if parts[1] else [])]))
    .filter(bool)
)


def brute_force(filter: bytes, topic: bytes) -> bool:
    """Ten lines that are plainly right."""
    if topic[:1] == b"$" and filter[:1] in b"+#":
        return False
    f, t = filter.split(b"/"), topic.split(b"/")
    while f and f[0] != b"#":
        if not t or f[0] not in (b"+", t[0]):
            return False
        f, t = f[1:], t[1:]
    return bool(f) or not t


@settings(max_examples=60, deadline=None)
@given(st.lists(filters, unique=True, max_size=25), st.lists(topics, max_size=10))
def test_routes_match_as_brute_force_does(tmp_path_factory: object, stored: list[bytes], published: list[bytes]) -> None:
    table = RouteTable(tmp_path_factory.mktemp("routes"), map_bytes=1 << 22)  # type: ignore[attr-defined]
    table.update(RouteChange(True, filter, i % 3) for i, filter in enumerate(stored))
    for topic in published:
        expected = [filter for filter in stored if brute_force(filter, topic)]
        found = table.match(topic)
        assert sorted(found.filters) == sorted(expected)
        assert found.destinations == tuple(sorted({stored.index(filter) % 3 for filter in expected}))
        assert [filter for filter in stored if matches(filter, topic)] == expected
    assert sorted(table.filters()) == sorted(stored)
    assert sum(table.purge(i) for i in range(3)) == len(stored)
    assert table.count() == 0
    table.close()


def test_shared_groups_and_removal(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 22)
    long_group = b"g" * 600
    table.update(
        RouteChange(True, b"t/+", worker_destination(worker), group, key)
        for group in (b"g", long_group)
        for worker, key in ((1, 7), (0, 9))
    )
    table.update([RouteChange(True, b"t/+", 2), RouteChange(True, b"t/+", 2)])
    match = table.match(b"t/x")
    assert match.filters == [b"t/+"]
    assert match.destinations == (2,)
    assert sorted(match.groups) == [Group(name, b"t/+", ((0, 9), (1, 7))) for name in (b"g", long_group)]
    table.update([RouteChange(False, b"t/+", 2), RouteChange(False, b"never", 2), RouteChange(False, b"t/+", 1, b"g", 7)])
    match = table.match(b"t/x")
    assert match.filters == []
    assert Group(b"g", b"t/+", ((0, 9),)) in match.groups
    table.close()


def _write_for_ever(path: Path, seed: int) -> None:
    table = RouteTable(path)
    number = 0
    while True:
        number += 1
        table.update(RouteChange(number % 3 != 0, b"f/%d/%d" % (seed, i), seed) for i in range(50))


def test_killed_writers_leave_nothing_locked(tmp_path: Path) -> None:
    context = multiprocess.get_context("fork")
    for round_number in range(10):
        writers = [context.Process(target=_write_for_ever, args=(tmp_path / "routes", seed)) for seed in range(2)]
        for writer in writers:
            writer.start()
        time.sleep(0.05 + 0.01 * round_number)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
    table = RouteTable(tmp_path / "routes")
    table.update([RouteChange(True, b"after", 1)])
    assert table.match(b"after").destinations == (1,)
    table.close()


def message(topic: bytes, expires_ms: int = 0) -> RetainedMessage:
    return RetainedMessage(topic, b"payload", 1, b"", b"i" * 16, 1, expires_ms, b"publisher")


@settings(max_examples=60, deadline=None)
@given(st.lists(topics, unique=True, max_size=25), filters, st.integers(1, 5))
def test_retained_scan_finds_what_brute_force_finds(
    tmp_path_factory: object, stored: list[bytes], filter: bytes, limit: int
) -> None:
    store = RetainedStore(tmp_path_factory.mktemp("retained"), map_bytes=1 << 22)  # type: ignore[attr-defined]
    store.update([message(topic) for topic in stored])
    found: list[bytes] = []
    cursor = None
    for _ in range(len(stored) + 2):
        part, cursor = store.scan(filter, cursor, limit, 1 << 20, 5)
        assert len(part) <= limit
        found += [one.topic for one in part]
        if cursor is None:
            break
    assert cursor is None
    assert sorted(found) == sorted(topic for topic in stored if brute_force(filter, topic))
    store.close()


def test_retained_expiry_order_and_limits(tmp_path: Path) -> None:
    store = RetainedStore(tmp_path / "retained", map_bytes=1 << 22, max_messages=2)
    assert store.update([message(b"a", 100), message(b"b"), message(b"c"), b"b", message(b"d")]) == 1
    assert [one.topic for one in store.scan(b"#", None, 10, 1 << 20, 99)[0]] == [b"a", b"d"]
    assert [one.topic for one in store.scan(b"#", None, 10, 1 << 20, 100)[0]] == [b"d"]
    assert store.clear_expired(100, 10) == 1
    assert store.get(b"a") is None
    assert store.get(b"d") == message(b"d")
    assert store.count() == 1
    store.close()


def test_a_damaged_retained_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "retained"
    path.mkdir()
    (path / "data.mdb").write_bytes(b"not a database" * 1000)
    store = RetainedStore(path, map_bytes=1 << 22)
    assert store.set_aside is not None
    assert (store.set_aside / "data.mdb").read_bytes().startswith(b"not a database")
    store.update([message(b"a")])
    assert store.count() == 1
    store.close()


def test_registry(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry", create=True)
    long = b"x" * 5000
    registry.update({b"a": {"peer": "p"}, long: {"peer": "q"}}, [b"never"])
    assert registry.get(long) == {"client_id": long, "peer": "q"}
    registry.update({}, [b"a"])
    assert [record["client_id"] for record in registry.items()] == [long]
    registry.close()
    emptied = Registry(tmp_path / "registry", create=True)
    assert list(emptied.items()) == []
    emptied.close()
