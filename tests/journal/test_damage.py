"""Damaged journals: the reader names what is damaged, and everything outside it is there."""

import random
from pathlib import Path

import pytest

from shardbroker.journal import Block, find_end, open_journal, read
from shardbroker.journal.layout import BLOCK_HEADER_BYTES, INCARNATION_STEP, SEGMENT_HEADER_BYTES, segment_name, segment_paths
from shardbroker.journal.schema import Kind, encode
from tests.journal.samples import Sample, found, write_sample


def check(copy: Sample, whole: Sample, hit: dict[str, set[int]]) -> bool:
    """Holds what is read against what was written; `hit` are the damaged bytes of each file. Whether an error was named."""
    records, damages = found(copy.directory)
    expected: set[int] = set()
    for block in whole.blocks():
        touched = hit.get(block.path.name, set())
        if not any(block.offset <= byte < block.end for byte in touched):
            expected |= set(range(block.header.first_sequence, block.header.end_sequence))
    assert set(records) == expected
    # What is named: all that was hit, nothing that is whole, and just the records that are not there.
    named = {(damage.path.name, byte) for damage in damages for byte in range(damage.start, damage.end)}
    assert {(name, byte) for name, touched in hit.items() for byte in touched} <= named
    for block in copy.blocks():
        assert not any((block.path.name, byte) in named for byte in range(block.offset, block.end))
    lost = {sequence for damage in damages if damage.lost_to for sequence in range(damage.lost_from or 0, damage.lost_to)}
    missing = set(whole.records) - expected
    assert lost <= missing
    # Nobody can tell about the end of the journal, and of the first incarnation if its successor's header is gone too.
    last = max(expected, default=-1)
    for sequence in missing - lost:
        assert sequence > last or (
            sequence > max((number for number in expected if number < INCARNATION_STEP), default=-1)
            and any(byte < SEGMENT_HEADER_BYTES for byte in hit.get(segment_name(2 * INCARNATION_STEP), set()))
        ), sequence
    return any(damage.error for damage in damages)


def test_an_undamaged_journal(sample: Sample) -> None:
    records, damages = found(sample.directory)
    assert set(records) == set(sample.records) and not damages
    assert len(segment_paths(sample.directory)) > 4


def test_every_length_of_the_last_block(sample: Sample, copy: Sample) -> None:
    last = sample.blocks()[-1]
    path = copy.directory / last.path.name
    data = path.read_bytes()
    whole = set(sample.records) - set(range(last.header.first_sequence, last.header.end_sequence))
    for size in range(last.offset, last.end):
        path.write_bytes(data[:size])
        records, damages = found(copy.directory)
        assert set(records) == whole
        if size == last.offset:
            assert not damages  # nobody can tell
        else:
            (damage,) = damages
            assert (damage.path, damage.start, damage.end, damage.torn, damage.error) == (path, last.offset, size, True, False)
        assert find_end(copy.directory) == last.header.first_sequence


def test_every_length_of_the_last_block_of_an_earlier_incarnation(sample: Sample, copy: Sample) -> None:
    """A kill, and a start after it: the start knows how far the journal went, so what is missing later is known too."""
    blocks = sample.blocks()
    second = next(number for number, block in enumerate(blocks) if block.header.incarnation != blocks[0].header.incarnation)
    last = blocks[second - 1]
    path = copy.directory / last.path.name
    data = path.read_bytes()
    for size in range(last.offset + 1, last.end):
        path.write_bytes(data[:size])
        (damage,) = found(copy.directory)[1]
        assert damage.torn and damage.error
        assert (damage.lost_from, damage.lost_to) == (last.header.first_sequence, last.header.end_sequence)
    path.write_bytes(data[: last.offset])
    (damage,) = found(copy.directory)[1]
    assert damage.error and damage.lost_to == last.header.end_sequence


def test_a_kill_and_a_start_leave_no_error(tmp_path: Path) -> None:
    sample = write_sample(tmp_path, incarnations=1, segment_bytes=1 << 20)
    (path,) = segment_paths(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    write_sample(tmp_path, incarnations=1)
    records, damages = found(tmp_path)
    assert [damage.error for damage in damages] == [False]
    assert len(records) > len(sample.records)


@pytest.mark.parametrize("size", range(SEGMENT_HEADER_BYTES + 1))
def test_a_new_segment_that_is_cut_off(copy: Sample, size: int) -> None:
    path = segment_paths(copy.directory)[-1]
    path.write_bytes(path.read_bytes()[:size])
    _, damages = found(copy.directory)
    assert not any(damage.error for damage in damages)
    assert len(damages) == (size < SEGMENT_HEADER_BYTES)
    open_journal(copy.directory).close()


@pytest.mark.parametrize("zeros", [1, 3, 47, 48, 5000, 3 << 20])
def test_zeros_behind_the_end(copy: Sample, zeros: int) -> None:
    """Some file systems leave them after a power cut."""
    path = segment_paths(copy.directory)[-1]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(zeros))
    records, (damage,) = found(copy.directory)
    assert set(records) == set(copy.records)
    assert (damage.start, damage.end, damage.torn, damage.error) == (size, size + zeros, True, False)


