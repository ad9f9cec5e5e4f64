"""What a query reads of the journals, without Spark and without reading it: segments, bytes and tasks.

    python -m pyspark_shardbroker.explain data --since 15m --types message --topics 'building/#'

Times and workers leave out segments, and parts of them, before anything is read. Types and topics select among the records that
were read, before rows are made of them; columns say what is built of the selected ones.
"""

import argparse
import sys

from pyspark_shardbroker.columns import JOURNAL, ON_REQUEST
from pyspark_shardbroker.errors import OptionError, ShardbrokerSourceError
from pyspark_shardbroker.journals import find_journals, pieces
from pyspark_shardbroker.options import Options

__all__ = ["explain", "main"]

MB = 1_000_000
_SELECTING = ("since", "until", "workers", "types", "topics", "columns")


def explain(path: str, **options: str) -> str:
    """Returns a line for each journal, and one for all: what the options select. Raises ShardbrokerSourceError."""
    parsed = Options.parse({"path": path, **options})
    if parsed.table != "journal":
        raise OptionError(f"table {parsed.table!r} cannot be explained: allowed is journal")
    unknown = [name for name in parsed.columns if name not in {**JOURNAL, **ON_REQUEST}]
    if unknown:
        raise OptionError(f"columns {unknown[0]!r}: allowed are {', '.join(JOURNAL)}")
    lines, read, there, tasks = [], 0, 0, 0
    for journal in find_journals(parsed.path):
        infos = journal.segments()
        found = list(pieces(journal, parsed.wanted, parsed.partition_bytes))
        size, whole = sum(piece.end - piece.start for piece in found), sum(info.size for info in infos)
        segments = len({piece.info.path for piece in found})
        lines.append(f"journal {journal.key}: {_share(size, whole)} in {segments} of {len(infos)} segments")
        read, there, tasks = read + size, there + whole, tasks + len(found)
    selecting = [f"{name} {options[name]}" for name in ("types", "topics") if options.get(name)]
    lines.append(f"reads {_share(read, there)} in {tasks} tasks")
    lines.append(f"keeps of that: {', '.join(selecting) or 'all records'} within the times and workers")
    lines.append(f"builds {len(parsed.columns or JOURNAL)} of {len(JOURNAL)} columns")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / MB:,.1f} of {whole / MB:,.1f} MB"


def main(argv: list[str] | None = None) -> int:
    """Prints what is read. Exit codes: 0 success, 1 no journals, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="pyspark_shardbroker.explain", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("path", help="journals, as in load(PATH)")
    for name in _SELECTING:
        parser.add_argument(f"--{name}", help="as the option of the data source")
    arguments = vars(parser.parse_args(argv))
    try:
        print(explain(arguments["path"], **{name: arguments[name] for name in _SELECTING if arguments[name]}))
    except OptionError as error:
        print(error, file=sys.stderr)
        return 2
    except (ShardbrokerSourceError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
