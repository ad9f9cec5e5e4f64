"""What counts after a power cut: executors leave out what a recovery leaves out, and call the same things damage."""

import random
from pathlib import Path

import pytest

from pyspark_shardbroker.journals import Journal, pieces
from pyspark_shardbroker.options import Wanted
from pyspark_shardbroker.reading import read_piece, scan_piece
from pyspark_shardbroker.segments import Damage
from shardbroker.journal import Block, open_journal, read, repair, trusted
from shardbroker.journal import Damage as BrokerDamage
from shardbroker.journal.schema import Kind, encode
from tests.journal.trust_cases import CASES, Case, make_journal, spoil


def write(directory: Path, chance: random.Random, machine: bool) -> None:
    """A writer of some small segments; at level `machine` each block says how far the disk was, some blocks behind."""
    writer = open_journal(directory, segment_bytes=300)
    ends = [writer.next_sequence]
    synced = ends[0]
    for number in range(chance.randint(1, 25)):
        for _ in range(chance.randint(1, 3)):
            writer.append(encode(Kind.RELEASED, session=number, packet_id=1, reason=0))
        if machine:
            synced = max(synced, ends[max(0, len(ends) - chance.randint(2, 9))])
            writer.append(encode(Kind.SYNCED, position=synced))
        writer.seal(1 + number)
        ends.append(writer.next_sequence)
    writer.close()


def spoil_some(directory: Path, chance: random.Random) -> None:
    """Bits of some blocks; or a whole segment of zeros."""
    blocks = sum(isinstance(part, Block) and not part.lost for part in read(directory))
    spoil(directory, chance.sample(range(blocks), min(blocks, chance.randint(1, 3))))
    if chance.random() < 0.3:
        path = chance.choice(sorted(directory.glob("*.sbj")))
        path.write_bytes(bytes(path.stat().st_size))


def rows(directory: Path, column: str, partition_bytes: int) -> list[int]:
    """A column of all records that executors read."""
    found = pieces(Journal("0", [directory]), Wanted(), partition_bytes)
    return [row for piece in found for batch in read_piece(piece, [column], Wanted(), False) for row in batch[0].to_pylist()]


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_counts_is_what_the_disk_was_known_to_have(case: Case, segments: bool, repaired: bool, tmp_path: Path) -> None:
    make_journal(tmp_path, case, segments)
    if repaired:
        assert list(repair(tmp_path))
    # Records `synced` have no session.
    assert [session for session in rows(tmp_path, "session", 64 << 20) if session is not None] == case.sessions()


@pytest.mark.parametrize("partition_bytes", [64 << 20, 200])
@pytest.mark.parametrize("seed", range(60))
def test_what_a_recovery_takes_is_what_executors_read(tmp_path: Path, seed: int, partition_bytes: int) -> None:
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 3)):
        for _ in range(chance.randint(1, 2)):
            write(tmp_path, chance, chance.random() < 0.8)
        spoil_some(tmp_path, chance)
        if chance.random() < 0.5:
            list(repair(tmp_path))
    parts = list(trusted(read(tmp_path)))
    wanted = [record.sequence for part in parts if isinstance(part, Block) for record in part.records()]
    assert rows(tmp_path, "sequence", partition_bytes) == wanted
    errors = {str(part.path) for part in parts if isinstance(part, BrokerDamage) and part.error}
    found = pieces(Journal("0", [tmp_path]), Wanted(), partition_bytes)
    named = {item.path for piece in found for item in scan_piece(piece) if isinstance(item, Damage) and not item.torn}
    # At level `process` nothing says where the power went: an end that does not look like an unfinished block is named.
    assert named >= errors


def test_where_the_power_went_is_no_damage(tmp_path: Path) -> None:
    writer = open_journal(tmp_path)
    for number in range(5):
        writer.append(encode(Kind.RELEASED, session=number, packet_id=1, reason=0))
        writer.append(encode(Kind.SYNCED, position=2))
        writer.seal(1 + number)
    writer.close()
    spoil(tmp_path, [2])
    (piece,) = pieces(Journal("0", [tmp_path]), Wanted(), 64 << 20)
    assert [row for batch in read_piece(piece, ["sequence"], Wanted(), True) for row in batch[0].to_pylist()] == [0, 1, 2, 3]
