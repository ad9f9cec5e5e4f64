"""Which blocks a recovery takes when one before them is missing."""

from pathlib import Path

import pytest

from shardbroker.journal import Block, Damage, open_journal, read, repair, trusted, verify
from shardbroker.journal.schema import Kind, encode
from tests.journal.trust_cases import CASES, Case, make_journal

BLOCKS = 5


def write(directory: Path, synced: dict[int, int] | None, blocks: int = BLOCKS) -> tuple[Path, int]:
    """A writer's blocks, one record each; `synced`: block -> blocks known to be on the disk then. Returns its segment and where its
    records begin."""
    writer = open_journal(directory)
    first = writer.next_sequence
    size = 1 if synced is None else 2
    for number in range(blocks):
        writer.append(encode(Kind.RELEASED, session=number, packet_id=1, reason=0))
        if synced is not None:
            writer.append(encode(Kind.SYNCED, position=first + size * synced[number]))
        writer.seal(1 + number)
    writer.close()
    return sorted(directory.glob("*.sbj"))[-1], first


def spoil(segment: Path, number: int) -> None:
    """One bit of the block with this number."""
    blocks = [part for part in read(segment.parent) if isinstance(part, Block) and part.path == segment]
    content = bytearray(segment.read_bytes())
    content[blocks[number].end - 1] ^= 1
    segment.write_bytes(content)


def taken(directory: Path) -> list[int]:
    """Sessions of the records that count."""
    parts = trusted(read(directory))
    return [int(item[1]) for part in parts if isinstance(part, Block) for item in part.items() if item[0] == Kind.RELEASED]  # type: ignore[arg-type]


def errors(directory: Path) -> list[Damage]:
    return [part for part in trusted(read(directory)) if isinstance(part, Damage) and part.error]


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_counts_is_what_the_disk_was_known_to_have(case: Case, segments: bool, repaired: bool, tmp_path: Path) -> None:
    make_journal(tmp_path, case, segments)
    if repaired:
        assert list(repair(tmp_path))
    assert taken(tmp_path) == case.sessions()


def test_where_the_power_went_is_no_error(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, dict.fromkeys(range(BLOCKS), 0))
    write(tmp_path, dict.fromkeys(range(BLOCKS), 0), blocks=2)
    spoil(segment, 2)
    assert not errors(tmp_path)


def test_of_two_holes_one_may_be_damage_and_the_other_where_the_power_went(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, {0: 0, 1: 0, 2: 0, 3: 0, 4: 2})
    spoil(segment, 3)
    spoil(segment, 1)
    assert len(errors(tmp_path)) == 1


@pytest.mark.parametrize("lost", range(BLOCKS))
def test_a_check_judges_as_a_recovery_does(lost: int, tmp_path: Path) -> None:
    segment, _ = write(tmp_path, dict.fromkeys(range(BLOCKS), 0))
    spoil(segment, lost)
    report = verify(tmp_path)
    assert report.good and (report.records, report.void) == (2 * lost, BLOCKS - lost - 1)


def test_a_check_counts_what_the_disk_was_known_to_have(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, {0: 0, 1: 0, 2: 1, 3: 2, 4: 3})
    spoil(segment, 1)
    report = verify(tmp_path)
    assert not report.good and (report.records, report.void) == (2 * (BLOCKS - 1), 0)


def test_nothing_is_wrong_with_a_journal_that_was_repaired(tmp_path: Path) -> None:
    segment, _ = write(tmp_path, None)
    spoil(segment, 1)
    assert list(repair(tmp_path))
    assert verify(tmp_path).good


@pytest.mark.parametrize("writers", [1, 2])
def test_the_first_block_of_a_writer_at_level_process_is_damage(writers: int, tmp_path: Path) -> None:
    for _ in range(writers):
        segment, _ = write(tmp_path, None)
    spoil(segment, 0)
    assert taken(tmp_path) == [*list(range(BLOCKS)) * (writers - 1), *range(1, BLOCKS)]
    assert len(errors(tmp_path)) == 1
