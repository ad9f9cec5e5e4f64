"""The writer: positions, blocks, segments, incarnations, syncing."""

import os
import select
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.journal import Block, JournalBusy, open_journal, read
from shardbroker.journal.layout import INCARNATION_STEP, SegmentHeader, segment_paths, segment_start
from shardbroker.journal.schema import Kind, encode
from tests.journal.samples import any_record, found

SMALL = encode(Kind.RELEASED, session=1, packet_id=2, reason=0)


@settings(max_examples=60, deadline=None)
@given(
    passes=st.lists(st.lists(any_record(), max_size=8), max_size=12),
    segment_bytes=st.sampled_from([100, 1000, 1 << 20]),
    block_bytes=st.sampled_from([100, 500, 1 << 20]),
    sync=st.booleans(),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, passes: list[list[bytes]], segment_bytes: int, block_bytes: int, sync: bool
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    writer = open_journal(directory, segment_bytes=segment_bytes, block_bytes=block_bytes, sync=sync)
    expected: list[bytes] = []
    for number, records in enumerate(passes):
        for record in records:
            assert writer.append(record) == len(expected)
            expected.append(record)
        durable = writer.seal(1000 + number)
        assert durable == len(expected) or (sync and durable < len(expected))
    assert writer.close()
    assert writer.durable == len(expected)
    blocks = [item for item in read(directory)]
    assert all(isinstance(item, Block) for item in blocks)
    assert b"".join(item.body for item in blocks if isinstance(item, Block)) == b"".join(expected)
    records_found, damages = found(directory)
    assert list(records_found) == list(range(len(expected))) and not damages
    assert [record.time_us for record in records_found.values()] == sorted(record.time_us for record in records_found.values())


def test_nothing_is_written_before_there_is_something_to_write(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    assert writer.seal(1) == 0
    assert writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_new_incarnation_never_shares_numbers_with_what_may_have_been_lost(tmp_path: Path) -> None:
    ends = []
    for _ in range(3):
        writer = open_journal(tmp_path)
        writer.append(SMALL)
        writer.append(SMALL)
        writer.seal(1)
        ends.append(writer.durable)
        writer.close()
    assert ends == [2, 2 * INCARNATION_STEP + 2, 4 * INCARNATION_STEP + 2]
    headers = [SegmentHeader.unpack(path.read_bytes()) for path in segment_paths(tmp_path)]
    assert [header.previous_end for header in headers] == [0, 2, 2 * INCARNATION_STEP + 2]
    assert len({header.incarnation for header in headers}) == 3


def test_the_number_of_the_segment_changes_with_the_segment_that_records_go_to(tmp_path: Path) -> None:
    writer = open_journal(tmp_path, segment_bytes=300)
    where: dict[int, set[int]] = {}
    for _ in range(50):
        number = writer.segment
        sequence = writer.append(SMALL)
        writer.seal(1)
        start = max(segment_start(path) for path in segment_paths(tmp_path) if segment_start(path) <= sequence)
        where.setdefault(start, set()).add(number)
    assert len(where) > 3
    assert sorted(where.items()) == [(start, {number}) for number, start in enumerate(sorted(where))]


def test_a_large_record_is_written_and_its_memory_given_back(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    large = encode(Kind.WILL_SET, session=1, topic=b"t", payload=bytes(5 << 20), flags=0, properties=b"", delay_s=0)
    for record in (SMALL, large, SMALL):
        writer.append(record)
    assert writer.seal(1) == 3
    assert writer.pending == 0
    records, damages = found(tmp_path)
    assert len(records) == 3 and not damages
    assert records[1]["payload"] == bytes(5 << 20)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    with pytest.raises(JournalBusy, match="in use"):
        open_journal(tmp_path)
    writer.close()
    open_journal(tmp_path).close()


def test_a_closed_writer_takes_no_records(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    writer.append(SMALL)
    assert writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.append(SMALL)
    assert writer.seal(5) == 1


def test_files_are_for_the_owner_only(tmp_path: Path) -> None:
    writer = open_journal(tmp_path / "journal" / "0")
    writer.append(SMALL)
    writer.seal(1)
    assert (tmp_path / "journal" / "0").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in segment_paths(tmp_path / "journal" / "0")] == [0o600]


def test_group_commit_rings_the_bell_and_then_the_position_is_durable(tmp_path: Path) -> None:
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    writer = open_journal(tmp_path, sync=True, bell=bell)
    writer.append(SMALL)
    assert writer.seal(1) == 0
    writer.append(SMALL)  # written while the first is being synced
    writer.seal(2)
    durable = 0
    while durable < 2:
        assert select.select([bell], [], [], 10)[0]
        os.eventfd_read(bell)
        durable = writer.seal(3)
    assert writer.pending == 0 and 1 <= writer.syncs <= 2
    writer.close()
    os.close(bell)


def test_the_syncing_thread_takes_no_signals(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/task"))
    writer = open_journal(tmp_path, sync=True)
    (own,) = set(os.listdir("/proc/self/task")) - before
    status = Path(f"/proc/self/task/{own}/status").read_text()
    blocked = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")), 16)
    assert blocked & (1 << 14) and blocked & (1 << 1)  # SIGTERM, SIGINT
    assert threading.active_count() >= 1
    writer.close()
    assert set(os.listdir("/proc/self/task")) <= before
