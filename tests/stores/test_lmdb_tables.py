"""Route table, retained store, registry: against brute force, and with writers that are killed."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import multiprocess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.stores import registry, retained
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedMessage, RetainedStore
from shm import routes
from shm.destinations import worker_destination
from shm.routes import (
    Group,
    RouteChange,
    RouteTable,
    RouteTableFull,
    matches,
)
from tests.shm.processes import running

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
    for below in (b"a/", b"ab/", b"$x/", b"/", b"a/b/"):
        assert sorted(table.filters(below)) == sorted(filter for filter in stored if filter.startswith(below))
    assert sum(table.purge(i) for i in range(3)) == len(stored)
    assert table.count() == 0
    table.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(filters, unique=True, max_size=25), topics, st.integers(1, 5), st.booleans())
def test_a_search_in_steps_finds_the_same(
    tmp_path_factory: object, stored: list[bytes], topic: bytes, most: int, long: bool
) -> None:
    table = RouteTable(tmp_path_factory.mktemp("routes"), map_bytes=1 << 22)  # type: ignore[attr-defined]
    tail = b"/" + b"x" * 600 if long else b""
    table.update(RouteChange(True, filter + tail, i % 3) for i, filter in enumerate(stored) if not filter.endswith(b"#"))
    table.update(RouteChange(True, filter, i % 3) for i, filter in enumerate(stored) if filter.endswith(b"#"))
    expected, search, found = table.match(topic + tail), table.search(topic + tail), None
    for _ in range(1000):
        if (found := search.step(most)) is not None:
            break
        assert search.visits >= most
    assert found is not None
    assert (sorted(found.filters), found.destinations) == (sorted(expected.filters), expected.destinations)
    table.close()


def test_a_search_goes_on_where_filters_have_gone(tmp_path: Path) -> None:
    """Filters longer than a key, which are compared one by one, and are removed between two steps; others stay."""
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 22)
    tail = b"/" + b"x" * 600
    gone = [b"+/%d" % n + tail for n in range(40)]
    stays = [b"+/+" + tail, b"a/+" + tail, b"a/#"]
    table.update(RouteChange(True, filter, 1) for filter in gone + stays)
    search, found = table.search(b"a/b" + tail), None
    for filter in gone:
        if (found := search.step(1)) is not None:
            break
        table.update([RouteChange(False, filter, 1)])
    while found is None:
        found = search.step(1)
    assert sorted(found.filters) == sorted(stays)
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
    for round_number in range(10):
        with running(_write_for_ever, tmp_path / "routes", 0), running(_write_for_ever, tmp_path / "routes", 1):
            time.sleep(0.05 + 0.01 * round_number)
    table = RouteTable(tmp_path / "routes")
    table.update([RouteChange(True, b"after", 1)])
    assert table.match(b"after").destinations == (1,)
    table.close()


def _die_in_a_transaction(path: Path) -> None:
    table = RouteTable(path)
    with table._env.begin(write=True) as txn:
        txn.put(b"half", b"\0\0\0\0\1", db=table._exact)
        os.kill(os.getpid(), signal.SIGKILL)


def _die_in_a_read(path: Path) -> None:
    table = RouteTable(path)
    next(table.filters())
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_inside_a_transaction(tmp_path: Path) -> None:
    path = tmp_path / "routes"
    table = RouteTable(path)
    table.update([RouteChange(True, b"before", 1)])
    table.close()  # its locks must not be carried across the forks
    for target in (_die_in_a_transaction, _die_in_a_read):
        with running(target, path) as process:
            process.join(20)
            assert process.exitcode == -signal.SIGKILL
    table = RouteTable(path)
    table.update([RouteChange(True, b"after", 1)])
    assert sorted(table.filters()) == [b"after", b"before"]
    assert table.reader_check() == 0  # cleared when the table was opened
    table.close()


@pytest.mark.parametrize("size", [*range(490, 500), *range(508, 515)])
def test_filters_about_as_long_as_a_key(tmp_path: Path, size: int) -> None:
    """Every shape at sizes where a filter goes over from one database to another, the mark and digest included."""
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 22)
    word = b"x" * (size - 4)
    stored = [b"a/" + word + b"/y", b"+/" + word + b"/y", b"+/" + word + b"/", b"a/" + word + b"/#", b"a/" + word + b"/+"]
    stored += [word + b"/+", b"+/" + word, b"/".join([b""] * size), b"/".join([b""] * (size - 1)) + b"/+", b"#"]
    table.update(RouteChange(True, filter, i) for i, filter in enumerate(stored))
    for topic in (b"a/" + word + b"/y", b"a/" + word + b"/", b"a/" + word, word + b"/z", b"/".join([b""] * size)):
        assert sorted(table.match(topic).filters) == sorted(filter for filter in stored if brute_force(filter, topic))
    table.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), filters, st.integers(0, 2), st.sampled_from([b"", b"g", b"h" * 600])), max_size=60))
def test_changes_and_purge_leave_what_a_set_would(tmp_path_factory: object, changes: list[tuple[bool, bytes, int, bytes]]) -> None:
    table = RouteTable(tmp_path_factory.mktemp("routes"), map_bytes=1 << 22)  # type: ignore[attr-defined]
    expected: set[tuple[bytes, int, bytes]] = set()
    for add, filter, to, group in changes:
        table.update([RouteChange(add, filter, to, group, 5)])
        (expected.add if add else expected.discard)((filter, to, group))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "PURGE_BATCH", 2)
        assert table.purge(1) == len([route for route in expected if route[1] == 1])
    expected = {route for route in expected if route[1] != 1}
    assert table.count() == len(expected)
    assert set(table.filters()) == {filter for filter, _, _ in expected}
    with table._env.begin() as txn:
        texts = {text for filter, _, group in expected for text in (filter, group) if is_kept_by_digest(text, group)}
        assert txn.stat(table._long)["entries"] == len(texts)
    table.close()


def is_kept_by_digest(text: bytes, group: bytes) -> bool:
    return len(text) > (routes.GROUP_MAX if text == group else routes.KEY_MAX)


def test_purge_of_many_destinations_of_one_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "PURGE_BATCH", 3)
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 22)
    table.update(RouteChange(True, b"f", i % 2, b"g", i) for i in range(20))
    table.update(RouteChange(True, b"e/+", i) for i in range(20))
    assert table.purge(0) == 11
    assert table.match(b"f").groups == [Group(b"g", b"f", tuple((1, i) for i in range(1, 20, 2)))]
    assert table.match(b"e/x").destinations == tuple(range(1, 20))
    table.close()


def test_full_route_table_keeps_what_it_has(tmp_path: Path) -> None:
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 18)
    table.update([RouteChange(True, b"first", 1)])
    with pytest.raises(RouteTableFull):
        table.update(RouteChange(True, b"many/%d" % i, 1) for i in range(20_000))
    assert table.count() == 1
    table.update([RouteChange(True, b"second", 1)])
    assert sorted(table.filters()) == [b"first", b"second"]
    table.close()


def message(topic: bytes, expires_ms: int = 0, payload: bytes = b"payload") -> RetainedMessage:
    return RetainedMessage(topic, payload, 1, b"", b"i" * 16, 1, expires_ms, b"publisher")


@settings(max_examples=60, deadline=None)
@given(st.lists(topics, unique=True, max_size=25), filters, st.integers(0, 5), st.integers(1, 9), st.booleans())
def test_retained_scan_finds_what_brute_force_finds(
    tmp_path_factory: object, stored: list[bytes], filter: bytes, limit: int, visits: int, gone: bool
) -> None:
    """Resumed with small limits; with `gone` each message is deleted once found, so the cursor's key is not there."""
    store = RetainedStore(tmp_path_factory.mktemp("retained"), map_bytes=1 << 22)  # type: ignore[attr-defined]
    store.update([message(topic) for topic in stored])
    found: list[bytes] = []
    cursor = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained, "VISITS", visits)
        for turn in range(4 * len(stored) + 4):
            part, cursor = store.scan(filter, cursor, limit if turn else 0, 1 << 20, 5)
            assert len(part) <= (limit if turn else 0)
            found += [one.topic for one in part]
            if gone:
                store.update([one.topic for one in part])
            limit = max(limit, 1)
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


