"""The follower: records and damage as journal/reader.py has them, from any place, while a journal grows or is damaged."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.journal import Block, Damage, apply_retention, open_journal, read, repair
from shardbroker.journal.follow import Batch, Follower, Place
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.reader import read_segment
from shardbroker.journal.schema import Kind, encode
from tests.journal.samples import Sample, any_record, found, write_sample

SMALL = encode(Kind.RELEASED, session=1, packet_id=2, reason=0)
ALL = 1 << 63


def drain(follower: Follower) -> tuple[list[tuple[Any, ...]], list[Damage]]:
    """What is there by now: records, damage."""
    records: list[tuple[Any, ...]] = []
    damages: list[Damage] = []
    while True:
        for part in follower.read():
            if isinstance(part, Batch):
                records += part.records
            else:
                damages.append(part)
        if follower.at_end:
            return records, damages


def by_reader(directory: Path) -> list[tuple[Any, ...]]:
    blocks = [part for part in read(directory) if isinstance(part, Block)]
    return [(record.sequence, record.kind, *record.values) for block in blocks for record in block.records()]


def sequences(records: list[tuple[Any, ...]]) -> list[int]:
    return [record[0] for record in records]


@settings(max_examples=60, deadline=None)
@given(
    passes=st.lists(st.lists(any_record(), max_size=8), max_size=12),
    segment_bytes=st.sampled_from([100, 1000, 1 << 20]),
    at_once=st.booleans(),
)
def test_records_are_those_of_the_reader(
    tmp_path_factory: pytest.TempPathFactory, passes: list[list[bytes]], segment_bytes: int, at_once: bool
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    writer = open_journal(directory, segment_bytes=segment_bytes)
    follower = Follower(directory)
    got = []
    for number, records in enumerate(passes):
        for record in records:
            writer.append(record)
        writer.seal(1000 + number)
        if not at_once:
            got += drain(follower)[0]
    writer.close()
    more, damages = drain(follower)
    assert got + more == by_reader(directory) and not damages


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "0")
    assert follower.read() == [] and follower.at_end and follower.place is None
    writer = open_journal(tmp_path / "0")
    writer.append(SMALL)
    writer.seal(1)
    assert sequences(drain(follower)[0]) == [0]
    writer.close()


@pytest.mark.parametrize("body", [
    b"\x00", b"\x80", b"\x81\x20", b"\x82\x01\x61a", b"\x82\x01\x5b" + b"\xff" * 8, b"\x9b" + b"\xff" * 8,
    b"\x82\x01\xbb" + b"\xff" * 8, b"\x82\x01\x81\x01", b"\x82\x01", b"\x81\x01\x81\x01", b"\x81\x18", b"\xa0",
    b"\x82\x01\xa1\x41a\x01", b"\x82\x01\xa1\x01",
])  # fmt: skip
def test_a_block_that_violates_the_schema(tmp_path: Path, body: bytes) -> None:
    writer = open_journal(tmp_path)
    for record in (SMALL, body, SMALL):
        writer.append(record)
        writer.seal(1)
    writer.close()
    records, (damage,) = drain(Follower(tmp_path))
    assert sequences(records) == [0, 2]
    assert (damage.lost_from, damage.lost_to, damage.reason) == (1, 2, "records that violate the schema")


def test_only_what_is_wanted(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    for number in range(9):
        writer.append(SMALL)
        flags = 65 if number == 7 else 1
        writer.append(encode(Kind.MESSAGE, id=bytes(16), topic=b"t", payload=b"", flags=flags, expires_ms=0, properties=b""))
        writer.seal(number)
    writer.close()
    assert sequences(drain(Follower(tmp_path, kinds=[Kind.MESSAGE]))[0]) == list(range(1, 18, 2))
    assert sequences(drain(Follower(tmp_path, kinds=[Kind.MESSAGE], flags=64))[0]) == [15]
    follower = Follower(tmp_path, kinds=[Kind.HELD])
    assert drain(follower) == ([], [])
    assert follower.place.position == 18
    with pytest.raises(ValueError, match="must be numbers below 64"):
        Follower(tmp_path, kinds=[64])


def test_kinds_of_later_versions_are_returned(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    writer.append(b"\x83\x18\xfa\x01\x41x")
    writer.seal(1)
    writer.close()
    assert drain(Follower(tmp_path))[0] == [(0, 250, 1, b"x")]
    assert drain(Follower(tmp_path, kinds=range(64)))[0] == []


def test_a_block_larger_than_one_read(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    large = encode(Kind.WILL_SET, session=1, topic=b"t", payload=bytes(3 << 20), flags=0, properties=b"", delay_s=0)
    for record in (SMALL, large, SMALL, large):
        writer.append(record)
        writer.seal(1)
    writer.close()
    assert drain(Follower(tmp_path)) == (by_reader(tmp_path), [])


def test_every_position_can_be_resumed(sample: Sample) -> None:
    every = by_reader(sample.directory)
    for position in [*sample.records, max(sample.records) + 1]:
        for place in (Place(0, 0, position), Place(1 << 60, 1 << 60, position)):
            assert drain(Follower(sample.directory, place)) == ([record for record in every if record[0] >= position], [])


def test_every_place_that_was_returned_can_be_resumed(sample: Sample) -> None:
    every, follower = by_reader(sample.directory), Follower(sample.directory)
    places = []
    while not follower.at_end:
        places += [part.place for part in follower.read()]
        places.append(follower.place)
    for place in places:
        assert drain(Follower(sample.directory, place)) == ([record for record in every if record[0] >= place.position], [])


def test_every_length_of_the_last_segment(sample: Sample, copy: Sample) -> None:
    """As while it is written: what looks torn is no damage, and is read once it is whole."""
    path = segment_paths(copy.directory)[-1]
    data, every = path.read_bytes(), by_reader(sample.directory)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        follower = Follower(copy.directory)
        records, damages = drain(follower)
        assert records == by_reader(copy.directory) and not damages
        path.write_bytes(data)
        assert (records + drain(follower)[0], damages) == (every, [])


def test_every_length_of_a_segment_that_another_one_follows(sample: Sample, copy: Sample) -> None:
    """A kill while a block was written, or a disk that lost some of it: named as the reader names it."""
    for path in segment_paths(copy.directory)[:-1]:
        data = path.read_bytes()
        for size in range(0, len(data), 7):
            path.write_bytes(data[:size])
            assert_as_reader(copy.directory)
        path.write_bytes(data)


def assert_as_reader(directory: Path) -> None:
    records, damages = drain(Follower(directory))
    assert records == by_reader(directory)
    assert {str(one) for one in damages} == {str(one) for one in found(directory)[1] if one.lost_to is not None or not one.torn}


@pytest.mark.parametrize("seed", range(6))
def test_damage_anywhere(copy: Sample, seed: int) -> None:
    rng = random.Random(seed)
    paths = segment_paths(copy.directory)
    originals = {path: path.read_bytes() for path in paths}
    last = copy.blocks()[-1]
    for _ in range(25):
        for _ in range(rng.choice([1, 1, 2, 5])):
            path = rng.choice(paths[:-1])
            data = bytearray(path.read_bytes())
            data[rng.randrange(64) if rng.random() < 0.2 else rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        assert_as_reader(copy.directory)
        for path, original in originals.items():
            path.write_bytes(original)
    # In the newest segment, whose end may still change: only what valid blocks follow.
    data = bytearray(last.path.read_bytes())
    data[last.offset + 50] ^= 1
    last.path.write_bytes(data)
    assert drain(Follower(copy.directory)) == (by_reader(copy.directory), [])


def test_a_segment_that_retention_has_removed(copy: Sample) -> None:
    follower = Follower(copy.directory)
    follower.read()
    place, paths = follower.place, segment_paths(copy.directory)
    kept = [record for record in by_reader(copy.directory) if record[0] >= int(paths[3].stem)]
    apply_retention(copy.directory, int(paths[3].stem), 1 << 60, max_bytes=0)
    records, (damage,) = drain(Follower(copy.directory, place))
    assert records == kept
    assert (damage.lost_from, damage.lost_to) == (place.position, int(paths[3].stem))
    # The one that was open is read to its end.
    rest, (damage,) = drain(follower)
    assert rest == kept and damage.lost_from == place.position
    assert drain(Follower(copy.directory)) == (kept, [])


def test_a_repair_in_between(copy: Sample) -> None:
    blocks = copy.blocks()
    second = next(number for number, block in enumerate(blocks) if block.header.incarnation != blocks[0].header.incarnation)
    hit, torn = blocks[2], blocks[second - 1]
    for block, at in ((hit, 60), (torn, 50)):
        data = bytearray(block.path.read_bytes())
        data[block.offset + at] ^= 1
        block.path.write_bytes(data)
    places = []
    follower = Follower(copy.directory)
    while not follower.at_end:
        places += [part.place for part in follower.read() if isinstance(part, Batch)]
    every = by_reader(copy.directory)
    assert list(repair(copy.directory))
    for place in places:
        records, damages = drain(Follower(copy.directory, place))
        assert records == [record for record in every if record[0] >= place.position]
        lost = {one.lost_from for one in damages if one.lost_to}
        assert lost == {block.header.first_sequence for block in (hit, torn) if block.header.first_sequence >= place.position}


def test_records_that_a_power_cut_took_back(tmp_path: Path) -> None:
    """They were followed before; what is written afterwards has other numbers."""
    sample = write_sample(tmp_path, incarnations=1, segment_bytes=400)
    follower = Follower(tmp_path)
    assert sequences(drain(follower)[0]) == list(sample.records)
    place, paths = follower.place, segment_paths(tmp_path)
    for path in paths[-2:]:
        path.unlink()
    paths[-3].write_bytes(paths[-3].read_bytes()[:-9])
    later = write_sample(tmp_path, incarnations=1)
    for one in (follower, Follower(tmp_path, place)):
        assert sequences(drain(one)[0]) == list(later.records)


def test_a_journal_that_was_set_aside_precedes_its_successor(tmp_path: Path) -> None:
    first = write_sample(tmp_path / "2", incarnations=1)
    follower = Follower(tmp_path / "2")
    follower.read()
    place = follower.place
    (tmp_path / "2").rename(tmp_path / "2.retired-1790000000")
    assert sequences(drain(Follower(tmp_path / "2"))[0]) == list(first.records)
    later = write_sample(tmp_path / "2", incarnations=1)
    assert not set(first.records) & set(later.records)
    every = [*first.records, *later.records]
    assert drain(Follower(tmp_path / "2"))[0] == by_reader(tmp_path / "2.retired-1790000000") + by_reader(tmp_path / "2")
    for one in (follower, Follower(tmp_path / "2", place)):
        records, damages = drain(one)
        assert sequences(records) == [sequence for sequence in every if sequence >= place.position] and not damages


def test_records_in_two_segments_are_returned_once(copy: Sample) -> None:
    """What a failed sync leaves: the old segment has a block that the next one has too."""
    first, second = segment_paths(copy.directory)[:2]
    block = next(block for block in copy.blocks() if block.path.name == second.name)
    every = by_reader(copy.directory)
    with first.open("ab") as file:
        file.write(second.read_bytes()[block.offset : block.end])
    assert drain(Follower(copy.directory)) == (every, [])


def test_closed_in_between(sample: Sample, tmp_path: Path) -> None:
    shutil.copytree(sample.directory, tmp_path / "copy")
    follower, records = Follower(tmp_path / "copy"), []
    while not follower.at_end:
        records += [record for part in follower.read() for record in part.records]
        if not follower.at_end:
            follower.close()
    assert records == by_reader(sample.directory)


def test_a_segment_whose_writer_begins_it_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is empty for the first look, and has header and block for the second."""
    writer = open_journal(tmp_path, segment_bytes=100)
    for number in range(2):
        writer.append(SMALL)
        writer.seal(number + 1)
    writer.close()
    path = segment_paths(tmp_path)[-1]
    content = path.read_bytes()
    path.write_bytes(b"")
    looks = []

    def read_late(*arguments: Any) -> Any:
        looks.append(arguments)
        path.write_bytes(content)
        return read_segment(*arguments)

    monkeypatch.setattr("shardbroker.journal.follow.read_segment", read_late)
    records, damages = drain(follower := Follower(tmp_path))
    assert len(looks) == 1 and sequences(records) == [0] and not damages
    records, damages = drain(follower)
    assert sequences(records) == [1] and not damages
