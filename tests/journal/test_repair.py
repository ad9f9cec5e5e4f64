"""verify and repair: afterwards nothing fails a check, what was there is there, and what was damaged is set aside."""

import random
from pathlib import Path

import pytest

from shardbroker.journal import JournalBusy, JournalTooNew, open_journal, read, repair, verify
from shardbroker.journal.layout import BLOCK_MAGIC, SegmentHeader, segment_paths
from tests.journal.samples import Sample, found


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_good_journal(sample: Sample) -> None:
    before = contents(sample.directory)
    report = verify(sample.directory)
    assert report.good and not report.damages
    assert report.records == len(sample.records)
    assert (report.first_sequence, report.end_sequence) == (0, max(sample.records) + 1)
    assert list(repair(sample.directory)) == []
    assert contents(sample.directory) == before


def test_a_torn_tail_is_cut_off(copy: Sample) -> None:
    path = segment_paths(copy.directory)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    assert verify(copy.directory).good
    (line,) = repair(copy.directory)
    assert "cut off" in line and path.name in line
    assert verify(copy.directory).damages == []


@pytest.mark.parametrize("seed", range(12))
def test_repair(sample: Sample, copy: Sample, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(rng.choice([1, 2, 6])):
        path = rng.choice(segment_paths(copy.directory))
        data = bytearray(path.read_bytes()) or bytearray(100)
        action = rng.randrange(4)
        if action == 0:
            data[rng.randrange(min(64, len(data)))] ^= 1 << rng.randrange(8)
        elif action == 1:
            start = rng.randrange(len(data))
            data[start : start + rng.randrange(600)] = rng.randbytes(min(600, len(data) - start))
        elif action == 2:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] ^= 1
        path.write_bytes(data)
    before, damages = found(copy.directory)
    originals = contents(copy.directory)
    lines = list(repair(copy.directory))
    assert bool(lines) == bool(damages)
    report = verify(copy.directory)
    assert report.damages == []
    assert report.lost == sum(d.lost_to - (d.lost_from or 0) for d in damages if d.lost_to)
    after, _ = found(copy.directory)
    assert after == before
    for name, data in contents(copy.directory).items():
        if name.endswith(".damaged"):
            assert data == originals[name.removesuffix(".damaged")]
    assert list(repair(copy.directory)) == []
    writer = open_journal(copy.directory)
    assert writer.next_sequence > max(sample.records)
    writer.close()


def test_a_segment_that_is_gone_is_put_on_record(copy: Sample) -> None:
    segment_paths(copy.directory)[1].unlink()
    damages = found(copy.directory)[1]
    assert len(list(repair(copy.directory))) == 2
    report = verify(copy.directory)
    assert report.good and report.damages == []
    assert damages[0].lost_to is not None and report.lost == damages[0].lost_to - (damages[0].lost_from or 0)


def test_a_journal_in_use_is_left_alone(copy: Sample) -> None:
    path = segment_paths(copy.directory)[-1]
    path.write_bytes(path.read_bytes()[:-1])
    writer = open_journal(copy.directory)
    before = contents(copy.directory)
    with pytest.raises(JournalBusy):
        list(repair(copy.directory))
    assert contents(copy.directory) == before
    writer.close()


def test_what_a_later_version_wrote_is_no_damage(copy: Sample) -> None:
    path = segment_paths(copy.directory)[1]
    data = path.read_bytes()
    header = SegmentHeader.unpack(data)
    newer = SegmentHeader(header.incarnation, header.first_sequence, header.previous_end, header.created_us, schema_version=9)
    path.write_bytes(newer.pack() + data[64:])
    assert BLOCK_MAGIC in data
    with pytest.raises(JournalTooNew, match="schema 9"):
        list(read(copy.directory))
    with pytest.raises(JournalTooNew, match=path.name):
        list(repair(copy.directory))
    assert not list(copy.directory.glob("*.damaged"))
