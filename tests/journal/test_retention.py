"""Retention: by age, by bytes, never what is needed, never the newest."""

from pathlib import Path

import pytest

from shardbroker.journal import apply_retention, open_journal, read
from shardbroker.journal.layout import INCARNATION_STEP, segment_paths, segment_start
from shardbroker.journal.schema import Kind, encode

RECORD = encode(Kind.RECEIVED, session=1, packet_id=2, id=bytes(100))
ALL = 1 << 63


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Ten segments of one block each, one a second, two incarnations."""
    for incarnation in range(2):
        writer = open_journal(tmp_path, segment_bytes=100)
        for second in range(5):
            writer.append(RECORD)
            writer.seal((incarnation * 5 + second) * 1_000_000 + 1)
        writer.close()
    assert len(segment_paths(tmp_path)) == 10
    return tmp_path


def test_nothing_to_do(directory: Path) -> None:
    assert apply_retention(directory, ALL, 10_000_000) == []
    assert apply_retention(directory, ALL, 10_000_000, max_age_us=10_000_000, max_bytes=1 << 20) == []


def test_by_age(directory: Path) -> None:
    removed = apply_retention(directory, ALL, 10_000_000, max_age_us=6_000_000)
    assert [item.reason for item in removed] == ["age"] * 3
    assert len(segment_paths(directory)) == 7
    assert not [item for item in read(directory) if not hasattr(item, "body")]


def test_by_bytes(directory: Path) -> None:
    size = segment_paths(directory)[0].stat().st_size
    removed = apply_retention(directory, ALL, 10_000_000, max_bytes=4 * size)
    assert [item.reason for item in removed] == ["bytes"] * 6
    assert sum(path.stat().st_size for path in segment_paths(directory)) == 4 * size


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_age_us": 0}])
def test_never_what_is_needed(directory: Path, limits: dict[str, int]) -> None:
    starts = [segment_start(path) for path in segment_paths(directory)]
    for keep_from in (0, 1, 2, 5, 2 * INCARNATION_STEP, 2 * INCARNATION_STEP + 1):
        apply_retention(directory, keep_from, 1 << 60, **limits)
        left = [segment_start(path) for path in segment_paths(directory)]
        assert set(left) >= {start for start in starts if start >= keep_from}
        kept = [item.header for item in read(directory, keep_from) if hasattr(item, "header")]
        assert kept[0].first_sequence <= max(keep_from, starts[0]) or kept[0].first_sequence == 2 * INCARNATION_STEP


def test_never_the_newest(directory: Path) -> None:
    apply_retention(directory, ALL, 1 << 60, max_age_us=0, max_bytes=0)
    (path,) = segment_paths(directory)
    assert segment_start(path) == 2 * INCARNATION_STEP + 4


def test_while_a_worker_writes(directory: Path) -> None:
    writer = open_journal(directory, segment_bytes=100)
    for second in range(10, 20):
        writer.append(RECORD)
        writer.seal(second * 1_000_000)
        apply_retention(directory, writer.durable, second * 1_000_000, max_age_us=3_000_000)
    assert len(segment_paths(directory)) <= 6
    assert writer.close()
    assert writer.durable == 4 * INCARNATION_STEP + 10
