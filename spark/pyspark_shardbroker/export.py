"""`shardbroker export`: new records of the journals, as Parquet or Delta, each record once.

    journals -> stream, availableNow -> batch N, fixed by the checkpoint -> _staging -> _batches/N: names -> files in place

A target that is a path of this machine needs no Spark (`without_spark.py`). Spark runs for other targets, for Delta and a schema of
payloads, to compact, and where its master or a setting is given. Checkpoint and files have the same form in both cases.

A batch is a range of positions that the checkpoint records before the batch is read. Its files are written to a staging
directory; then their final names are recorded; then they are moved. A run killed before that record repeats the batch. A run killed
after it first deletes the files already moved, by their names, and then repeats the batch. So each record is in exactly one file,
whenever a run is killed, and a reader sees only whole files.

If the target is a path, the reading tasks also write the Parquet files (`parquet.py`): rows never pass through the JVM, which would
cost several times as much. Otherwise Spark writes: only Spark parses payloads by a schema, and writes to s3a:// and Delta.

Delta has a log of its own, which accepts a batch once (txnAppId, txnVersion).
"""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import _parse_datatype_string

from pyspark_shardbroker.batches import (
    BATCHES,
    CHECKPOINT,
    COMPACTION,
    RECORD,
    STAGING,
    check_record,
    final_names,
    finish_compaction,
    put_in_place,
    say,
)
from pyspark_shardbroker.columns import JOURNAL, JOURNAL_VERSION
from pyspark_shardbroker.errors import OptionError, ShardbrokerSourceError
from pyspark_shardbroker.files import Files
from pyspark_shardbroker.local_files import locked
from pyspark_shardbroker.options import Options
from pyspark_shardbroker.parquet import PARTITIONS
from pyspark_shardbroker.session import make_session
from pyspark_shardbroker.without_spark import run_without_spark

__all__ = ["Export", "add_arguments", "compact", "main", "run"]

_PARTITIONS = {
    "date": lambda: F.to_date("time"),
    "hour": lambda: F.hour("time"),
    "topic_root": lambda: F.element_at(F.split("topic", "/"), 1),
}
"""The PARTITIONS that Spark has to make."""
_PAYLOADS = ("raw", "json")
"""Values of `--payload` other than a schema."""
BATCH_BYTES = 2 << 30
"""Bytes of journals in one batch: the most that a run repeats after a kill."""
FILE_BYTES = 128 << 20
"""Size of files after compaction; smaller ones are merged."""
PROGRESS_S = 0.5


