"""Level `machine`: whenever the power goes, and whatever of the unsynced the disk keeps, what was called durable is there."""

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from shardbroker.journal import open_journal
from shardbroker.journal.schema import Kind, encode
from tests.journal.power_cut import MAGIC, Disk, Mark, Promises, What, read_steps
from tests.journal.samples import found

RECORDER = Path(__file__).with_name("recorder.c")
SEEDS = range(6)
CUTS = [(names, bytes_) for names in ("nothing", "all", "some") for bytes_ in ("nothing", "all", "length", "some")]
"""What is kept of names and bytes that were not synced."""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, RECORDER, "-ldl", "-lpthread"], check=True)
    return str(library)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_durable_is_there_after_a_power_cut(seed: int, recorder: str, tmp_path: Path) -> None:
    root, steps_file, promises_file = tmp_path / "run", tmp_path / "steps", tmp_path / "promises"
    root.mkdir()
    environment = {**os.environ, "LD_PRELOAD": recorder, "RECORD_DIRECTORY": str(root), "RECORD_LOG": str(steps_file)}
    command = [sys.executable, "-m", "tests.journal.power_cut", str(root), str(promises_file), str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    promises = Promises.read(promises_file)
    rng = random.Random(seed)
    disk = Disk(str(root))
    promised: set[int] = set()
    durable = 0
    for number, step in enumerate(read_steps(steps_file)):
        disk.do(step)
        if step.what == What.MARK and step.file == Mark.FOUND:
            durable, read = promises.openings[step.number]
            promised.update(read)
        elif step.what == What.MARK:
            promised.update(sequence for sequence in promises.appended if durable <= sequence < step.number)
            durable = step.number
        # A few of the cuts at each step: over a run all of them fall on each kind of step.
        for names, bytes_ in rng.sample(CUTS, 3):
            place = tmp_path / "cut"
            place.mkdir()
            disk.cut(rng, names, bytes_, place)
            _check(place / "journal" / "0", promises, promised, f"seed {seed}, step {number}, names {names}, bytes {bytes_}")
            shutil.rmtree(place)
    assert promised


def _check(directory: Path, promises: Promises, promised: set[int], where: str) -> None:
    """What was promised is there, nothing is there that never was, and a writer goes on behind it."""
    records = found(directory)[0] if directory.is_dir() else {}
    missing = sorted(promised - records.keys())
    assert not missing, f"{where}: {len(missing)} of {len(promised)} durable records missing: {missing[:5]}..."
    for sequence, record in records.items():
        assert record["session"] == promises.appended[sequence], where
    writer = open_journal(directory)
    assert not promised or writer.next_sequence > max(promised)
    number = writer.append(encode(Kind.RELEASED, session=1, packet_id=2, reason=0))
    assert writer.seal(1) == number + 1 and writer.close(), where
    assert found(directory)[0].keys() == records.keys() | {number}, where


@pytest.mark.parametrize("there", [b"", b"begin", b"begin of a block"])
def test_a_write_whose_process_was_killed_counts_as_far_as_the_next_one_found_it(there: bytes, tmp_path: Path) -> None:
    """And is on the disk once that one has synced the file."""
    root, steps_file, place = tmp_path / "run", tmp_path / "steps", tmp_path / "cut"
    root.mkdir()
    place.mkdir()
    disk = Disk(str(root))
    path = root / "segment"
    path.write_bytes(there)
    inode = path.stat().st_ino
    name, folder = str(path).encode(), str(root).encode()
    steps = [
        (What.CREATE, inode, 0, name), (What.WRITE_BEGIN, inode, 0, b"begin of a block"),
        (What.SYNC_BEGIN, inode, 1, name), (What.SYNC_END, inode, 1, name),
        (What.SYNC_BEGIN, 7, 2, folder), (What.SYNC_END, 7, 2, folder),
    ]  # fmt: skip
    steps_file.write_bytes(b"".join(MAGIC + struct.pack("<IBQQ", 17 + len(data), *step) + data for *step, data in steps))
    for step in read_steps(steps_file):
        disk.do(step)
    disk.cut(random.Random(1), "nothing", "nothing", place)
    assert (place / "segment").read_bytes() == there


@pytest.mark.parametrize("known_before", [False, True])
def test_a_file_whose_creation_was_not_said_is_one_once_another_process_writes_to_it(known_before: bool, tmp_path: Path) -> None:
    """Its process was killed between the two. The inode may have been that of a file that is gone."""
    root, steps_file, place = tmp_path / "run", tmp_path / "steps", tmp_path / "cut"
    root.mkdir()
    place.mkdir()
    disk = Disk(str(root))
    path = root / "segment"
    path.write_bytes(b"synced and not")
    inode = path.stat().st_ino
    name, folder, other = str(path).encode(), str(root).encode(), str(root / "other").encode()
    steps = [
        *([(What.CREATE, inode, 0, other), (What.UNLINK, 0, 0, other)] if known_before else []),
        (What.TRUNCATE, inode, 0, b""), (What.WRITE_BEGIN, inode, 0, b"synced"), (What.WRITE, inode, 0, b"synced"),
        (What.SYNC_BEGIN, inode, 1, name), (What.SYNC_END, inode, 1, name),
        (What.SYNC_BEGIN, 7, 2, folder), (What.SYNC_END, 7, 2, folder),
        (What.WRITE_BEGIN, inode, 6, b" and not"), (What.WRITE, inode, 6, b" and not"),
    ]  # fmt: skip
    steps_file.write_bytes(b"".join(MAGIC + struct.pack("<IBQQ", 17 + len(data), *step) + data for *step, data in steps))
    for step in read_steps(steps_file):
        disk.do(step)
    disk.cut(random.Random(1), "nothing", "nothing", place)
    assert {one.name: one.read_bytes() for one in place.iterdir()} == {"segment": b"synced"}
