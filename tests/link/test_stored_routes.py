"""Routes of peers on disk: what a broker that starts has of them after a kill, a torn write, damage and a full disk."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shardbroker.cluster.messages import Hello, Route
from shardbroker.cluster.rlog import RouteKey
from shardbroker.link import stored_routes as module
from shardbroker.link.stored_routes import RETRY_MS, StoredRoutes
from shm.remote_routes import RemoteRoutes
from tests.harness.waiting import until
from tests.shm.test_remote_routes import ALL, rows_of, sweep

State = dict[int, tuple[tuple[int, int] | None, dict[RouteKey, Route]]]
LATER_MS = 1 << 50


def hello(node: int, incarnation: int = 5) -> Hello:
    return Hello(0, node, f"name{node}", f"n{node}", bytes(16), b"u" * 16, incarnation, 1, 1, 0, bytes(16))


class Disk:
    """A data directory, and brokers that start over it one after the other."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "data" / "cluster" / "routes"
        self.lines: list[tuple[str, str]] = []
        self._shared, self._tables = tmp_path / "shm", 0
        self._bell = os.eventfd(0)
        self._open: list[StoredRoutes] = []

    def start(
        self, members: tuple[str, ...] = ("n1", "n2", "n3"), level: str = "process", directory: Path | None = None
    ) -> StoredRoutes:
        """Starts a broker."""
        self._tables += 1
        return self._store(RemoteRoutes(self._shared / str(self._tables), map_bytes=1 << 26), True, members, level, directory)

    def replace(self, store: StoredRoutes, level: str = "process") -> StoredRoutes:
        """Replaces a link-0 that was killed; the table is as it was."""
        return self._store(store._table, False, ("n1", "n2", "n3"), level, None)

    def _store(self, table: RemoteRoutes, is_new: bool, members: Any, level: str, directory: Path | None) -> StoredRoutes:
        store = StoredRoutes(
            table, directory or self.directory, lambda level, line: self.lines.append((level, line)), self._bell,
            members=members, is_new=is_new, waits=level == "machine",
        )  # fmt: skip
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()
        for table in {id(store._table): store._table for store in self._open}.values():
            table.close()
        os.close(self._bell)

    def names(self, suffix: str) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name.endswith(suffix))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.close()


def state_of(store: StoredRoutes) -> State:
    found = {node: (store.mark(node), rows_of(store._table, node)) for node in (2, 3)}
    assert all(store.count(node) == len(rows) for node, (_, rows) in found.items())
    return found


def dump(store: StoredRoutes, node: int, routes: list[Route], mark: tuple[int, int]) -> None:
    store.identify(hello(node))
    generation = store.begin(node)
    store.put(node, generation, routes, None)
    sweep(store, node, generation)
    store.complete(node, mark)


