"""Exports without Spark: the same files and checkpoint as with it, each record once, and either continues what the other began."""

import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_shardbroker.errors import DamageError, OptionError
from pyspark_shardbroker.export import Export, compact, run
from pyspark_shardbroker.files import Files
from pyspark_shardbroker.local_files import LocalFiles
from pyspark_shardbroker.without_spark import KEPT, run_without_spark
from shardbroker.journal import open_journal
from shardbroker.journal.exports import exported_to
from tests.harness.broker import Broker
from tests.spark.samples import START_US, expected, some_record, write_journal
from tests.spark.test_export import WORKERS, Sent, publish

pytestmark = pytest.mark.timeout(400)

SAMPLED = 2
"""Workers of the sample journals."""


def alone(export: Export) -> int:
    export.check()
    return run_without_spark(export.to, export.options() | {"path": export.source}, export.partition_by, export.record())


def table(to: Path) -> pa.Table:
    """All rows, with the columns of the directories, in the order of the journals."""
    return ds.dataset(to, partitioning="hive").to_table().sort_by([("worker", "ascending"), ("sequence", "ascending")])


def keys(to: Path) -> list[tuple[int, int]]:
    if not any(to.glob("**/part-*")):
        return []
    rows = table(to)
    return list(zip(rows["worker"].to_pylist(), rows["sequence"].to_pylist(), strict=True))


def written(data: Path) -> list[tuple[int, int]]:
    """What the broker's own reader finds."""
    journals = sorted((data / "journal").iterdir())
    return [(int(one.name), record.sequence) for one in journals for record in expected(one)]


def write_samples(data: Path, passes: int = 40, seed: int = 0) -> None:
    for worker in range(SAMPLED):
        directory = data / "journal" / str(worker)
        write_journal(directory, passes, seed + worker, 12_000, worker=worker, workers=SAMPLED)


def program() -> str:
    return str(Path(sys.executable).with_name("shardbroker"))


