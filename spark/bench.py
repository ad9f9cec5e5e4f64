"""How fast journals become Parquet, beside Spark's own reader of JSON lines over the same records.

    .venv/bin/python spark/bench.py [--records 4000000] [--dir DIR]

Each case is a Spark of its own with one core, `local[1]`. What counts is the CPU time of all its processes (JVM, driver, Python
workers), behind a first run with a thousand records, for which Spark starts and plans. So there are figures on a machine that does
other things besides, too; but those that share its cores slow each other down.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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

from shardbroker.journal import open_journal
from shardbroker.journal.schema import Kind, encode

CLIENTS = 1_000
FEW = 1_000
"""Records that cost next to nothing by themselves."""
BLOCK_RECORDS = 100
"""A pass of a worker that is busy."""
BLOCK_US = 1_000
START_US = 1_790_000_000_000_000
ERROR_SHOWN = 3_000
"""Characters of what a case that fails has said at last."""
SETTINGS = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}


def make_journal(directory: Path, records: int) -> None:
    """Small messages of a thousand devices."""
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


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# --- cases: each runs in a process of its own -----------------------------------------------------------------------------------


def journal_to_parquet(work: Path) -> None:
    run(_session(), Export(str(work / "data"), str(work / "out")))


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
    _session().read.format("shardbroker").load(str(work / "data")).write.json(str(work / "json"))


def decode(work: Path) -> None:
    """Without Spark: journals to Arrow."""
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
    "journal -> Parquet (export)": journal_to_parquet,
    "journal -> Parquet (through the JVM)": journal_to_parquet_through_the_jvm,
    "JSON lines -> Parquet": json_to_parquet,
    "journal -> DataFrame": journal_to_dataframe,
    "JSON lines -> DataFrame": json_to_dataframe,
}


def cost(case: Callable[[Path], None], work: Path) -> float:
    """CPU seconds that the records of `work` cost, in a process that has done the same for few of them already."""
    shutil.rmtree(work / "out", ignore_errors=True)
    shutil.rmtree(work / "few" / "out", ignore_errors=True)
    command = [sys.executable, __file__, "--case", case.__name__, "--dir", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{case.__name__}: {done.stderr[-ERROR_SHOWN:]}")
    return float(done.stdout.splitlines()[-1])


def measure(case: Callable[[Path], None], work: Path) -> None:
    case(work / "few")
    before = used()
    case(work)
    print(used() - before)


def used() -> float:
    """CPU seconds of this process and of all that it has started, directly or not."""
    mine = psutil.Process()
    found = 0.0
    for process in (mine, *mine.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # then its parent has its time, if it waited for it
        found += times.user + times.system + times.children_user + times.children_system
    return found


def bytes_of_a_hundredth(work: Path, records: int) -> tuple[int, int]:
    """Bytes read of the journal for all of the time, and for a hundredth of it."""
    read, real = [0], Segment.read

    def counted(self: Segment, offset: int, size: int) -> bytes:
        data = real(self, offset, size)
        read[0] += len(data)
        return data

    Segment.read = counted  # type: ignore[method-assign]
    found = []
    duration = records // BLOCK_RECORDS * BLOCK_US
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
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--dir", type=Path, help="for the data; else a directory that is removed afterwards")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this in their name")
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
                make_journal(directory / "data" / "journal" / "0", records)
        if not (work / "json").exists():
            cost(make_json, work)
        size = size_of(work / "data")
        print(f"{options.records:,} records: {size / 1e6:,.0f} MB of journal, {size_of(work / 'json') / 1e6:,.0f} MB of JSON lines")
        for name, case in CASES.items():
            if options.only not in name:
                continue
            began = time.monotonic()
            seconds = cost(case, work)
            rates = f"{options.records / seconds:11,.0f} records/s {size / seconds / 1e6:7.1f} MB/s of journal"
            took = time.monotonic() - began
            print(f"{name:37} {seconds:6.1f} CPU s {rates} ({took:.0f} s)", flush=True)
        all_of_it, part = bytes_of_a_hundredth(work, options.records)
        print(f"a filter on 1 % of the time reads {part:,} bytes of {all_of_it:,}: 1/{all_of_it / part:.0f}")


if __name__ == "__main__":
    main()
