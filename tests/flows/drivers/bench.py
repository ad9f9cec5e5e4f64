"""What benchmarks of drivers share: CPU of this process and rate, with the driver and with another way, in turns."""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import uvloop

__all__ = ["arguments", "compare", "run"]

Write = Callable[[], Awaitable[None]]


def arguments(rows: int, batch: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=batch)
    return parser.parse_args()


async def compare(given: argparse.Namespace, before: Write, ways: Mapping[str, Write], after: Write) -> None:
    """Prints the median, least and most cost of each way. before, after: empty the server, and check that it has all rows."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, write in ways.items():
            await before()
            cpu, wall = time.process_time(), time.monotonic()
            await write()
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            found[name].append((cpu / given.rows * 1e6, given.rows / wall))
            await after()
    for name, ones in found.items():
        costs, rates = zip(*ones, strict=True)
        print(f"{name:9} {statistics.median(costs):6.2f} us of CPU a row ({min(costs):.2f} to {max(costs):.2f})", end="  ")
        print(f"{statistics.median(rates):9,.0f} rows/s")


def run(measured: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measured)
