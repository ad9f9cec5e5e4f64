"""An export by this process alone: to a path of this machine, Spark would only plan the batches and keep the checkpoint.

    JournalStream -> _checkpoint/offsets/N -> pieces, one thread each -> Parquet files in _staging -> in place -> commits/N

The checkpoint has Spark's form, so that a run may be by Spark and the next one not. A batch whose offsets are recorded and whose
commit is missing is repeated with the same positions, whichever of the two has begun it.
"""

import json
import os
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from pyspark_shardbroker.batches import CHECKPOINT, STAGING, check_record, final_names, finish_compaction, put_in_place, say
from pyspark_shardbroker.columns import JOURNAL
from pyspark_shardbroker.errors import OptionError
from pyspark_shardbroker.local_files import LocalFiles
from pyspark_shardbroker.options import Options
from pyspark_shardbroker.source import JournalStream

__all__ = ["run_without_spark"]

_OFFSETS, _COMMITS = f"{CHECKPOINT}/offsets", f"{CHECKPOINT}/commits"
_VERSION = "v1"
"""First line of the files of Spark's checkpoints."""
KEPT = 100
"""Batches whose positions stay in the checkpoint: as many as Spark keeps."""
Positions = dict[str, int]
"""Key of a journal -> number of the next record."""


def run_without_spark(to: str, options: dict[str, str], partition_by: tuple[str, ...], record: dict[str, object]) -> int:
    """Writes the new records and returns their number. Raises ShardbrokerSourceError, OSError.

    `options` are those of the data source, with `path`; `record` are the options that stay the same between runs.
    """
    files = LocalFiles(to)
    check_record(files, to, record)
    finish_compaction(files)
    parsed = Options.parse({**options, "writeTo": files.local(STAGING), "partitionBy": ",".join(partition_by)})
    stream = JournalStream(parsed, list(parsed.columns or JOURNAL))
    stream.prepareForTriggerAvailableNow()
    checkpoint = _Checkpoint(files)
    started, total = time.monotonic(), 0
    while (batch := checkpoint.next_batch(stream)) is not None:
        number, start, end = batch
        files.delete(STAGING)
        rows = _write(stream, start, end)
        names = sorted(f"{STAGING}/{name}" for name, _ in rows)
        put_in_place(files, number, final_names(names, STAGING, f"part-{number:08d}"))
        checkpoint.commit(number)
        total += sum(count for _, count in rows)
        say(f"batch {number}: {total:,} records, {total / (time.monotonic() - started):,.0f} a second")
    return total


def _write(stream: JournalStream, start: Positions, end: Positions) -> list[tuple[str, int]]:
    """Writes the files of a batch; returns name and number of rows of each."""

    def task(partition: Any) -> list[tuple[str, int]]:
        rows: Iterable[dict[str, Any]] = (row for batch in stream.read(partition) for row in batch.to_pylist())
        return [(row["file"], row["rows"]) for row in rows]

    partitions = stream.partitions(start, end)
    threads = min(len(os.sched_getaffinity(0)), len(partitions)) or 1
    with ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(task, partition) for partition in partitions]
        try:
            wait(tasks, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)  # waits for those that run
    for one in tasks:
        if not one.cancelled() and (error := one.exception()) is not None:
            raise error
    return [row for one in tasks for row in one.result()]


class _Checkpoint:
    """The positions of the batches, as Spark's streams record them."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files
        if not files.exists(f"{CHECKPOINT}/metadata"):
            files.write(f"{CHECKPOINT}/metadata", json.dumps({"id": str(uuid.uuid4())}))

    def next_batch(self, stream: JournalStream) -> tuple[int, Positions, Positions] | None:
        """Returns number, start and end of the batch to write, recorded; None if there is nothing new."""
        last = self._last(_OFFSETS)
        if last is not None and last != self._last(_COMMITS):
            return last, self._positions(last - 1) if last else stream.initialOffset(), self._positions(last)
        start = stream.initialOffset() if last is None else self._positions(last)
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        if all(position <= start.get(key, 0) for key, position in end.items()):
            return None
        number = 0 if last is None else last + 1
        times = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": {}}
        self._files.write(f"{_OFFSETS}/{number}", "\n".join((_VERSION, json.dumps(times), json.dumps(end))))
        return number, start, end

    def commit(self, number: int) -> None:
        """Records that all files of a batch are in place."""
        self._files.write(f"{_COMMITS}/{number}", f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}')
        for directory in (_OFFSETS, _COMMITS):
            for old in [one for one in self._numbers(directory) if one <= number - KEPT]:
                self._files.delete(f"{directory}/{old}")

    def _numbers(self, directory: str) -> list[int]:
        return [int(name) for path, _ in self._files.list(directory) if (name := path.rpartition("/")[2]).isdecimal()]

    def _last(self, directory: str) -> int | None:
        return max(self._numbers(directory), default=None)

    def _positions(self, number: int) -> Positions:
        name = f"{_OFFSETS}/{number}"
        lines = (self._files.read(name) or "").splitlines()
        try:
            if lines[0] != _VERSION:
                raise ValueError(lines[0])
            return {str(key): int(position) for key, position in json.loads(lines[-1]).items()}
        except (IndexError, ValueError, AttributeError, TypeError):
            raise OptionError(
                f"{self._files.path(name)}: not the positions of an export in the form that is known here, {_VERSION}; "
                "run with --master 'local[*]', by which Spark reads them"
            ) from None