@dataclass(frozen=True)
class Export:
    """Source, target and format of an export."""

    source: str
    to: str
    format: str = "parquet"
    since: str = ""
    until: str = ""
    topics: str = ""
    types: str = ""
    partition_by: tuple[str, ...] = ()
    payload: str = "raw"
    columns: tuple[str, ...] = ()
    permissive: bool = False
    batch_bytes: int = BATCH_BYTES

    @property
    def to_path(self) -> bool:
        """Returns whether the target is a directory of this machine."""
        scheme, separator, _ = self.to.partition(":/")
        return not separator or scheme == "file"

    @property
    def direct(self) -> bool:
        """Returns whether the tasks write the files themselves."""
        return self.format == "parquet" and self.payload in _PAYLOADS and self.to_path

    def options(self) -> dict[str, str]:
        """Returns the options of the data source."""
        options = {"mode": "permissive" if self.permissive else "failFast", "maxBytesPerTrigger": str(self.batch_bytes)}
        for name in ("since", "until", "topics", "types"):
            if getattr(self, name):
                options[name] = getattr(self, name)
        needed = [*(self.columns or JOURNAL), *(["payload_json"] if self.payload == "json" else [])]
        if not self.direct:
            needed += [PARTITIONS[name][0] for name in self.partition_by]
            needed += ["payload"] if self.payload not in _PAYLOADS else []
        options["columns"] = ",".join(dict.fromkeys(needed))
        return options

    def record(self) -> dict[str, object]:
        """Returns the options that must not change between runs, since records would be missing or duplicated."""
        return {
            "format": self.format, "since": self.since, "until": self.until, "topics": self.topics, "types": self.types,
            "partition_by": list(self.partition_by), "payload": self.payload, "columns": list(self.columns),
            "journal_version": JOURNAL_VERSION,
        }  # fmt: skip

    def check(self) -> None:
        """Checks the options. Raises OptionError."""
        wrong = [name for name in self.partition_by if name not in PARTITIONS]
        if wrong:
            raise OptionError(f"--partition-by {wrong[0]}: allowed are {', '.join(PARTITIONS)}")
        unknown = [name for name in self.columns if name not in JOURNAL]
        if unknown:
            raise OptionError(f"--columns {unknown[0]}: allowed are {', '.join(JOURNAL)}")
        Options.parse({"path": self.source, **self.options()})

    def check_schema(self) -> None:
        """Checks a schema in `payload`, which needs a running Spark. Raises OptionError."""
        if self.payload in _PAYLOADS:
            return
        try:
            _parse_datatype_string(self.payload)
        except PySparkException as error:
            raise OptionError(
                f"--payload {self.payload!r}: allowed are {', '.join(_PAYLOADS)} and a schema such as 'v DOUBLE, unit STRING'; "
                f"not a schema: {_first_line(error)}"
            ) from None

    def shape(self, frame: DataFrame) -> DataFrame:
        """Returns the rows in the form in which they are written."""
        if self.payload not in _PAYLOADS:
            frame = frame.withColumn("payload_json", F.from_json(F.col("payload").cast("string"), self.payload))
        for name in self.partition_by:
            frame = frame.withColumn(name, _PARTITIONS[name]()) if name in _PARTITIONS else frame
        kept = [*self.columns, *(("payload_json",) if self.payload != "raw" else ()), *self.partition_by]
        return frame.select(*dict.fromkeys(kept)) if self.columns else frame


def run(spark: SparkSession, export: Export) -> int:
    """Writes the new records and returns their number. Raises ShardbrokerSourceError, OSError, PySparkException."""
    export.check()
    export.check_schema()
    files = Files(spark, export.to)
    check_record(files, export.to, export.record())
    finish_compaction(files)
    batches: dict[int, int] = {}

    def write(frame: DataFrame, number: int) -> None:
        if export.direct:
            batches[number] = _write_direct(frame, files, number)
        elif export.format == "delta":
            _write_delta(export.shape(frame), files, export, number)
        else:
            _write_parquet(export.shape(frame), files, export, number)

    options = export.options()
    if export.direct:
        options |= {"writeTo": files.local(STAGING), "partitionBy": ",".join(export.partition_by)}
    stream = spark.readStream.format("shardbroker").options(**options).load(export.source)
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", files.path(CHECKPOINT))
        .trigger(availableNow=True)
        .queryName("shardbroker-export")
        .start()
    )
    started, shown = time.monotonic(), set[int]()
    try:
        while not query.awaitTermination(PROGRESS_S):
            _show(query, export.direct, batches, shown, started)
        _show(query, export.direct, batches, shown, started)
    except BaseException:
        query.stop()
        raise
    return sum(batches.values())


def _write_direct(frame: DataFrame, files: Files, number: int) -> int:
    """Lets the tasks write the files, whose names their rows contain; returns the number of records."""
    files.delete(STAGING)
    rows = frame.collect()
    names = sorted(f"{STAGING}/{row.file}" for row in rows)
    put_in_place(files, number, final_names(names, STAGING, f"part-{number:08d}"))
    return sum(row.rows for row in rows)


