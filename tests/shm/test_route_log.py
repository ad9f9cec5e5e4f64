"""The route log of a node: which changes of its workers' routes other nodes learn, in which order, and how much is kept."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.cluster.messages import Route
from shardbroker.cluster.rlog import order_of
from shm.destinations import DestinationKind, destination
from shm.keys import key_of
from shm.route_log import LmdbRouteLog
from shm.routes import RouteChange, RouteTable

A, B = 0, 1
"""Destinations of two workers."""
KEEP = 10


@pytest.fixture
def table(tmp_path: Path) -> Iterator[RouteTable]:
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 26, log=True, log_entries=KEEP)
    yield table
    table.close()


def add(filter: bytes, worker: int = A, group: bytes = b"", member: int = 0) -> RouteChange:
    return RouteChange(True, filter, worker, group, member)


def remove(filter: bytes, worker: int = A, group: bytes = b"", member: int = 0) -> RouteChange:
    return RouteChange(False, filter, worker, group, member)


def logged(table: RouteTable, behind: int = 0) -> list[tuple[bytes, bytes, int]]:
    return [entry[:3] for entry in LmdbRouteLog(table, Route).entries(behind + 1, 1000)]


def test_first_worker_on_a_filter_and_last_one_off(table: RouteTable) -> None:
    assert table.update([add(b"a/+")]) == 1
    assert table.update([add(b"a/+", B)]) == 1  # peers have it up to there
    assert table.update([add(b"a/+", B)]) == 1
    assert table.update([remove(b"a/+")]) == 0
    assert table.update([remove(b"a/+", B)]) == 2
    assert table.update([remove(b"a/+", B)]) == 0
    assert logged(table) == [(b"a/+", b"", 1), (b"a/+", b"", 0)]


def test_count_of_members_in_a_group(table: RouteTable) -> None:
    assert table.update([add(b"a", A, b"g", 1), add(b"a", B, b"g", 2), add(b"a", A, b"h", 1)]) == 2
    assert table.update([remove(b"a", A, b"g", 1), remove(b"a", A, b"g", 9)]) == 3
    assert table.update([add(b"a", A, b"g", 3), remove(b"a", A, b"g", 3)]) in (0, 3)
    assert logged(table) == [(b"a", b"g", 2), (b"a", b"h", 1), (b"a", b"g", 1)]


def test_one_entry_for_each_route_of_a_transaction(table: RouteTable) -> None:
    assert table.update([add(b"a"), remove(b"a"), add(b"b"), remove(b"b"), add(b"b")]) == 1
    assert logged(table) == [(b"b", b"", 1)]


def test_only_routes_to_workers_count(table: RouteTable) -> None:
    sink = destination(DestinationKind.SINK, 4)
    assert table.update([add(b"a", sink)]) == 0
    assert table.purge(sink) == 1
    assert logged(table) == [] and LmdbRouteLog(table, Route).rows(None, 10) == []


def test_replace_and_purge_are_logged(table: RouteTable) -> None:
    long = b"long/" + b"x" * 600
    table.update([add(b"a"), add(b"b", B), add(long), add(b"c", A, b"g", 1)])
    head = LmdbRouteLog(table, Route).head
    assert table.replace(A, [add(b"b"), add(b"d")]) == 3
    assert sorted(logged(table, head)) == [(b"a", b"", 0), (b"c", b"g", 0), (b"d", b"", 1), (long, b"", 0)]
    head = LmdbRouteLog(table, Route).head
    assert table.purge(A) == 2
    assert logged(table, head) == [(b"d", b"", 0)]
    assert LmdbRouteLog(table, Route).rows(None, 10) == [Route(b"b")]


def test_only_the_newest_entries_are_kept(table: RouteTable) -> None:
    log = LmdbRouteLog(table, Route)
    assert (log.first, log.head, log.entries(1, 5)) == (1, 0, [])
    for number in range(KEEP + 5):
        assert table.update([add(b"%d" % number)]) == number + 1
    assert (log.first, log.head) == (6, KEEP + 5)
    assert log.entries(5, 100) == []  # removed since
    assert log.entries(6, 2) == [Route(b"5"), Route(b"6")]
    table.update([add(b"more/%d" % number) for number in range(3 * KEEP)])
    assert (log.first, log.head) == (3 * KEEP + 6, 4 * KEEP + 5)


def test_rows_in_the_order_of_a_dump_from_any_place(table: RouteTable) -> None:
    wanted = {(b"%s/%d" % (start, number), group) for start in (b"a", b"a/+", b"+", b"b" * 505, b"c" * 700)
              for number in range(9) for group in (b"", b"g", b"h" * 600)}
    table.update([add(filter, number % 2, group, number) for number, (filter, group) in enumerate(wanted)])
    log = LmdbRouteLog(table, Route)
    rows: list[Route] = []
    while found := log.rows((rows[-1].filter, rows[-1].group) if rows else None, 7):
        assert len(found) == min(7, len(wanted) - len(rows))
        rows += found
    assert [row[:2] for row in rows] == sorted(wanted, key=order_of)
    assert log.rows((b"a/+/3", b"fff"), 1)[0][:2] == (b"a/+/3", b"g")


def test_the_order_of_a_dump_is_that_of_the_keys() -> None:
    for key in ((b"a", b""), (b"a" * 510, b""), (b"a" * 511, b""), (b"a", b"g" * 509), (b"a", b"g" * 510)):
        assert order_of(key) == key_of(b"\0".join(key))


def test_a_table_keeps_its_log_and_one_without_has_none(tmp_path: Path) -> None:
    first = RouteTable(tmp_path / "with", map_bytes=1 << 24, log=True)
    first.update([add(b"a")])
    first.close()
    again = RouteTable(tmp_path / "with", map_bytes=1 << 24)
    assert again.update([add(b"b")]) == 2
    without = RouteTable(tmp_path / "without", map_bytes=1 << 24)
    assert without.update([add(b"a")]) == 0 and without.log is None
    with pytest.raises(ValueError, match="no log"):
        LmdbRouteLog(without, Route)
    for table in (again, without):
        table.close()


@pytest.mark.parametrize("seed", range(5))
def test_log_and_rows_follow_the_table(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = RouteTable(tmp_path / "routes", map_bytes=1 << 26, log=True)
    log = LmdbRouteLog(table, Route)
    filters = [b"a", b"a/+", b"b/#", b"z" * 600, b"+/" + b"y" * 600]
    held: set[tuple[bytes, int, bytes, int]] = set()
    replayed: dict[tuple[bytes, bytes], Route] = {}
    at = 0
    for _ in range(100):
        changes = []
        for _ in range(rng.randint(1, 6)):
            group = rng.choice((b"", b"g", b"h" * 600))
            route = rng.choice(filters), rng.randrange(3), group, rng.randrange(3) if group else 0
            changes.append(RouteChange(rng.random() < 0.6, *route))
            (held.add if changes[-1].add else held.discard)(route)
        table.update(changes)
        if rng.random() < 0.1:
            worker = rng.randrange(3)
            table.purge(worker)
            held = {route for route in held if route[1] != worker}
        for entry in log.entries(at + 1, 1000):
            if entry.members:
                replayed[entry.filter, entry.group] = entry
            else:
                del replayed[entry.filter, entry.group]
        at = log.head
        members = Counter((filter, group) for filter, _, group, _ in held)
        wanted = {key: Route(*key, count if key[1] else 1) for key, count in members.items()}
        assert wanted == replayed == {(row.filter, row.group): row for row in log.rows(None, 1000)}
    table.close()
