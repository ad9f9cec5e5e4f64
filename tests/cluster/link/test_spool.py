"""The spool on disk: what it has after a kill, a torn write, a full disk and a release."""

import errno
import os
import threading
from pathlib import Path

import pytest

from shardbroker.cluster.outbound import SpoolFull
from shardbroker.link import spool as module
from shardbroker.link.lanes import PeerInbox, Slice
from shardbroker.link.spool import DiskSpool, SyncThread, spooled_nodes
from shm.ring import Inbox
from tests.cluster.link.harness import record, until


class Lane:
    """A ring whose records go to a spool."""

    def __init__(self, directory: Path) -> None:
        path = str(directory / "peer-2-1")
        self.lane = Inbox.create(path, 1, 1 << 16).lanes[0]
        (self.ring,) = PeerInbox(path, directory).rings
        self.after = 0

    def records(self, *records: bytes) -> Slice:
        """Returns records as a slice of the ring."""
        for one in records:
            assert self.lane.put(one)
        found = self.ring.records(self.after, 1 << 20)
        assert found is not None
        self.after = found.end
        return found


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path)


def opened(tmp_path: Path, lines: list[str] | None = None, segment_bytes: int = 1 << 20) -> DiskSpool:
    return DiskSpool(tmp_path / "2" / "1", None, lambda _, line: (lines if lines is not None else []).append(line), segment_bytes)


def bodies(spool: DiskSpool) -> list[bytes]:
    return [bytes(entry.records) for entry in spool.read(spool.first, 1 << 30)]


def test_entries_outlive_the_process(tmp_path: Path, lane: Lane) -> None:
    spool = opened(tmp_path)
    first, second = lane.records(record(1), record(2)), lane.records(record(3))
    spool.append(0, 500, first)
    spool.append(1, 501, second)
    again = opened(tmp_path)
    assert (again.first, again.head, again.synced, again.bytes) == (0, 2, 2, spool.bytes)
    assert bodies(again) == [bytes(first), bytes(second)]
    one, two = again.read(0, 1 << 20)
    assert (one.lane, one.identity, one.records.end) == (0, 500, first.end)
    assert (two.sequence, two.lane, two.identity, two.records.first, two.records.end) == (1, 1, 501, second.first, second.end)
    assert one.records.counts() == {1: 2} and [*again.streams()] == [(0, 500), (1, 501)]
    assert spooled_nodes(tmp_path, 1) == [2] and spooled_nodes(tmp_path, 2) == []


def test_a_read_is_bounded_but_never_empty(tmp_path: Path, lane: Lane) -> None:
    spool = opened(tmp_path)
    for number in range(4):
        spool.append(0, 500, lane.records(record(number)))
    assert [entry.sequence for entry in spool.read(1, 1)] == [1]
    assert [entry.sequence for entry in spool.read(2, 1 << 20)] == [2, 3]
    assert spool.read(4, 1) == []


def test_records_of_qos_0_are_gaps(tmp_path: Path, lane: Lane) -> None:
    spool = opened(tmp_path)
    whole = lane.records(record(0, 0), record(1), record(2, 0), record(3, 0), record(4, 2), record(5, 0))
    kept = whole.kept()
    assert kept is not None and whole.counts() == {0: 4, 1: 1, 2: 1}
    spool.append(0, 500, kept)
    (entry,) = opened(tmp_path).read(0, 1)
    assert entry.records.counts() == {1: 1, 2: 1}
    span = whole.end // 6
    assert (entry.records.first, entry.records.end) == (span, 5 * span)
    behind = entry.records.behind(2 * span)
    assert behind is not None and (behind.first, behind.end, behind.counts()) == (4 * span, 5 * span, {2: 1})
    assert entry.records.behind(5 * span) is None
    assert lane.records(record(6, 0)).kept() is None


def test_a_release_outlives_the_process_and_removes_whole_segments(tmp_path: Path, lane: Lane) -> None:
    spool = opened(tmp_path, segment_bytes=300)
    for number in range(6):
        spool.append(0, 500 + number, lane.records(record(number, size=100)))
    segments = len([*(tmp_path / "2" / "1").glob("*.sbj")])
    assert segments > 2
    spool.release(4)
    assert spool.first == 4 and len([*(tmp_path / "2" / "1").glob("*.sbj")]) < segments
    again = opened(tmp_path)
    assert (again.first, again.head, again.bytes) == (4, 6, spool.bytes)
    again.release(6)
    assert again.bytes == 0 and opened(tmp_path).first == 6
    again.append(0, 700, lane.records(record(7)))
    assert [entry.sequence for entry in opened(tmp_path).read(6, 1)] == [6]