def _write_parquet(frame: DataFrame, files: Files, export: Export, number: int) -> None:
    files.delete(STAGING)
    staging = f"{STAGING}/{secrets.token_hex(8)}"  # the JVM of a run that was killed may still be writing
    writer = frame.write.mode("overwrite").format("parquet")
    (writer.partitionBy(*export.partition_by) if export.partition_by else writer).save(files.path(staging))
    put_in_place(files, number, _targets(files, staging, f"part-{number:08d}"))


def _targets(files: Files, staging: str, prefix: str) -> dict[str, str]:
    """Returns each file of a staging directory with its final name."""
    return final_names(sorted(name for name, _ in files.list(staging)), staging, prefix)


def _write_delta(frame: DataFrame, files: Files, export: Export, number: int) -> None:
    writer = frame.write.mode("append").format("delta").option("txnAppId", files.root).option("txnVersion", number)
    try:
        (writer.partitionBy(*export.partition_by) if export.partition_by else writer).save(files.root)
    except PySparkException as error:
        if error.getCondition() == "DATA_SOURCE_NOT_FOUND":
            raise OptionError(
                "--format delta needs delta-spark and its jar, and the PySpark that it asks for: up to 4.2 so far, here it is "
                f"{pyspark.__version__}; see docs/spark.md"
            ) from None
        raise


def _show(query: StreamingQuery, direct: bool, batches: dict[int, int], shown: set[int], started: float) -> None:
    """Prints the progress. Where Spark writes, it also counts the records."""
    if not direct:
        batches.update({one.batchId: one.numInputRows for one in query.recentProgress if one.numInputRows})
    for number in sorted(batches.keys() - shown):
        shown.add(number)
        total = sum(batches[one] for one in shown)
        say(f"batch {number}: {total:,} records, {total / (time.monotonic() - started):,.0f} a second")


# --- compaction -----------------------------------------------------------------------------------------------------------------


def compact(spark: SparkSession, to: str, file_bytes: int = FILE_BYTES) -> tuple[int, int]:
    """Merges small files of the same partition; returns their numbers before and after.

    The new files are written to a staging directory, and their names and those of the old files are recorded. If this run is killed
    after that, the next run finishes the compaction. A concurrent reader may briefly see records twice.
    """
    files = Files(spark, to)
    text = files.read(RECORD)
    if text is None:
        raise OptionError(f"{to}: no export found")
    if json.loads(text)["format"] != "parquet":
        raise OptionError(f"{to}: tables of Delta are compacted by Delta: OPTIMIZE delta.`{to}`")
    finish_compaction(files)
    directories: dict[str, list[tuple[str, int]]] = {}
    unfinished = _unfinished(files)
    for name, size in files.list():
        if size < file_bytes // 2 and name not in unfinished:
            directories.setdefault(name.rpartition("/")[0], []).append((name, size))
    groups = {directory: small for directory, small in directories.items() if len(small) > 1}
    moves: dict[str, str] = {}
    stamp = time.time_ns() // 1_000_000
    for number, (directory, small) in enumerate(sorted(groups.items())):
        staging = f"{STAGING}/compaction-{number}"
        files.delete(staging)
        frame = spark.read.parquet(*(files.path(name) for name, _ in sorted(small)))
        count = max(1, round(sum(size for _, size in small) / file_bytes))
        frame.coalesce(count).write.mode("overwrite").parquet(files.path(staging))
        for source, target in _targets(files, staging, f"part-compact-{stamp}-{number}").items():
            moves[source] = f"{directory}/{target}".lstrip("/")
    old = [name for small in groups.values() for name, _ in small]
    if moves:
        files.write(COMPACTION, json.dumps({"moves": moves, "old": old}))
        finish_compaction(files)
    return len(old), len(moves)


def _unfinished(files: Files) -> set[str]:
    """Returns the files of a batch whose run was killed before its end: the next run deletes them by their names."""
    found: set[str] = set()
    for intent, _ in files.list(BATCHES):
        if not files.exists(f"{CHECKPOINT}/commits/{intent.rpartition('/')[2]}"):
            found.update(json.loads(files.read(intent) or "[]"))
    return found