def history(store: StoredRoutes, rng: Random, steps: int = 60) -> Iterator[None]:
    """Changes as two peers send them: dumps, logs, and removals."""
    positions = {2: 0, 3: 0}
    for node in positions:
        store.identify(hello(node))
        yield
        generation = store.begin(node)
        yield
        store.put(node, generation, ALL, None)
        yield
        store.complete(node, (5, 0))
        yield
    for _ in range(steps):
        node = rng.choice((2, 3))
        rows = [Route(b"t/%d" % rng.randrange(20), rng.choice((b"", b"g")), rng.choice((0, 1))) for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.1:
            rows = [*{(row.filter, row.group): row._replace(members=1) for row in rows}.values()]
            generation = store.begin(node)
            yield
            store.put(node, generation, rows, None)
            yield
            sweep(store, node, generation)
            store.complete(node, (5, positions[node]))
        else:
            positions[node] += len(rows)
            is_dump = store.mark(node) is None
            store.put(node, 0, rows, None if is_dump else (5, positions[node]))
        yield


def copied(store: StoredRoutes, now_ms: int = LATER_MS) -> None:
    """Waits until a copy is complete."""
    until(lambda: (store.work(now_ms), not store._is_copying and store._copied is None)[1], timeout_s=10)


@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_starts_has_what_the_one_before_had(disk: Disk, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MIN", 1500)
    store, rng = disk.start(), Random(seed)
    for _ in history(store, rng):
        if rng.random() < 0.3:
            store.work(0)
        if rng.random() < 0.1:
            store._copier.close(10)  # a process that is killed has no threads
            store = disk.replace(store) if rng.random() < 0.5 else disk.start()
            break
    for _ in history(store, rng, 100):
        store.work(0)
    copied(store)
    again = disk.start()
    assert state_of(again) == state_of(store) and again.peers == store.peers and len(again.peers) == 2
    assert again.sequence == store.sequence and not disk.lines
    dump(again, 2, ALL[:2], (6, 9))
    assert state_of(disk.start()) == state_of(again)


def test_a_torn_log_is_cut_where_a_change_ends(disk: Disk, tmp_path: Path) -> None:
    """At each length there is a state that was, with the mark of its rows."""
    store = disk.start()
    (disk.directory / f"{0:020d}.log").touch()
    states, sizes = [state_of(store)], [0]
    for _ in history(store, Random(1), 12):
        states.append(state_of(store))
        sizes.append(store._size)
    (name,) = disk.names(".log")
    whole = (disk.directory / name).read_bytes()
    for at in [*range(0, len(whole), 37), *sizes]:
        torn = tmp_path / "torn" / str(at)
        torn.mkdir(parents=True)
        (torn / name).write_bytes(whole[:at])
        done = max(number for number, size in enumerate(sizes) if size <= at)
        again = disk.start(directory=torn)
        assert again.sequence == done and _same(state_of(again), states[done])
        if at % 5 == 0:
            dump(again, 2, ALL, (7, 1))
            assert state_of(disk.start(directory=torn)) == state_of(again)
        shutil.rmtree(torn)
    assert {phrase.partition("path=")[0] for _, phrase in disk.lines} == {"routes of peers cut "}


def _same(found: State, expected: State) -> bool:
    """A sweep is part of the change behind it, so rows of an earlier dump may be there as long as there is no mark."""
    return all(
        found[node][0] == mark and (found[node][1] == rows or (mark is None and rows.items() <= found[node][1].items()))
        for node, (mark, rows) in expected.items()
    )


def test_what_follows_damage_does_not_count(disk: Disk, tmp_path: Path) -> None:
    store = disk.start()
    states = [state_of(store)]
    for _ in history(store, Random(2), 12):
        states.append(state_of(store))
    (name,) = disk.names(".log")
    whole = bytearray((disk.directory / name).read_bytes())
    rng = Random(3)
    for number in range(60):
        damaged, torn = bytearray(whole), tmp_path / "torn" / str(number)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        torn.mkdir(parents=True)
        (torn / name).write_bytes(damaged)
        again = disk.start(directory=torn)
        assert _same(state_of(again), states[again.sequence]) and again.sequence < len(states) - 1


def test_a_gap_between_logs_ends_what_counts(disk: Disk) -> None:
    store = disk.start()
    dump(store, 2, ALL, (5, 1))
    before = state_of(store)
    store._close_log()
    store.put(2, 0, [Route(b"x")], (5, 2))
    store._close_log()
    store.put(2, 0, [Route(b"y")], (5, 3))
    assert len(disk.names(".log")) == 3
    (disk.directory / disk.names(".log")[1]).unlink()
    assert state_of(disk.start()) == before and len(disk.names(".log")) == 1


@pytest.mark.parametrize("damage", ["byte", "end", "version", "empty"])
def test_a_damaged_copy_is_dropped_with_a_line(disk: Disk, damage: str) -> None:
    store = disk.start()
    dump(store, 2, ALL, (5, 1))
    store._start_copy()
    copied(store, 0)
    store.put(2, 0, [Route(b"x")], (5, 2))
    (name,) = disk.names(".table")
    path = disk.directory / name
    whole = bytearray(path.read_bytes())
    if damage == "byte":
        whole[len(whole) // 2] ^= 1
    elif damage == "version":
        whole[8 - module.TRAILER.size] += 1
    path.write_bytes(whole[: {"end": len(whole) - 1, "empty": 0}.get(damage, len(whole))])
    again = disk.start()
    assert state_of(again) == {2: (None, {}), 3: (None, {})} and again.peers == {} and again.sequence == 0
    ((level, line),) = disk.lines
    assert level == "error" and line.startswith("routes of peers dropped ")
    assert disk.names("") == []
    dump(again, 2, ALL, (5, 3))
    assert state_of(disk.start()) == state_of(again)


def test_a_copy_replaces_logs_and_a_kill_in_between_loses_nothing(disk: Disk, tmp_path: Path) -> None:
    store = disk.start()
    dump(store, 2, ALL, (5, 1))
    kept = tmp_path / "kept"
    shutil.copytree(disk.directory, kept)
    store._start_copy()
    store.put(2, 0, [Route(b"x")], (5, 2))
    copied(store, 0)
    assert (len(disk.names(".table")), len(disk.names(".log"))) == (1, 1)
    for path in kept.iterdir():
        shutil.copy(path, disk.directory)
    (disk.directory / "7.table.new").write_bytes(b"of a kill")
    assert state_of(disk.start()) == state_of(store)
    assert (len(disk.names(".table")), len(disk.names(".log"))) == (1, 1) and not [*disk.directory.glob("*.new")]


def test_each_start_adds_a_log_until_a_copy_replaces_them(disk: Disk) -> None:
    for number in range(40):
        store = disk.start()
        store.work(0)
        copied(store, 0)
        dump(store, 2, [Route(b"t/%d" % number)], (5, number))
    assert len(disk.names(".log")) <= module.LOGS_MAX + 2
    assert state_of(disk.start())[2] == ((5, 39), {(b"t/39", b""): Route(b"t/39")})


def _full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fills the disk; returns what makes room."""

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = module.write_at
    monkeypatch.setattr(module, "write_at", fails)
    return lambda: monkeypatch.setattr(module, "write_at", real)


def test_a_full_disk_keeps_the_last_state_and_a_copy_makes_it_whole(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk.start(level="machine")
    dump(store, 2, ALL, (5, 1))
    before = state_of(store)
    make_room = _full(monkeypatch)
    store.put(2, 0, [Route(b"x")], (5, 2))
    assert store.is_secured(store.sequence)  # or links to peers would end
    make_room()
    store.put(2, 0, [Route(b"y")], (5, 3))
    store.work(0)
    assert state_of(disk.start(directory=_copy_of(disk))) == before
    copied(store)
    store.put(2, 0, [Route(b"z")], (5, 4))
    assert not store.is_secured(store.sequence)
    assert state_of(disk.start()) == state_of(store)
    assert [level for level, _ in disk.lines] == ["error"] and "No space left" in disk.lines[0][1]


def _copy_of(disk: Disk) -> Path:
    copy = disk.directory.parent.parent / "copy" / "cluster" / "routes"
    shutil.copytree(disk.directory, copy)
    return copy


def test_a_successor_of_link_0_closes_the_gap_that_a_full_disk_has_left(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk.start()
    dump(store, 2, ALL, (5, 1))
    before = state_of(store)
    make_room = _full(monkeypatch)
    store.put(2, 0, [Route(b"x")], (5, 2))
    make_room()
    again = disk.replace(store)
    again.put(2, 0, [Route(b"y")], (5, 3))
    assert state_of(disk.start(directory=_copy_of(disk))) == before
    copied(again)
    assert state_of(disk.start()) == state_of(again)


def test_a_change_that_was_written_and_not_made_is_made_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """link-0 is killed between the two, and its peer sends the routes again, in another batch."""
    store = disk.start()
    dump(store, 2, [Route(b"a")], (5, 1))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RemoteRoutes, "put", killed)
        store.put(2, 0, [Route(b"b"), Route(b"a", members=0)], (5, 3))
    again = disk.replace(store)
    assert again.mark(2) == (5, 1)
    again.put(2, 0, [Route(b"b")], (5, 2))
    assert disk.start().mark(2) == (5, 2)
    again.put(2, 0, [Route(b"a", members=0)], (5, 3))
    assert state_of(disk.start()) == state_of(again) and again.mark(2) == (5, 3)


def test_at_level_machine_a_change_is_secured_once_it_is_synced(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = module.sync_path
    monkeypatch.setattr(module, "sync_path", lambda path: (synced.append(path), real(path)))
    store = disk.start(level="machine")
    dump(store, 2, ALL, (5, 1))
    assert not store.is_secured(store.sequence)
    synced.clear()
    store.work(0)
    until(lambda: store.is_secured(store.sequence), timeout_s=5)
    assert synced == [disk.directory / f"{0:020d}.log", disk.directory]
    assert disk.start().is_secured(LATER_MS)  # level process


def test_a_sync_that_fails_is_followed_by_a_copy(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk.start(level="machine")
    dump(store, 2, ALL, (5, 1))

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_path", fails)
        store.work(0)
        until(lambda: bool(store._sync_error), timeout_s=5)
    store.work(0)
    assert store.is_secured(store.sequence) and "Input/output error" in disk.lines[0][1]
    copied(store)
    assert state_of(disk.start()) == state_of(store) and not store._behind


def test_routes_of_former_members_are_dropped(disk: Disk) -> None:
    store = disk.start()
    for node in (2, 3):
        dump(store, node, ALL, (5, 1))
    one = disk.start(members=("n1", "n3"))
    assert [*one.peers] == [3] and one._table.nodes() == [3]
    assert disk.lines == [("info", f"routes of former member dropped node_id=2 routes={len(ALL)}")]
    again = disk.start()
    assert [*again.peers] == [3] and state_of(again)[2] == (None, {})
    again.forget(3)
    generation = again.begin(3)
    assert not again._table.sweep(3, generation, 2)
    assert [*disk.start().peers] == [] and state_of(disk.start())[3] == (None, {})


def test_a_copy_that_has_failed_is_made_later(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MIN", 100)
    store = disk.start()
    dump(store, 2, ALL, (5, 1))

    def fails(self: RemoteRoutes, descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(RemoteRoutes, "copy", fails)
        store.work(0)
        until(lambda: bool(store._copy_error), timeout_s=5)
    store.work(0)
    assert state_of(disk.start(directory=_copy_of(disk))) == state_of(store) and disk.names(".table") == []
    store.work(RETRY_MS - 1)
    assert not store._is_copying
    store.work(RETRY_MS)
    copied(store)
    assert len(disk.names(".table")) == 1 and disk.names(".log") == []
    assert state_of(disk.start()) == state_of(store)


def test_retries_are_bounded(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk.start()
    dump(store, 2, ALL, (5, 1))

    def fails(self: RemoteRoutes, descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RemoteRoutes, "copy", fails)
    _full(monkeypatch)
    store.put(2, 0, [Route(b"x")], (5, 2))
    base = store._retry_ms
    for now_ms in range(base, base + 3 * RETRY_MS, 100):
        store.work(now_ms)
        until(lambda: not store._is_copying, timeout_s=5)
    assert 3 <= len(disk.lines) <= 5 and disk.names(".new") == []