@pytest.mark.own_broker
def test_the_command_needs_no_java_and_exports_every_message_once(tmp_path: Path) -> None:
    sent: Sent = {}
    to = tmp_path / "out"
    environment = {**os.environ, "PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"}
    with Broker(WORKERS, {"journal.capture": "#"}, data_dir=tmp_path / "data") as broker:

        def export() -> str:
            command = [program(), "export", f"--data-dir={broker.data_dir}", f"--to={to}", "--partition-by=date,topic_root"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        publish(broker, sent, 40, "one")
        export()
        assert exported(to) == sent
        publish(broker, sent, 20, "two")
        broker.kill()
        broker.start()
        publish(broker, sent, 20, "three")
        export()
        assert export().startswith("0 records")
        assert exported(to) == sent
        positions = exported_to(str(to))
    assert positions is not None and positions.keys() == {str(worker) for worker in range(WORKERS)}


@pytest.mark.own_broker
def test_a_killed_command_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """With traffic all the time; each kill hits another batch."""
    sent: Sent = {}
    to = tmp_path / "out"
    with Broker(WORKERS, {"journal.capture": "#"}, data_dir=tmp_path / "data") as broker:
        command = [program(), "export", f"--data-dir={broker.data_dir}", f"--to={to}", "--batch-bytes=1000"]
        for turn in range(3):
            publish(broker, sent, 60, f"turn{turn}")
            before = exported_to(str(to))
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("batch "):  # some of many
                    process.kill()
                    break
            process.stderr.read()
            assert process.wait() == -signal.SIGKILL, "the export had ended before it could be killed"
            assert exported_to(str(to)) != before
        subprocess.run(command, check=True, capture_output=True)
    assert exported(to) == sent


def exported(to: Path) -> Sent:
    """Messages by client in the order of the journals."""
    found: dict[str, list[Any]] = defaultdict(list)
    rows = table(to)
    for row in rows.filter((pa.compute.field("type") == "message") & pa.compute.field("captured")).to_pylist():
        users = tuple((one["name"], one["value"]) for one in row["user_properties"] or ())
        found[row["client_id"]].append((row["topic"], row["payload"], row["qos"], users))
    return dict(found)


CHOICES: dict[str, dict[str, Any]] = {
    "all": {},
    "directories": {"partition_by": ("date", "hour", "topic_root", "type", "worker", "node")},
    "json": {"payload": "json", "types": "message"},
    "selected": {"topics": "site/1/#", "columns": ("worker", "sequence", "client_id", "topic_levels", "properties")},
    "batches": {"batch_bytes": 9_000},
}


@pytest.mark.parametrize("name", CHOICES)
def test_rows_and_checkpoint_are_those_of_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    write_samples(tmp_path / "data")
    ours, theirs = (Export(str(tmp_path / "data"), str(tmp_path / to), **CHOICES[name]) for to in ("ours", "theirs"))
    assert alone(ours) == run(spark, theirs) > 0
    assert table(tmp_path / "ours").equals(table(tmp_path / "theirs"))
    for directory in ("_checkpoint/offsets", "_checkpoint/commits", "_batches", ""):
        here, there = (sorted(one.name for one in (tmp_path / to / directory).iterdir()) for to in ("ours", "theirs"))
        assert [one for one in there if not one.startswith(".")] == here, directory
    assert exported_to(ours.to) == exported_to(theirs.to)


class Killed(Exception):
    """Nothing is done after this."""


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int | None]]:
    """How many changes of files are still let through; None: all."""
    left: list[int | None] = [None]

    def fused(real: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            if left[0] is not None:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
            return real(*arguments, **options)

        return changed

    for name in ("mkdir", "replace", "unlink", "write_text"):
        monkeypatch.setattr(Path, name, fused(getattr(Path, name)))
    monkeypatch.setattr(shutil, "rmtree", fused(shutil.rmtree))
    yield left
    left[0] = None


def test_any_step_may_be_the_last_one(fuse: list[int | None], tmp_path: Path) -> None:
    """Each run gets one step further than the one before."""
    write_samples(tmp_path / "data")
    to = tmp_path / "out"
    export = Export(str(tmp_path / "data"), str(to), columns=("worker", "sequence"), batch_bytes=30_000)
    steps = 0
    while True:
        fuse[0] = steps
        try:
            alone(export)
            break
        except Killed:
            fuse[0] = None
        found = keys(to)
        assert len(found) == len(set(found)), f"killed at step {steps}"
        steps += 1
    fuse[0] = None
    assert steps > 20, "no run was killed in the middle of a batch"
    assert keys(to) == written(tmp_path / "data")


@pytest.mark.parametrize("steps", [12, 15, 18, 21])
def test_spark_finishes_what_was_killed(spark: SparkSession, fuse: list[int | None], tmp_path: Path, steps: int) -> None:
    """The runs after it are without Spark, and by Spark."""
    write_samples(tmp_path / "data")
    to = tmp_path / "out"
    export = Export(str(tmp_path / "data"), str(to), columns=("worker", "sequence"))
    fuse[0] = steps
    with pytest.raises(Killed):
        alone(export)
    fuse[0] = None
    assert (to / "_checkpoint/offsets/0").exists() and not (to / "_checkpoint/commits/0").exists()
    run(spark, export)
    assert keys(to) == written(tmp_path / "data")
    write_samples(tmp_path / "data", seed=9)
    assert alone(export) > 0
    write_samples(tmp_path / "data", seed=99)
    assert run(spark, export) > 0
    compact(spark, export.to)
    assert alone(export) == 0
    assert keys(to) == written(tmp_path / "data")


def test_a_run_of_spark_that_was_killed_is_finished_without(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_samples(tmp_path / "data")
    to = tmp_path / "out"
    export = Export(str(tmp_path / "data"), str(to), columns=("worker", "sequence"), batch_bytes=30_000)
    real = Files.move

    def killed(files: Files, name: str, target: str) -> None:
        real(files, name, target)
        if "part-00000001" in target:
            raise Killed  # one file of the second batch is in place, and recorded

    with monkeypatch.context() as patched:
        patched.setattr(Files, "move", killed)
        with pytest.raises(PySparkException, match="Killed"):
            run(spark, export)
    assert (to / "_batches/.1.crc").exists()
    alone(export)
    assert keys(to) == written(tmp_path / "data")
    write_samples(tmp_path / "data", seed=9)
    run(spark, export)
    assert keys(to) == written(tmp_path / "data")


def test_checksums_of_former_content_are_removed(tmp_path: Path) -> None:
    """Hadoop would compare them at its next read of the file, and fail."""
    files = LocalFiles(str(tmp_path))
    for name in ("written", "deleted", "source", "target"):
        (tmp_path / name).write_text(name)
        (tmp_path / f".{name}.crc").touch()
    files.write("written", "again")
    files.delete("deleted")
    files.move("source", "target")
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"written": "again", "target": "source"}


def test_one_export_at_a_time_writes_to_a_target(tmp_path: Path) -> None:
    write_samples(tmp_path / "data")
    to = tmp_path / "out"
    to.mkdir()
    command = [program(), "export", str(tmp_path / "data"), f"--to={to}"]
    holder = os.open(to, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        os.close(holder)
    assert done.returncode == 1 and f"--to {to}: another export is writing to it" in done.stderr
    assert not any(to.iterdir())
    subprocess.run(command, capture_output=True, check=True)
    assert keys(to) == written(tmp_path / "data")


def test_damage_ends_an_export_and_permissive_exports_the_rest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path / "data")
    segment = sorted((tmp_path / "data/journal/1").glob("*"))[1]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with pytest.raises(DamageError, match=re.escape(str(segment))):
        alone(Export(str(tmp_path / "data"), str(tmp_path / "strict")))
    assert keys(tmp_path / "strict") == []
    count = alone(Export(str(tmp_path / "data"), str(tmp_path / "rest"), permissive=True))
    assert 0 < count == len(keys(tmp_path / "rest"))
    assert str(segment) in capfd.readouterr().err


def test_a_checkpoint_of_another_form_is_not_guessed_at(tmp_path: Path) -> None:
    write_samples(tmp_path / "data")
    to = tmp_path / "out"
    export = Export(str(tmp_path / "data"), str(to))
    alone(export)
    offsets = to / "_checkpoint/offsets/0"
    offsets.write_text(offsets.read_text().replace("v1", "v2", 1))
    write_samples(tmp_path / "data", seed=9)
    with pytest.raises(OptionError, match="offsets/0: not the positions"):
        alone(export)
    with pytest.raises(OptionError, match="begun with topics"):
        alone(Export(str(tmp_path / "data"), str(to), topics="a/#"))


def test_the_checkpoint_does_not_grow(tmp_path: Path) -> None:
    writer = open_journal(tmp_path / "data/journal/0", segment_bytes=64 << 20)
    chance, more = random.Random(1), 10
    for turn in range(KEPT + more):
        writer.append(some_record(chance, (5 << 52) + 1, turn.to_bytes(16, "big"), START_US))
        writer.seal(START_US + turn)
    writer.close()
    to = tmp_path / "out"
    count = alone(Export(str(tmp_path / "data"), str(to), columns=("worker", "sequence"), batch_bytes=1))
    assert count == len(written(tmp_path / "data")) and keys(to) == written(tmp_path / "data")
    for directory in ("offsets", "commits"):
        assert len(list((to / "_checkpoint" / directory).iterdir())) == KEPT
