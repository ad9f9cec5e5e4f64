"""How often a disk syncs: `python -m tests.journal.bench_sync DIRECTORY`, the bound of level `machine`.

One thread appends blocks of the size given and waits for each, as a journal without group commit would.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

SIZES = (512, 4096, 16384, 65536)
"""Bytes of a block."""


def rate(directory: Path, size: int, seconds: float) -> float:
    """Syncs a second."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        count, block = 0, os.urandom(size)
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            os.pwrite(file.fileno(), block, count * size)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.journal.bench_sync", description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size")
    given = parser.parse_args()
    for size in SIZES:
        per_s = rate(given.directory, size, given.seconds)
        print(f"{size:6} bytes: {per_s:8.0f} syncs/s, {1e6 / per_s:6.0f} µs each")


if __name__ == "__main__":
    main()
