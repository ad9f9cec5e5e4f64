"""Files that are replaced as a whole, and are there after a power cut: one helper, and no other way beside it."""

import ast
import os
import re
import stat
from pathlib import Path

import pytest

from shardbroker.config.sources import read_kept, write_kept
from shardbroker.hooks.wanted import write_wanted
from shardbroker.stores.checked_number import write_number
from shardbroker.stores.files import replace_file, replacing

ROOT = Path(__file__).parents[2]
OTHERWISE = {
    "acceptor": {},
    "shm": {
        "cleanup.py": "directories within shared memory",
    },
    "shardbroker": {
        "access/accounts.py": "a file is set aside",
        "deploy/backup.py": "a directory that has been filled",
        "flows/cursors.py": "a file is set aside",
        "deploy/installing.py": "a directory takes the place of another",
        "journal/writer.pyx": "a file is set aside",
        "management/exports.py": "an upload that is complete; it is synced",
        "membership/own_etcd.py": "a directory is set aside",
        "management/snapshots.py": "a directory that has been filled; it is synced",
        "stores/files.py": "the helper itself",
        "stores/retained.py": "a file is set aside",
        "link/signals.py": "rings to a peer, in shared memory, appear whole",
        "stores/retained_check.py": "a directory takes the place of another, and a check that was killed goes on there",
        "supervisor/layout.py": "a journal is set aside",
    },
}
"""Where something is renamed without the helper, and why."""
RENAMES = re.compile(r"\bos\.(?:replace|rename)\(|\.rename\(|(?<![\w\"'])new\.replace\(")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and replaced, in order."""
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noting_fsync(fd: int) -> None:
        seen.append("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        fsync(fd)

    def noting_replace(old: Path, new: Path) -> None:
        seen.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    return seen


WRITERS = {
    "replace_file": lambda directory: replace_file(directory / "a", b"new"),
    "runtime.toml": lambda directory: write_kept(directory / "runtime.toml", {("mqtt", "max_inflight"): 2}),
    "plugins": lambda directory: write_wanted(directory, {"a": {"b": "c"}}),
    "number of workers": lambda directory: write_number(directory / "workers", 3, sync=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_it_counts(
    name: str, tmp_path: Path, calls: list[str]
) -> None:
    WRITERS[name](tmp_path)
    assert calls == ["sync file", "replace", "sync directory"]
    (only,) = tmp_path.iterdir()
    assert only.stat().st_mode & 0o777 == 0o600


def test_nothing_has_changed_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runtime.toml"
    write_kept(path, {("mqtt", "max_inflight"): 2})

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_kept(path, {("mqtt", "max_inflight"): 3})
    with pytest.raises(RuntimeError), replacing(path):
        raise RuntimeError
    assert read_kept(path) == {("mqtt", "max_inflight"): 2}
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_left_by_a_write_that_was_killed_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    (tmp_path / "a.new").symlink_to(other)
    replace_file(tmp_path / "a", b"new", mode=0o640)
    assert other.read_bytes() == b"other" and (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("package", OTHERWISE)
def test_no_file_is_replaced_in_another_way(package: str) -> None:
    sources = [path for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".pyx")]
    found = {str(path.relative_to(ROOT / package)) for path in sources if RENAMES.search(_code(path))}
    assert found == set(OTHERWISE[package])


def _code(path: Path) -> str:
    text = path.read_text()
    return ast.unparse(ast.parse(text)) if path.suffix == ".py" else text