def test_the_brokers_own_messages_do_not_count(tmp_path: Path) -> None:
    store = RetainedStore(tmp_path / "retained", map_bytes=1 << 22, max_messages=1)
    assert store.update([message(b"$SYS/brokers"), message(b"a"), message(b"$SYS/brokers/n/uptime"), message(b"b")]) == 1
    assert [one.topic for one in store.scan(b"#", None, 10, 1 << 20, 99)[0]] == [b"a"]
    assert len(store.scan(b"$SYS/#", None, 10, 1 << 20, 99)[0]) == 2
    assert store.count() == 1
    store.close()


def test_a_store_with_nothing_but_sys(tmp_path: Path) -> None:
    store = RetainedStore(tmp_path / "retained", map_bytes=1 << 22)
    assert store.holds_only_sys()
    store.update([message(b"$SYS/brokers/a/version"), message(b"$SYS/brokers/a/uptime")])
    assert store.holds_only_sys()
    for topic in (b"!", b"$SYS", b"$SYSTEM/x", b"a/b", b"long/" + b"x" * 600):
        store.update([message(topic)])
        assert not store.holds_only_sys(), topic
        store.update([topic])
        assert store.holds_only_sys()
    store.close()


def test_retained_bytes_limit(tmp_path: Path) -> None:
    store = RetainedStore(tmp_path / "retained", map_bytes=1 << 22, max_bytes=100_000)
    large = b"x" * 30_000
    assert store.update([message(b"%d" % i, payload=large) for i in range(5)]) == 2
    assert store.update([message(b"0", payload=large), message(b"1", payload=large * 2), message(b"2", payload=b"s")]) == 1
    assert [len(one.payload) for one in store.scan(b"+", None, 10, 1 << 20, 5)[0]] == [30_000, 30_000, 1]
    assert store.update([b"0", message(b"3", payload=large)]) == 0
    store.close()


