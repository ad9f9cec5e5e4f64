"""`shardbroker export`: journals to Parquet or Delta, by the package `pyspark_shardbroker`, as on clusters."""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shardbroker.config import ConfigError
from shardbroker.journal.exports import note_export

__all__ = ["main"]


def main(argv: list[str], add_sources: Callable[[argparse.ArgumentParser], None]) -> int:
    """Runs the export; `add_sources` adds the options that lead to the data directory. Only this command loads the package."""
    try:
        from pyspark_shardbroker import export
    except ImportError as error:
        print(f"export needs Spark and the package pyspark_shardbroker ({error}): run make spark", file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(
        prog="shardbroker export", description="Write new records of the journals as Parquet or Delta, each record once."
    )
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH", help="journals, instead of <data_dir>/journal")
    export.add_arguments(parser)
    add_sources(parser)
    arguments = parser.parse_args(argv)
    try:
        source = arguments.path or arguments.load(arguments).settings.process.data_dir / "journal"
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    code = export.main(source, arguments)
    if source.name == "journal":
        with suppress(OSError):  # another user's data directory; the export succeeds nevertheless
            to = arguments.to if ":/" in arguments.to else str(Path(arguments.to).absolute())
            note_export(source.parent, to, arguments.format, time.time_ns() // 1_000_000, code)
    return code
