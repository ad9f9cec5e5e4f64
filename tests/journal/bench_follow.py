"""What a record costs that is followed: `python -m tests.journal.bench_follow`, beside cbor2 and journal/reader.py.

A journal of messages, 100 to a block as busy workers write them, and one of a message a block, in a temporary directory.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shardbroker.journal import Block, open_journal, read
from shardbroker.journal.encode import measure
from shardbroker.journal.follow import Batch, Follower
from shardbroker.journal.schema import Kind

RUNS = 5


def followed(directory: Path, kinds: tuple[Kind, ...] | None = None, flags: int = 0) -> int:
    """The records returned."""
    follower, count = Follower(directory, kinds=kinds, flags=flags), 0
    while not follower.at_end:
        count += sum(len(part.records) for part in follower.read() if isinstance(part, Batch))
    return count


def by_reader(directory: Path) -> int:
    return sum(len(part.items()) for part in read(directory) if isinstance(part, Block))


def best_us(run: Callable[[], int], records: int) -> float:
    """CPU of a record, of the best run: the others share the machine."""
    spent = []
    for _ in range(RUNS):
        begin = time.process_time()
        run()
        spent.append(time.process_time() - begin)
    return min(spent) * 1e6 / records


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.journal.bench_follow", description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=400_000)
    given = parser.parse_args()
    for per_block in (100, 1):
        records = given.records // (1 if per_block > 1 else 4)
        with tempfile.TemporaryDirectory() as name:
            writer = open_journal(Path(name))
            measure(writer, "MESSAGE", records // per_block, per_block)
            writer.close()
            assert followed(Path(name)) == by_reader(Path(name)) == records
            ways: dict[str, Callable[[], int]] = {
                "follow, all as tuples": lambda: followed(Path(name)),
                "follow, none wanted": lambda: followed(Path(name), flags=64),
                "reader and cbor2": lambda: by_reader(Path(name)),
            }
            for way, run in ways.items():
                print(f"{per_block:3} to a block: {way:21} {best_us(run, records):5.2f} µs a record")


if __name__ == "__main__":
    main()
