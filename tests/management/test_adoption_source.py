"""A data directory from elsewhere is looked at before it is adopted: what is refused, and that nothing changes."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shardbroker.journal.layout import SegmentHeader, segment_name
from shardbroker.management.adoption_source import SourceError, count_of, look_at
from shardbroker.stores.adoption import Adopted, Adoption, read_adopted, read_adoptions, write_adopted, write_adoptions
from shardbroker.stores.checked_number import write_number
from shardbroker.stores.node_file import Enrolled, node_uuid, write_enrolled

PLACE, CLUSTER = "/shardbroker/c/", b"c" * 16


@pytest.fixture(name="own")
def own_directory(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


@pytest.fixture(name="source")
def a_source(tmp_path: Path) -> Path:
    path = tmp_path / "dead"
    path.mkdir(mode=0o700)
    node_uuid(path)
    write_enrolled(path, Enrolled(7, CLUSTER, PLACE))
    for worker in range(3):
        journal = path / "journal" / str(worker)
        journal.mkdir(parents=True)
        (journal / segment_name(0)).write_bytes(SegmentHeader(1, 0, 0, 1, worker, 3).pack())
    write_number(path / "journal" / "workers", 3)
    (path / "spool" / "2" / "1").mkdir(parents=True)
    (path / "spool" / "2" / "1" / "x.sbj").write_bytes(b"x" * 100)
    return path


def test_what_is_known(source: Path, own: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in source.rglob("*"))
    found = look_at(source, own, PLACE, CLUSTER)
    assert (found.path, found.uuid, found.enrolled.node_id) == (source, node_uuid(source), 7)
    assert (found.workers, found.journal_bytes, found.spool_bytes) == (3, 3 * 64, 100)
    counted = count_of(found)
    assert counted is not None and (counted.sessions, counted.messages) == (0, 0)
    assert sorted((path, path.stat().st_mtime_ns) for path in source.rglob("*")) == before


def newer(source: Path) -> None:
    (source / "journal" / "0" / segment_name(0)).write_bytes(SegmentHeader(1, 0, 0, 1, schema_version=999).pack())


def linked(source: Path) -> None:
    (source / "journal" / "0" / "link").symlink_to("/etc/passwd")


def piped(source: Path) -> None:
    os.mkfifo(source / "journal" / "pipe")


def deep(source: Path) -> None:
    (source / "/".join("abcdefghij")).mkdir(parents=True)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda source: (source / "node").unlink(), "has no file node"),
        (lambda source: (source / "node").write_text("zz"), "must have 32 hex digits"),
        (lambda source: (source / "cluster" / "enrolled").unlink(), "was never enrolled"),
        (lambda source: (source / "cluster" / "enrolled").write_text("{}"), "must be JSON"),
        (lambda source: write_enrolled(source, Enrolled(7, b"d" * 16, PLACE)), "must be of a node of this cluster"),
        (lambda source: write_enrolled(source, Enrolled(7, CLUSTER, "/else/c/")), "must be of a node of this cluster"),
        (lambda source: write_adopted(source, Adopted("n2", 5)), "was adopted by node n2 already"),
        (lambda source: source.chmod(0o777), "must not be writable for others, got mode 0777"),
        (lambda source: (source / "journal").chmod(0o770), "must not be writable for others"),
        (newer, "schema 999 are not supported"),
        (linked, "links are not followed"),
        (piped, "must be a file or a directory"),
        (deep, "levels deep"),
    ],
)
def test_what_is_refused(source: Path, own: Path, damage: Callable[[Path], object], text: str) -> None:
    damage(source)
    with pytest.raises(SourceError, match=text):
        look_at(source, own, PLACE, CLUSTER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_another_user_are_refused(source: Path, own: Path) -> None:
    os.chown(source / "node", 65534, 65534)
    with pytest.raises(SourceError, match="must belong to the user of the broker"):
        look_at(source, own, PLACE, CLUSTER)


def test_places_are_refused(source: Path, own: Path, tmp_path: Path) -> None:
    for path, text in (
        (Path("dead"), "must be an absolute path"), (tmp_path / "none", "No such file"), (source / "node", "must be a directory"),
        (own, "must be apart from"), (tmp_path, "must be apart from"),
    ):  # fmt: skip
        with pytest.raises(SourceError, match=text):
            look_at(path, own, PLACE, CLUSTER)


def test_a_directory_in_use_is_refused(source: Path, own: Path) -> None:
    with open(source / "lock", "w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SourceError, match="is in use by the broker with pid 4711"):
            look_at(source, own, PLACE, CLUSTER)
    look_at(source, own, PLACE, CLUSTER)


def test_damaged_journals_are_left_to_the_start(source: Path, own: Path) -> None:
    (source / "journal" / "1" / segment_name(0)).write_bytes(b"noise")
    (source / "journal" / "workers").write_text("noise")
    assert look_at(source, own, PLACE, CLUSTER).workers == 3


def test_files_of_an_adoption(tmp_path: Path) -> None:
    one = Adoption("n1", "/volume", "ab" * 16, 2, "", 500, leave_behind=True, since=3)
    write_adoptions(tmp_path, [one])
    assert read_adoptions(tmp_path) == [one]
    write_adoptions(tmp_path, [])
    assert read_adoptions(tmp_path) == [] and not (tmp_path / "adoptions").exists()
    (tmp_path / "adoptions").write_text('[{"node": 1}]')
    assert read_adoptions(tmp_path) == []
    assert read_adopted(tmp_path) is None
    write_adopted(tmp_path, Adopted("n2", 5))
    assert read_adopted(tmp_path) == Adopted("n2", 5)
    (tmp_path / "adopted").write_text("noise")
    assert read_adopted(tmp_path) == Adopted("unknown", 0), "a directory that may be elsewhere is not served"
