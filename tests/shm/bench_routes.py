"""What routes, look-ups among them and a step of a retained scan cost: `python -m tests.shm.bench_routes [SIZE...]`.

Half of the filters are exact, a quarter have a `+`, a quarter end in `#`. Topics that match some, and topics that match none.
Retained messages only up to RETAINED_MAX.
"""

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shardbroker.stores.retained import RetainedMessage, RetainedStore
from shm.destinations import worker_destination
from shm.routes import RouteChange, RouteTable

SIZES = (10_000, 100_000)
RETAINED_MAX = 100_000
LOOKUPS = 5000
BATCH = 1000


def microseconds(action: Callable[[int], object], count: int) -> float:
    """Mean time of action(0..count-1)."""
    start = time.perf_counter()
    for i in range(count):
        action(i)
    return (time.perf_counter() - start) / count * 1e6


def filter_of(i: int) -> bytes:
    site, device = i % 100, i // 4
    return (b"site/%d/dev/%d/t", b"site/%d/dev/%d/t/raw", b"site/%d/+/%d/t", b"site/%d/dev/%d/#")[i % 4] % (site, device)


def bench_routes(directory: Path, size: int) -> None:
    place = directory / f"routes-{size}"
    table = RouteTable(place)
    written = 0.0
    for at in range(0, size, BATCH):
        changes = [RouteChange(True, filter_of(i), worker_destination(i % 8)) for i in range(at, min(size, at + BATCH))]
        start = time.perf_counter()
        table.update(changes)
        written += time.perf_counter() - start
    used = os.stat(place / "data.mdb").st_blocks * 512
    numbers = [random.randrange(size) for _ in range(LOOKUPS)]
    hits = [b"site/%d/dev/%d/t" % (number % 100, number // 4) for number in numbers]
    misses = [b"other/%d/dev/%d/t" % (number % 100, number // 4) for number in numbers]
    print(
        f"{size} routes: {used / size:.0f} bytes a route; match {microseconds(lambda i: table.match(hits[i]), LOOKUPS):.1f} µs, "
        f"no match {microseconds(lambda i: table.match(misses[i]), LOOKUPS):.1f} µs, "
        f"update {written / size * 1e6:.1f} µs a route in batches of {BATCH}"
    )
    start = time.perf_counter()
    purged = table.purge(worker_destination(1))
    print(f"    purge of {purged}: {(time.perf_counter() - start) * 1e3:.0f} ms", flush=True)
    table.close()
    shutil.rmtree(place)


def bench_retained(directory: Path, size: int) -> None:
    store = RetainedStore(directory / f"retained-{size}")
    for at in range(0, size, BATCH):
        topics = [b"site/%d/dev/%d/t" % (i % 100, i) for i in range(at, at + BATCH)]
        store.update([RetainedMessage(topic, b"x" * 64, 1, b"", b"i" * 16, 1, 0, b"publisher") for topic in topics])
    longest, calls, found, cursor = 0.0, 0, 0, None
    start = last = time.perf_counter()
    while calls == 0 or cursor is not None:
        part, cursor = store.scan(b"+/+/dev/+/u", cursor, 100, 1 << 20, 5)
        now = time.perf_counter()
        calls, found, longest, last = calls + 1, found + len(part), max(longest, now - last), now
    print(f"{size} retained: no match {(last - start) * 1e3:.0f} ms in {calls} calls, longest {longest * 1e3:.1f} ms")
    one = microseconds(lambda i: store.scan(b"site/%d/dev/%d/#" % (i % 100, i), None, 100, 1 << 20, 5), LOOKUPS)
    print(f"    a filter with one message {one:.1f} µs")
    store.close()


def main() -> None:
    random.seed(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        for size in map(int, sys.argv[1:]) if len(sys.argv) > 1 else SIZES:
            bench_routes(Path(directory), size)
            if size <= RETAINED_MAX:
                bench_retained(Path(directory), size)


if __name__ == "__main__":
    main()
