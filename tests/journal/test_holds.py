"""Holds of consumers: what they keep, their limits, and files that are damaged or hostile."""

import os
import stat
from pathlib import Path

import pytest

from shardbroker.journal.holds import DAMAGED_BYTES, FILE_BYTES, HOLDS_DIR, Hold, read_holds, release_hold, set_hold
from shardbroker.journal.layout import segment_paths, segment_start
from tests.journal.samples import write_sample


def test_a_hold_is_read_as_it_was_set(tmp_path: Path) -> None:
    assert read_holds(tmp_path) == []
    hold = Hold("postgresql:readings", {"0": 17, "12": (1 << 64) - 1}, 1000, 1_800_000_000_000)
    set_hold(tmp_path, Hold(hold.consumer, {"0": 1}))
    set_hold(tmp_path, hold)
    set_hold(tmp_path, Hold("b"))
    assert read_holds(tmp_path) == [Hold("b"), hold]
    path = tmp_path / HOLDS_DIR / "b.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    release_hold(tmp_path, "b")
    release_hold(tmp_path, "b")
    assert read_holds(tmp_path) == [hold]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\n", "ä", "x" * 129])
def test_a_name_cannot_leave_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="consumer: must be 1 to 128 letters"):
        set_hold(tmp_path, Hold(name))
    with pytest.raises(ValueError, match="consumer: must be 1 to 128 letters"):
        release_hold(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_what_is_kept(tmp_path: Path) -> None:
    write_sample(tmp_path / "0")
    paths = segment_paths(tmp_path / "0")
    starts, sizes = [segment_start(path) for path in paths], [path.stat().st_size for path in paths]
    hold = Hold("c", {"0": starts[1] + 1}, sum(sizes))
    assert hold.keep_from(tmp_path / "0", 5) == starts[1] + 1
    assert Hold("c", {"1": 99}, sum(sizes)).keep_from(tmp_path / "0", 5) == 0, "a journal that its consumer has not read"
    assert Hold("c", {"0": 0}, sum(sizes) - 1).keep_from(tmp_path / "0", 5) == starts[1], "the oldest segment gives way"
    assert Hold("c", {"0": 0}, sizes[-1]).keep_from(tmp_path / "0", 5) == starts[-1]
    assert Hold("c", {"0": 0}, 0).keep_from(tmp_path / "0", 5) is None
    for now_ms, kept in ((4, True), (5, False)):
        assert (Hold("c", {"0": 0}, 1 << 40, until_ms=5).keep_from(tmp_path / "0", now_ms) is not None) == kept


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b"[" * 60_000, b"\xff", b"{}", b'{"positions": [], "max_bytes": 1}',
    b'{"positions": {"0": -1}, "max_bytes": 1}', b'{"positions": {"0": true}, "max_bytes": 1}',
    b'{"positions": {"../x": 1}, "max_bytes": 1}',
    b'{"positions": {}, "max_bytes": 1e400}',
    b'{"positions": {}, "max_bytes": 18446744073709551616}', b'{"positions": {}, "max_bytes": 1, "until_ms": "x"}',
    b'{"positions": {}, "max_bytes": ' + b"9" * 5000 + b"}", b" " * (FILE_BYTES + 1),
])  # fmt: skip
def test_a_damaged_file_holds_and_is_named(tmp_path: Path, content: bytes) -> None:
    set_hold(tmp_path, Hold("whole", {"0": 7}))
    (tmp_path / HOLDS_DIR / "c.json").write_bytes(content)
    damaged, whole = read_holds(tmp_path)
    assert whole == Hold("whole", {"0": 7})
    assert (damaged.consumer, damaged.positions, damaged.max_bytes) == ("c", {}, DAMAGED_BYTES)
    assert 0 < len(damaged.problem) < 300


def test_links_pipes_and_directories_are_not_read(tmp_path: Path) -> None:
    directory = tmp_path / HOLDS_DIR
    set_hold(tmp_path, Hold("real"))
    (directory / "a.json").symlink_to(directory / "real.json")
    os.mkfifo(directory / "b.json")
    (directory / "c.json").mkdir()
    (directory / "d.json.new").write_bytes(b"left by a kill")
    (directory / os.fsdecode(b"e\xff.json")).write_bytes(b"{}")
    found = {hold.consumer: bool(hold.problem) for hold in read_holds(tmp_path)}
    assert found == {"a": True, "b": True, "c": True, "'e\\udcff'": True, "real": False}
