"""Measures the conversion of journals to Parquet against Spark's own reader of JSON lines over the same records.

    .venv/bin/python spark/bench.py [--records 10000000] [--dir DIR]

Each case with Spark has one of its own with one task at a time, `local[1]`. Each runs twice: first with a thousand records, for
which the JVM starts, loads and plans (shown as `start`), then with all of them. The output has records per second of wall time, and
per CPU second of all processes (JVM with its compiler and collector, driver, Python workers). The latter is `per core`: it includes
work on other cores. It is meaningful on a busy machine, too, although processes that share its cores slow each other down.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_shardbroker.columns import JOURNAL
from pyspark_shardbroker.export import Export, run
from pyspark_shardbroker.journals import find_journals, pieces
from pyspark_shardbroker.options import Wanted
from pyspark_shardbroker.reading import read_piece
from pyspark_shardbroker.segments import Segment
from pyspark_shardbroker.session import make_session
from pyspark_shardbroker.without_spark import run_without_spark
from shardbroker.journal import open_journal
from shardbroker.journal.schema import Kind, encode

CLIENTS = 1_000
FEW = 1_000
"""Records whose own cost is negligible."""
WORKERS = 4
BLOCK_RECORDS = 100
"""Records of one pass of a busy worker."""
BLOCK_US = 1_000
START_US = 1_790_000_000_000_000
ERROR_SHOWN = 3_000
"""Characters shown of the last output of a case that fails."""
SETTINGS = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}


def make_journal(directory: Path, records: int) -> None:
    """Writes a journal of small messages from a thousand devices."""
    chance = random.Random(1)
    devices = [(f"site/{n % 20}/device/{n}/temperature".encode(), f"device-{n}".encode()) for n in range(CLIENTS)]
    writer = open_journal(directory)
    now = START_US
    for number in range(records):
        topic, client = devices[chance.randrange(CLIENTS)]
        id = now.to_bytes(8, "big") + number.to_bytes(8, "big")
        payload = b"%.2f" % (20 + number % 1000 / 100)
        writer.append(
            encode(Kind.MESSAGE, id=id, topic=topic, payload=payload, flags=0x11, expires_ms=0, properties=b"", publisher=client)
        )
        if number % BLOCK_RECORDS == BLOCK_RECORDS - 1:
            writer.seal(now)
            now += BLOCK_US
    writer.seal(now)
    writer.close()


def make_data(work: Path, records: int) -> None:
    """Makes journals of WORKERS workers with the same bytes, which is sufficient here and faster than distinct ones."""
    first = work / "data" / "journal" / "0"
    make_journal(first, records // WORKERS)
    for number in range(1, WORKERS):
        shutil.copytree(first, first.with_name(str(number)))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# --- cases: each runs in a process of its own -----------------------------------------------------------------------------------


def journal_to_parquet(work: Path) -> None:
    run(_session(), Export(str(work / "data"), str(work / "out")))


def journal_to_parquet_without_spark(work: Path) -> None:
    export = Export(str(work / "data"), str(work / "out"))
    run_without_spark(export.to, export.options() | {"path": export.source}, export.partition_by, export.record())


def journal_to_parquet_through_the_jvm(work: Path) -> None:
    _session().read.format("shardbroker").load(str(work / "data")).write.parquet(str(work / "out"))


def json_to_parquet(work: Path) -> None:
    spark = _session()
    spark.read.schema(_schema(work)).json(str(work / "json")).write.parquet(str(work / "out"))


def journal_to_dataframe(work: Path) -> None:
    _session().read.format("shardbroker").load(str(work / "data")).write.format("noop").mode("overwrite").save()


def json_to_dataframe(work: Path) -> None:
    _session().read.schema(_schema(work)).json(str(work / "json")).write.format("noop").mode("overwrite").save()


def make_json(work: Path) -> None:
    _session().read.format("shardbroker").load(str(work / "data" / "journal" / "0")).write.json(str(work / "json"))
    for path in sorted((work / "json").glob("part-*")):
        for number in range(1, WORKERS):
            shutil.copyfile(path, path.with_name(f"part-{number}-{path.name}"))


def decode(work: Path) -> None:
    """Decodes journals to Arrow, without Spark."""
    wanted = Wanted()
    for journal in find_journals(str(work / "data")):
        for piece in pieces(journal, wanted, 64 << 20):
            for _ in read_piece(piece, list(JOURNAL), wanted, True):
                pass


def _session() -> SparkSession:
    return make_session("bench", "local[1]", SETTINGS)


def _schema(work: Path) -> StructType:
    return _session().read.format("shardbroker").load(str(work / "data")).schema


CASES: dict[str, Callable[[Path], None]] = {
    "journal -> Arrow, no Spark": decode,
    "journal -> Parquet (export)": journal_to_parquet_without_spark,
    "journal -> Parquet (export, by Spark)": journal_to_parquet,
    "journal -> Parquet (through the JVM)": journal_to_parquet_through_the_jvm,
    "JSON lines -> Parquet": json_to_parquet,
    "journal -> DataFrame": journal_to_dataframe,
    "JSON lines -> DataFrame": json_to_dataframe,
}


@dataclass(frozen=True)
class Cost:
    """Seconds until a thousand records were done, seconds for all records, and CPU seconds of the latter."""

    start_s: float
    wall_s: float
    java_s: float
    python_s: float

    @property
    def cpu_s(self) -> float:
        return self.java_s + self.python_s


def cost(case: Callable[[Path], None], work: Path) -> Cost:
    """Measures the records of `work`, in a process that has already processed a few of them."""
    shutil.rmtree(work / "out", ignore_errors=True)
    shutil.rmtree(work / "few" / "out", ignore_errors=True)
    command = [sys.executable, __file__, "--case", case.__name__, "--dir", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{case.__name__}: {done.stderr[-ERROR_SHOWN:]}")
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def measure(case: Callable[[Path], None], work: Path) -> None:
    began = time.monotonic()
    case(work / "few")
    ready, before = time.monotonic(), used()
    case(work)
    over, after = time.monotonic(), used()
    print(json.dumps([ready - began, over - ready, after[0] - before[0], after[1] - before[1]]))


def used() -> tuple[float, float]:
    """Returns the CPU seconds of the JVM, and of this process and all its other descendants."""
    mine = psutil.Process()
    java = python = 0.0
    for process in (mine, *mine.children(recursive=True)):
        try:
            name, times = process.name(), process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # the time is then in its parent, if that waited for it
        spent = times.user + times.system + times.children_user + times.children_system
        if name == "java":
            java += spent
        else:
            python += spent
    return java, python


def bytes_of_a_hundredth(work: Path, records: int) -> tuple[int, int]:
    """Returns the bytes read from the journal for the whole time range, and for a hundredth of it."""
    read, real = [0], Segment.read

    def counted(self: Segment, offset: int, size: int) -> bytes:
        data = real(self, offset, size)
        read[0] += len(data)
        return data

    Segment.read = counted  # type: ignore[method-assign]
    found = []
    duration = records // WORKERS // BLOCK_RECORDS * BLOCK_US
    for wanted in (Wanted(), Wanted(since_us=START_US + duration // 2, until_us=START_US + duration // 2 + duration // 100)):
        read[0] = 0
        for journal in find_journals(str(work / "data")):
            for piece in pieces(journal, wanted, 64 << 20):
                for _ in read_piece(piece, ["sequence"], wanted, True):
                    pass
        found.append(read[0])
    Segment.read = real  # type: ignore[method-assign]
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--dir", type=Path, help="directory of the data; default: a temporary one")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this in their name")
    parser.add_argument("--prepare", action="store_true", help="only make the data, in --dir")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        measure(globals()[options.case], options.dir)
        return
    with tempfile.TemporaryDirectory() as own:
        work = options.dir or Path(own)
        few = work / "few"
        for directory, records in ((work, options.records), (few, FEW)):
            if not (directory / "data").exists():
                make_data(directory, records)
        if not (work / "json").exists():
            cost(make_json, work)
        size = size_of(work / "data")
        print(f"{options.records:,} records: {size / 1e6:,.0f} MB of journal, {size_of(work / 'json') / 1e6:,.0f} MB of JSON lines")
        for name, case in CASES.items():
            if options.prepare or options.only not in name:
                continue
            one = cost(case, work)
            print(
                f"{name:37} {options.records / one.cpu_s:9,.0f} records/CPU s ({one.java_s:5.1f} JVM, {one.python_s:5.1f} Python), "
                f"{options.records / one.wall_s:9,.0f} records/s and {size / one.wall_s / 1e6:6.1f} MB/s on the clock "
                f"({one.wall_s:5.1f} s; start {one.start_s:.1f} s)",
                flush=True,
            )
        if options.prepare:
            return
        all_of_it, part = bytes_of_a_hundredth(work, options.records)
        print(f"a filter on 1 % of the time reads {part:,} bytes of {all_of_it:,}: 1/{all_of_it / part:.0f}")


if __name__ == "__main__":
    main()
