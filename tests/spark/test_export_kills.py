"""An export that ends at any of its steps: whoever comes next has nothing missing and nothing twice.

What a kill leaves depends on the last call to the file system that was made. So here each of them is the last one once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_shardbroker.export import Export, compact, run
from pyspark_shardbroker.files import Files
from tests.spark.samples import expected, write_journal

pytestmark = pytest.mark.timeout(400)

CHANGES = ("create", "delete", "mkdirs", "rename")
"""What is called of Hadoop's file systems to change something."""


class Killed(Exception):
    """Nothing is done after this."""


class Fuse:
    """Lets so many changes of files through and then none any more."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1


class FusedFileSystem:
    """A file system behind a fuse."""

    def __init__(self, real: Any, fuse: Fuse) -> None:
        self._real, self._fuse = real, fuse

    def __getattr__(self, name: str) -> Any:
        if name in CHANGES:
            self._fuse.burn()
        return getattr(self._real, name)


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fuse]:
    own, init = Fuse(), Files.__init__

    def fused(files: Files, *arguments: Any) -> None:
        init(files, *arguments)
        files._fs = FusedFileSystem(files._fs, own)

    monkeypatch.setattr(Files, "__init__", fused)
    return own


def exported(spark: SparkSession, to: Path) -> list[int]:
    if not any(to.glob("part-*")):
        return []
    return sorted(row.sequence for row in spark.read.parquet(str(to)).select("sequence").collect())


def is_killed(work: Any) -> bool:
    """Runs it."""
    try:
        work()
    except Killed:
        return True
    except PySparkException as error:
        assert "Killed" in str(error), error  # in a batch: Spark has wrapped it
        return True
    return False


def test_any_step_may_be_the_last_one(spark: SparkSession, fuse: Fuse, tmp_path: Path) -> None:
    """Each run goes one step further into a batch than the one before. In between somebody puts small files together."""
    write_journal(tmp_path / "data" / "journal" / "0", 40, segment_bytes=12_000)
    export = Export(str(tmp_path / "data"), str(tmp_path / "out"), columns=("sequence",), batch_bytes=16_000)
    steps = 0
    while True:
        fuse.left = steps
        if not is_killed(lambda: run(spark, export)):
            break
        fuse.left = None
        found = exported(spark, tmp_path / "out")
        assert len(found) == len(set(found)), f"killed at step {steps}"
        if steps % 2 and (tmp_path / "out" / "_export.json").exists():
            compact(spark, export.to)
        steps += 1
    assert steps > 6, "no run was killed in the middle of a batch"
    assert exported(spark, tmp_path / "out") == [record.sequence for record in expected(tmp_path / "data" / "journal" / "0")]


def test_any_step_of_a_compaction_may_be_the_last_one(spark: SparkSession, fuse: Fuse, tmp_path: Path) -> None:
    journal = tmp_path / "data" / "journal" / "0"
    export = Export(str(tmp_path / "data"), str(tmp_path / "out"), columns=("sequence",))
    steps = 0
    while True:
        fuse.left = None
        write_journal(journal, 2, seed=steps)
        run(spark, export)
        fuse.left = steps
        over = not is_killed(lambda: compact(spark, export.to))
        fuse.left = None
        run(spark, export)
        assert exported(spark, tmp_path / "out") == [record.sequence for record in expected(journal)], f"killed at step {steps}"
        if over and steps:
            break
        steps += 1
    assert steps > 3