def test_a_torn_tail_is_cut_with_a_line(tmp_path: Path, lane: Lane) -> None:
    spool = opened(tmp_path)
    spool.append(0, 500, lane.records(record(1)))
    size = spool._segments[-1].path.stat().st_size
    spool.append(0, 500, lane.records(record(2)))
    path = spool._segments[-1].path
    for cut in (1, 40, 60):
        data = path.read_bytes()
        path.write_bytes(data[: size + cut])
        lines: list[str] = []
        again = opened(tmp_path, lines)
        assert again.head == 1 and path.stat().st_size == size and len(lines) == 1 and "spool cut" in lines[0]
        path.write_bytes(data)
    assert opened(tmp_path).head == 2


@pytest.mark.parametrize("at", [0, 20, 64, 80, 150])
def test_damage_is_never_sent(tmp_path: Path, lane: Lane, at: int) -> None:
    spool = opened(tmp_path)
    spool.append(0, 500, lane.records(record(1)))
    path = spool._segments[-1].path
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    lines: list[str] = []
    again = opened(tmp_path, lines)
    assert again.first == again.head and again.read(0, 1) == [] and lines


def test_damage_after_the_start_is_an_entry_without_records(tmp_path: Path, lane: Lane) -> None:
    lines: list[str] = []
    spool = opened(tmp_path, lines)
    whole = lane.records(record(1))
    spool.append(3, 500, whole)
    with spool._segments[-1].path.open("r+b") as file:
        file.seek(150)
        file.write(b"??")
    (entry,) = spool.read(0, 1)
    assert (entry.lane, entry.identity, entry.records.end, entry.records.counts()) == (3, 500, whole.end, {})
    assert any("spool entry damaged" in line for line in lines)


def test_a_full_disk_leaves_nothing_half(tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)
    spool.append(0, 500, lane.records(record(1)))
    size, pwrite = spool._segments[-1].path.stat().st_size, os.pwrite

    def full(fd: int, data: memoryview, offset: int) -> int:
        if len(data) > 30:
            return pwrite(fd, data[:30], offset)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(module.os, "pwrite", full)
    whole = lane.records(record(2))
    with pytest.raises(SpoolFull):
        spool.append(0, 500, whole)
    assert spool.head == 1 and spool._segments[-1].path.stat().st_size == size
    monkeypatch.setattr(module.os, "pwrite", pwrite)
    spool.append(0, 500, whole)
    assert len(bodies(opened(tmp_path))) == 2


def test_entries_are_synced_by_a_thread(tmp_path: Path, lane: Lane) -> None:
    bell = os.eventfd(0)
    thread = SyncThread(bell)
    spool = DiskSpool(tmp_path / "2" / "1", thread, lambda level, line: None)
    spool.append(0, 500, lane.records(record(1)))
    assert spool.synced == 0
    spool.start_sync()
    until(lambda: spool.synced == 1)
    assert os.eventfd_read(bell) >= 1
    again = DiskSpool(tmp_path / "2" / "1", thread, lambda level, line: None)
    assert (again.head, again.synced) == (1, 0), "what it has when it is opened is synced first"
    again.start_sync()
    until(lambda: again.synced == 1)


def test_a_call_that_outlasts_its_bell_writes_to_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a disk does not answer within the time of a stop: the descriptor is closed, and another file has its number."""
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    bell = os.eventfd(0)
    thread = SyncThread(bell)
    may_end = threading.Event()
    thread.call(may_end.wait)
    thread.close(0)
    os.close(bell)
    other = os.eventfd(0, os.EFD_NONBLOCK)
    assert other == bell
    may_end.set()
    thread.close(10)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(other)
    os.close(other)
    assert not failed


def test_a_sync_that_has_failed_is_not_reported(tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    spool = DiskSpool(tmp_path / "2" / "1", SyncThread(os.eventfd(0)), lambda _, line: lines.append(line))
    spool.append(0, 500, lane.records(record(1)))

    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(module, "sync_path", fails)
    spool.start_sync()
    until(lambda: bool(lines))
    monkeypatch.undo()
    until(lambda: not spool._is_syncing)
    spool.start_sync()
    until(lambda: not spool._is_syncing)
    assert spool.synced == 0, "the kernel may have dropped what it could not write"


def test_the_first_sync_covers_the_name_of_the_spool(tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(module, "sync_path", synced.append)
    spool = DiskSpool(tmp_path / "spool" / "2" / "1", SyncThread(os.eventfd(0)), lambda *_: None)
    spool.append(0, 500, lane.records(record(1)))
    spool.start_sync()
    until(lambda: spool.synced == 1)
    assert {tmp_path / "spool" / "2" / "1", tmp_path / "spool" / "2", tmp_path / "spool", tmp_path} <= {*synced}
