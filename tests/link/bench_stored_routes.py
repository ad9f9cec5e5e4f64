"""What routes of peers cost on disk: `python -m tests.link.bench_stored_routes [SIZE]`. Times are of the CPU and of the clock."""

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shardbroker.cluster.messages import Hello, Route
from shardbroker.cluster.rlog import BATCH_ROUTES, order_of
from shardbroker.link.stored_routes import StoredRoutes
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes

PEER = Hello(0, 2, "n2", "n2", bytes(16), bytes(16), 5, 1, 1, 0, bytes(16))


def measured(what: str, size: int, call: Callable[[], object]) -> None:
    cpu, clock = time.process_time(), time.monotonic()
    call()
    cpu, clock = time.process_time() - cpu, time.monotonic() - clock
    print(f"{what}: {cpu:.2f} s CPU, {clock:.2f} s, {cpu / size * 1e6:.2f} µs a route", flush=True)


def bench(directory: Path, size: int) -> None:
    filters = sorted((b"bench/%d/#" % number for number in range(size)), key=lambda filter: order_of((filter, b"")))
    batches = [[Route(filter) for filter in filters[at : at + BATCH_ROUTES]] for at in range(0, size, BATCH_ROUTES)]
    epochs, bell, disk = Epochs.create(str(directory / "epochs")), os.eventfd(0), directory / "data" / "cluster" / "routes"
    tables: list[RemoteRoutes] = []

    def start() -> StoredRoutes:
        tables.append(RemoteRoutes(directory / f"table-{len(tables)}", epochs))
        return StoredRoutes(tables[-1], disk, lambda *line: print(*line), bell, members=["n2"], is_new=True, waits=False)

    def dump(store: StoredRoutes | RemoteRoutes) -> None:
        generation = store.begin(2)
        for batch in batches:
            store.put(2, generation, batch, None)
        store.complete(2, (1, 1))

    plain = RemoteRoutes(directory / "plain", epochs)
    measured("dump, not stored", size, lambda: dump(plain))
    store = start()
    store.identify(PEER)
    measured("dump, stored", size, lambda: dump(store))
    measured("start from a log", size, start)

    def copy() -> None:
        store._start_copy()
        while store._copied is None:
            time.sleep(0.01)
        store.work(0)

    measured("copy, in a thread", size, copy)
    print(f"    {store._table_bytes / size:.0f} bytes a route on disk")
    measured("start from a copy", size, start)
    assert tables[-1].count(2) == size
    random.shuffle(filters)
    mixed = [[Route(filter) for filter in filters[at : at + 500]] for at in range(0, size // 10, 500)]
    for what, one in (("not stored", plain), ("stored", store)):
        measured(f"log in batches of 500, {what}", size // 10, lambda one=one: [one.put(2, 0, rows, (1, 2)) for rows in mixed])  # type: ignore[misc]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="shardbroker-bench-") as place:
        bench(Path(place), int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
