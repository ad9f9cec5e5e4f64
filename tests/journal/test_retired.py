"""Journals of numbers that are not in use any more: retention applies to them, holds keep them, and their end stays."""

import os
from pathlib import Path

import pytest

from shardbroker.journal import JournalBusy, find_end, lock, open_journal
from shardbroker.journal.follow import Batch, Follower
from shardbroker.journal.holds import ALL, Hold, set_hold
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, all_segment_paths, journals_below, retired_directories, segment_start
from shardbroker.journal.retired import apply_retention_to_retired, look_after_retired
from shardbroker.journal.schema import Kind, encode

RECORD = encode(Kind.RECEIVED, session=1, packet_id=2, id=bytes(100))
SEGMENTS = 5
NOW_US = 1 << 60
NUMBER = "3"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The place of a journal that is not there: two of its number were retired, of five segments with a record each."""
    directory = tmp_path / "journal" / NUMBER
    for second in (1_790_000_000, 1_790_000_009):
        write(directory)
        (directory / "recover-from").write_bytes(b"")
        (directory / f"{0:020}.sbj.damaged").write_bytes(b"")
        retire(directory, second)
    assert len(all_segment_paths(directory)) == 2 * SEGMENTS
    return directory


def write(directory: Path) -> None:
    writer = open_journal(directory, segment_bytes=100)
    for second in range(SEGMENTS):
        writer.append(RECORD)
        writer.seal(second * 1_000_000 + 1)
    writer.close()


def retire(directory: Path, second: int) -> None:
    directory.rename(directory.with_name(f"{directory.name}.retired-{second}"))


def sizes(directory: Path) -> list[int]:
    return [path.stat().st_size for path in all_segment_paths(directory)]


def end(directory: Path) -> int:
    found = find_end(max(retired_directories(directory)))
    assert found is not None
    return found


def test_without_limits_all_is_kept(journal: Path) -> None:
    assert apply_retention_to_retired(journal, ALL, NOW_US) == []
    assert apply_retention_to_retired(journal, ALL, NOW_US, max_bytes=sum(sizes(journal))) == []
    assert len(all_segment_paths(journal)) == 2 * SEGMENTS


def test_the_oldest_segments_go_first_and_then_their_directory(journal: Path) -> None:
    size, before = sizes(journal)[0], all_segment_paths(journal)
    removed = apply_retention_to_retired(journal, ALL, NOW_US, max_bytes=4 * size)
    assert [one.reason for one in removed] == ["bytes"] * 6
    assert all_segment_paths(journal) == before[6:]
    assert [path.name for path in retired_directories(journal)] == [f"{NUMBER}.retired-1790000009"]


def test_a_number_keeps_as_much_as_one_journal_may(journal: Path) -> None:
    """What its worker writes now counts, and is not touched."""
    write(journal)
    size, before = sizes(journal)[0], all_segment_paths(journal)
    apply_retention_to_retired(journal, ALL, NOW_US, max_bytes=7 * size)
    assert all_segment_paths(journal) == before[8:]
    apply_retention_to_retired(journal, ALL, NOW_US, max_age_us=0, max_bytes=0)
    assert all_segment_paths(journal) == before[10:] and retired_directories(journal) == []


def test_the_end_stays_as_long_as_no_worker_has_continued_it(journal: Path) -> None:
    last = end(journal)
    removed = apply_retention_to_retired(journal, ALL, NOW_US, max_age_us=0)
    assert len(removed) == 2 * SEGMENTS and {one.reason for one in removed} == {"age"} and removed[-1].end == last
    assert sizes(journal) == [SEGMENT_HEADER_BYTES] and end(journal) == last
    assert apply_retention_to_retired(journal, ALL, NOW_US, max_age_us=0, max_bytes=0) == []
    write(journal)
    assert segment_start(min((journal).glob("*.sbj"))) > last, "a position would be used twice"
    assert apply_retention_to_retired(journal, ALL, NOW_US) == []
    assert len(all_segment_paths(journal)) == SEGMENTS and retired_directories(journal) == []


def test_a_reader_at_the_end_loses_nothing(journal: Path) -> None:
    follower = Follower(journal)
    while not follower.at_end:
        assert all(isinstance(part, Batch) for part in follower.read())
    place = follower.place
    follower.close()
    apply_retention_to_retired(journal, ALL, NOW_US, max_age_us=0)
    write(journal)
    for one in (follower, Follower(journal, place)):
        found = []
        while not one.at_end or not found:
            found += one.read()
        assert all(isinstance(part, Batch) for part in found) and sum(len(part.records) for part in found) == SEGMENTS


def test_a_hold_keeps_them_and_what_it_cannot_keep_is_counted(journal: Path, tmp_path: Path) -> None:
    paths, size = all_segment_paths(journal), sizes(journal)[0]
    set_hold(tmp_path, Hold("rules-0", {NUMBER: segment_start(paths[3])}))
    assert look_after_retired(tmp_path, NOW_US, 0, 0) == 0
    assert all_segment_paths(journal) == paths[3:]
    set_hold(tmp_path, Hold("rules-0", {NUMBER: segment_start(paths[3])}, 4 * size))
    assert look_after_retired(tmp_path, NOW_US, 0, 0) == 3
    assert all_segment_paths(journal) == paths[6:]
    set_hold(tmp_path, Hold("rules-0", {NUMBER: end(journal)}))
    assert look_after_retired(tmp_path, NOW_US, 0, 0) == 0
    assert sizes(journal) == [SEGMENT_HEADER_BYTES]


def test_nothing_else_is_touched(journal: Path, tmp_path: Path) -> None:
    (retired := max(retired_directories(journal))).joinpath("notes").write_bytes(b"mine")
    journal.with_name("3.bak").mkdir()
    write(journal.with_name("0"))
    assert [path.name for path in journals_below(journal.parent)] == ["0", NUMBER]
    write(journal)
    look_after_retired(tmp_path, NOW_US, 0, 0)
    assert sorted(path.name for path in journal.parent.iterdir()) == ["0", NUMBER, "3.bak", retired.name]
    assert [path.name for path in retired.iterdir()] == ["notes"]
    assert len(all_segment_paths(journal.with_name("0"))) == SEGMENTS
    assert look_after_retired(tmp_path / "nothing", NOW_US, 0, 0) == 0


def test_one_that_is_being_repaired_waits(journal: Path, tmp_path: Path) -> None:
    paths = all_segment_paths(journal)
    repair = lock(min(retired_directories(journal)))
    try:
        with pytest.raises(JournalBusy):
            apply_retention_to_retired(journal, ALL, NOW_US, max_age_us=0)
        assert look_after_retired(tmp_path, NOW_US, 0, 0) == 0
        assert all_segment_paths(journal) == paths
    finally:
        os.close(repair)


def test_a_last_segment_without_a_readable_record_is_replaced_by_the_end(journal: Path) -> None:
    path = all_segment_paths(journal)[-1]
    path.write_bytes(path.read_bytes()[:SEGMENT_HEADER_BYTES] + bytes(1000))
    apply_retention_to_retired(journal, ALL, NOW_US, max_age_us=0)
    assert all_segment_paths(journal) == [path] and sizes(journal) == [SEGMENT_HEADER_BYTES]


def test_a_damaged_header_of_the_last_segment_keeps_it(journal: Path, tmp_path: Path) -> None:
    path = all_segment_paths(journal)[-1]
    path.write_bytes(bytes(SEGMENT_HEADER_BYTES) + path.read_bytes()[SEGMENT_HEADER_BYTES:])
    assert look_after_retired(tmp_path, NOW_US, 0, 0) == 0
    assert all_segment_paths(journal) == [path]