# --- command line ---------------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `shardbroker export`, except for the source."""
    parser.add_argument(
        "--to", required=True, metavar="DIR|s3a://...", help="target of the files; each has a checkpoint of its own"
    )
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet")
    parser.add_argument("--since", default="", metavar="TIME", help="a UTC time such as 2026-01-31T12:00, or an age such as 7d")
    parser.add_argument("--until", default="", metavar="TIME", help="as --since; records of exactly that time are left out")
    parser.add_argument("--topics", default="", metavar="FILTER", help="only records with a topic that matches this topic filter")
    parser.add_argument("--types", default="", metavar="TYPE,...", help="only these types of records, such as message")
    parser.add_argument("--columns", default="", metavar="NAME,...", help="only these columns")
    parser.add_argument("--partition-by", default="", metavar="NAME,...", help=f"directories: {', '.join(PARTITIONS)}")
    parser.add_argument(
        "--payload",
        default="raw",
        metavar="raw|json|SCHEMA",
        help="json: also as text if it is JSON; a schema such as 'v DOUBLE, unit STRING': also parsed",
    )
    parser.add_argument(
        "--mode", choices=("failFast", "permissive"), default="failFast", help="permissive: skip damaged parts"
    )
    parser.add_argument("--master", default=None, metavar="local[*]|spark://...", help="let Spark run the export, at this master")
    parser.add_argument("--batch-bytes", type=int, default=BATCH_BYTES, metavar="N", help="bytes of journals read in one batch")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="let Spark run it, with this setting; may be repeated"
    )
    parser.add_argument("--compact", action="store_true", help="merge small files afterwards, by Spark")


def main(source: Path | str, arguments: argparse.Namespace) -> int:
    """Runs an export. Exit codes: 0 success, 1 not finished, 2 wrong usage."""

    def names(text: str) -> tuple[str, ...]:
        return tuple(one.strip() for one in text.split(",") if one.strip())

    export = Export(
        str(source), arguments.to, arguments.format, arguments.since, arguments.until, arguments.topics, arguments.types,
        names(arguments.partition_by), arguments.payload, names(arguments.columns), arguments.mode == "permissive",
        arguments.batch_bytes,
    )  # fmt: skip
    try:
        export.check()
        settings = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", **_settings(arguments.conf)}
        with locked(export.to) if export.to_path else nullcontext():
            if export.direct and not (arguments.master or arguments.conf or arguments.compact):
                options = export.options() | {"path": export.source}
                count = run_without_spark(export.to, options, export.partition_by, export.record())
                print(f"{count:,} records exported to {export.to}")
                return 0
            spark = make_session("shardbroker export", arguments.master or "local[*]", settings)
            count = run(spark, export)
            print(f"{count:,} records exported to {export.to}")
            if arguments.compact:
                before, after = compact(spark, export.to)
                print(f"{before} small files are {after} now")
    except OptionError as error:
        print(error, file=sys.stderr)
        return 2
    except (ShardbrokerSourceError, StreamingQueryException, PySparkException, OSError) as error:
        print(f"export stopped: {_reason(error)}", file=sys.stderr)
        return 1
    return 0


def _settings(given: Sequence[str]) -> dict[str, str]:
    settings = {}
    for one in given:
        key, separator, value = one.partition("=")
        if not separator:
            raise OptionError(f"--conf {one}: allowed is KEY=VALUE")
        settings[key] = value
    return settings


def _reason(error: Exception) -> str:
    """Returns the error of this package, without the stack traces that Spark wraps it in."""
    lines = str(error).splitlines()
    for line in lines:
        name, separator, text = line.strip().partition(": ")
        if separator and name.startswith("pyspark_shardbroker.errors."):
            return text
    return "\n".join(lines[:8])


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line), "").strip()