def test_retained_scan_stops_at_its_byte_limit(tmp_path: Path) -> None:
    store = RetainedStore(tmp_path / "retained", map_bytes=1 << 22)
    store.update([message(b"%d" % i, payload=b"x" * 1000) for i in range(5)])
    part, cursor = store.scan(b"+", None, 10, 1500, 5)
    assert [one.topic for one in part] == [b"0", b"1"]
    part, cursor = store.scan(b"+", cursor, 10, 1, 5)
    assert [one.topic for one in part] == [b"2"]  # one at least, or it would never end
    store.close()


def test_full_retained_store_keeps_what_it_has(tmp_path: Path) -> None:
    store = RetainedStore(tmp_path / "retained", map_bytes=1 << 18)
    store.update([message(b"a")])
    huge = [message(b"%d" % i, payload=b"x" * (1 << 19)) for i in range(3)]
    changes = [huge[0], message(b"b"), b"a", huge[1], message(b"c"), message(b"d"), b"d", huge[2]]
    assert store.update(changes) == 3  # the one that has no room takes nothing with it, deletions least of all
    assert store.get(b"a") is None and store.get(b"d") is None
    assert store.count() == 2 and store.get(b"b") and store.get(b"c")
    store.close()


def test_expired_messages_are_cleared_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "SWEEP_VISITS", 2)
    store = RetainedStore(tmp_path / "retained", map_bytes=1 << 22)
    long = b"l" * 600
    store.update([message(topic, 100 if i % 2 else 0) for i, topic in enumerate([b"a", b"b", b"c", b"d", b"e", long])])
    assert [store.clear_expired(100, 10) for _ in range(4)] == [1, 1, 1, 0]
    assert store.count() == 3
    store.update([message(b"a", 200)])
    assert sum(store.clear_expired(200, 10) for _ in range(3)) == 1  # begins again
    store.close()


def _fill(path: Path) -> None:
    store = RetainedStore(path, map_bytes=1 << 24)
    for part in range(4):
        store.update([message(b"t/%d" % (i * 7), payload=b"x" * (i % 3 * 3000)) for i in range(part * 25, part * 25 + 25)])
    store.close()


def _open_and_read(path: Path, answer: Any) -> None:
    store = RetainedStore(path, map_bytes=1 << 24)
    part, _ = store.scan(b"#", None, 1000, 1 << 24, 5)
    answer.put((len(part), store.set_aside is not None))
    store.close()


@pytest.mark.parametrize("pages_left", [0.3, 2, 10, -20, -1])
def test_a_retained_file_cut_short(tmp_path: Path, pages_left: float) -> None:
    """In a process of its own, for what went wrong would be SIGBUS. A negative number counts from the end."""
    path, answer = tmp_path / "retained", multiprocess.get_context("fork").Queue()
    _fill(path)
    file = path / "data.mdb"
    left = int(pages_left * 4096)
    os.truncate(file, left if left > 0 else file.stat().st_size + left)
    with running(_open_and_read, path, answer) as process:
        found = answer.get(timeout=20)
        process.join(20)
        assert process.exitcode == 0
    # The last page may be free: then all is there.
    assert found == (0, True) or (pages_left == -1 and found == (100, False))


def test_a_damaged_retained_file_is_set_aside_once(tmp_path: Path) -> None:
    """By several workers that start together."""
    path, answer = tmp_path / "retained", multiprocess.get_context("fork").Queue()
    path.mkdir()
    (path / "data.mdb").write_bytes(b"not a database" * 1000)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(running(_open_and_read, path, answer))
        found = [answer.get(timeout=20) for _ in range(4)]
    assert sorted(found) == [(0, False)] * 3 + [(0, True)]
    assert len(list(tmp_path.glob("retained.bad-*"))) == 1


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


def test_registry_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PAGE", 3)
    table = Registry(tmp_path / "registry", create=True)
    ids = [b"%02d" % i for i in range(10)]
    table.update({client_id: {"peer": "p"} for client_id in ids}, [])
    assert [record["client_id"] for record in table.items()] == ids
    assert [record["client_id"] for record in table.items(b"03", 4)] == ids[4:8]
    assert [record["client_id"] for record in table.items(b"035", 2)] == ids[4:6]
    assert list(table.items(b"09")) == [] == list(table.items(limit=0))
    slow = table.items()
    assert next(slow)["client_id"] == ids[0]
    table.update({}, ids[2:6])  # a slow reader goes on behind what has gone
    assert [record["client_id"] for record in slow] == [ids[1], ids[2], *ids[6:]]
    table.close()


def test_registry(tmp_path: Path) -> None:
    table = Registry(tmp_path / "registry", create=True)
    long = b"x" * 5000
    table.update({b"a": {"peer": "p"}, long: {"peer": "q"}}, [b"never"])
    assert table.get(long) == {"client_id": long, "peer": "q"}
    assert table.get(b"a") == {"client_id": b"a", "peer": "p"}
    table.update({}, [b"a"])
    assert [record["client_id"] for record in table.items()] == [long]
    table.close()
    emptied = Registry(tmp_path / "registry", create=True)
    assert list(emptied.items()) == []
    emptied.close()