@pytest.mark.parametrize("seed", range(8))
def test_random_bits(sample: Sample, copy: Sample, seed: int) -> None:
    rng = random.Random(seed)
    paths = segment_paths(copy.directory)
    originals = {path: path.read_bytes() for path in paths}
    for _ in range(25):
        hit: dict[str, set[int]] = {}
        for _ in range(rng.choice([1, 1, 1, 2, 5, 30])):
            path = rng.choice(paths)
            data = bytearray(path.read_bytes())
            # Headers are hit as often as all the rest.
            byte = rng.randrange(SEGMENT_HEADER_BYTES) if rng.random() < 0.2 else rng.randrange(len(data))
            if byte in hit.get(path.name, ()):
                continue
            data[byte] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            hit.setdefault(path.name, set()).add(byte)
        error = check(copy, sample, hit)
        last = sample.blocks()[-1]
        in_last = {(name, byte) for name, touched in hit.items() for byte in touched} <= {
            (last.path.name, byte) for byte in range(last.offset, last.end)
        }
        assert error or in_last, (hit, found(copy.directory)[1])
        open_journal(copy.directory).close()
        for path, original in originals.items():
            path.write_bytes(original)


def test_header_and_first_block_of_a_journal_of_one_segment(tmp_path: Path) -> None:
    sample = write_sample(tmp_path, incarnations=1, segment_bytes=1 << 20)
    blocks = sample.blocks()
    (path,) = segment_paths(tmp_path)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    data[SEGMENT_HEADER_BYTES + 20] ^= 1
    path.write_bytes(data)
    records, (damage,) = found(tmp_path)
    assert set(records) == set(range(blocks[0].header.end_sequence, blocks[-1].header.end_sequence))
    assert (damage.start, damage.end) == (0, blocks[1].offset)
    assert (damage.lost_from, damage.lost_to) == (0, blocks[0].header.end_sequence)


def test_a_segment_that_is_gone(copy: Sample, sample: Sample) -> None:
    path = segment_paths(copy.directory)[1]
    gone = {
        sequence
        for block in sample.blocks()
        if block.path.name == path.name
        for sequence in range(block.header.first_sequence, block.header.end_sequence)
    }
    path.unlink()
    records, (damage,) = found(copy.directory)
    assert set(records) == set(sample.records) - gone
    assert (damage.lost_from, damage.lost_to, damage.error) == (min(gone), max(gone) + 1, True)


def test_a_payload_that_looks_like_a_block_is_none(tmp_path: Path) -> None:
    """Somebody publishes a whole segment of another broker; then the block around it is damaged."""
    forged = write_sample(tmp_path / "other", incarnations=1, segment_bytes=1 << 20)
    payload = segment_paths(forged.directory)[0].read_bytes()
    writer = open_journal(tmp_path / "own")
    for number in range(3):
        body = payload if number == 1 else b"x"
        writer.append(encode(Kind.WILL_SET, session=1, topic=b"t", payload=body, flags=0, properties=b"", delay_s=0))
        writer.seal(number)
    writer.close()
    blocks = Sample(tmp_path / "own").blocks()
    (path,) = segment_paths(tmp_path / "own")
    whole = path.read_bytes()
    for header_too in (False, True):
        data = bytearray(whole)
        data[blocks[1].offset + BLOCK_HEADER_BYTES + 1] ^= 1
        if header_too:
            data[0] ^= 1
        path.write_bytes(data)
        records, damages = found(tmp_path / "own")
        assert set(records) == {0, 2}
        assert (damages[-1].start, damages[-1].end) == (blocks[1].offset, blocks[1].end)


def test_reading_from_a_position(sample: Sample) -> None:
    for start in (0, 1, 17, *list(sample.records)[-3:], max(sample.records) + 1):
        sequences = [r.sequence for item in read(sample.directory, start) if isinstance(item, Block) for r in item.records()]
        assert [sequence for sequence in sequences if sequence >= start] == [s for s in sample.records if s >= start]
        assert len([sequence for sequence in sequences if sequence < start]) < 8


def test_the_same_records_in_two_segments_are_read_once(sample: Sample, copy: Sample) -> None:
    """What a failed sync leaves: the old segment has a block that the next one has too."""
    first, second = segment_paths(copy.directory)[:2]
    block = next(block for block in sample.blocks() if block.path.name == second.name)
    with first.open("ab") as file:
        file.write(second.read_bytes()[block.offset : block.end])
    records, damages = found(copy.directory)
    assert set(records) == set(sample.records) and not damages
