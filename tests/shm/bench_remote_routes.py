"""What routes of other nodes cost: `python -m tests.shm.bench_remote_routes [SIZE]`.

Times are of the CPU. Bootstrap is the whole way from the log of one node to the table of another, without sockets: rows of the log,
messages of the cluster's core, batches of the remote table.
"""

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shardbroker.cluster.messages import Route
from shardbroker.cluster.rlog import BATCH_ROUTES, DumpSlots, RouteReceiver, RouteSender
from shardbroker.cluster.view import RouteState
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes
from shm.route_log import LmdbRouteLog
from shm.routes import RouteChange, RouteTable

LOOKUPS = 5000
KEPT = 20_000
"""Entries of the log that is overrun."""


def used(place: Path) -> int:
    """Returns the bytes of the file that are in use."""
    return os.stat(place / "data.mdb").st_blocks * 512


def fill(table: RouteTable, filters: list[bytes], batch: int) -> float:
    """Adds a route for each filter, and returns the seconds."""
    start = time.process_time()
    for at in range(0, len(filters), batch):
        table.update([RouteChange(True, filter, 0) for filter in filters[at : at + batch]])
    return time.process_time() - start


def bootstrap(log: LmdbRouteLog[Route], store: RemoteRoutes, node: int, log_id: int) -> tuple[float, float, float]:
    """Streams the whole table; returns the seconds in all, and those of the sender and of the receiver."""
    sender, receiver = RouteSender(log, log_id, 2, DumpSlots(), 0), RouteReceiver(store, node, log_id)
    up: list[Any] = [*receiver.start()]
    sending = receiving = 0.0
    while receiver.state != RouteState.NORMAL:
        start = time.process_time()
        down = [answer for message in up for answer in sender.receive(message, 0)]
        middle = time.process_time()
        up = [answer for message in down for answer in receiver.receive(message)] + receiver.work()
        sending, receiving = sending + middle - start, receiving + time.process_time() - middle
    return sending + receiving, sending, receiving


def overrun(directory: Path, filters: list[bytes]) -> None:
    """Has a peer with all routes miss more changes than the log keeps, and measures its way back."""
    table = RouteTable(directory / "overrun", log=True, log_entries=KEPT)
    fill(table, filters, BATCH_ROUTES)
    log = LmdbRouteLog(table, Route)
    remote = RemoteRoutes(directory / "overrun-remote", Epochs.create(str(directory / "overrun-epochs")))
    bootstrap(log, remote, 1, 1)
    count = fill(table, [b"later/%d/#" % number for number in range(2 * KEPT)], BATCH_ROUTES)
    start = time.monotonic()
    total, sending, receiving = bootstrap(log, remote, 1, 1)
    print(f"overrun log, {2 * KEPT} changes in {count:.1f} s: {total:.2f} s ({sending:.2f} s sender, {receiving:.2f} s receiver)")
    print(f"    {time.monotonic() - start:.2f} s of the clock, {remote.count(1)} routes")
    remote.close()
    table.close()


def bench(directory: Path, size: int) -> None:
    filters = [b"bench/%d/#" % number for number in range(size)]
    random.shuffle(filters)
    plain = RouteTable(directory / "plain")
    without = fill(plain, filters, BATCH_ROUTES)
    table = RouteTable(directory / "routes", log=True)
    seconds = fill(table, filters, BATCH_ROUTES)
    print(f"{size} routes of workers: {without / size * 1e6:.1f} µs a route without a log, {seconds / size * 1e6:.1f} µs with one")
    bytes_without, bytes_with = used(directory / "plain") / size, used(directory / "routes") / size
    print(f"    {bytes_without:.0f} bytes a route without a log, {bytes_with:.0f} with one")
    overrun(directory, filters)
    log = LmdbRouteLog(table, Route)
    epochs = Epochs.create(str(directory / "epochs"))
    remote = RemoteRoutes(directory / "remote", epochs)
    total, sending, receiving = bootstrap(log, remote, 1, 1)
    print(f"bootstrap: {total:.2f} s ({sending:.2f} s sender, {receiving:.2f} s receiver)")
    print(f"    {used(directory / 'remote') / size:.0f} bytes a route")
    total, sending, receiving = bootstrap(log, remote, 1, 2)
    print(f"the same again, all rows renewed: {total:.2f} s ({receiving:.2f} s receiver)")
    remote.close()
    remote = RemoteRoutes(directory / "random", epochs)
    generation = remote.begin(1)
    for batch in (500, BATCH_ROUTES):
        part = filters[: size // 2] if batch == 500 else filters[size // 2 :]
        start, slowest = time.process_time(), 0.0
        for at in range(0, len(part), batch):
            before = time.process_time()
            remote.put(1, generation, [Route(filter) for filter in part[at : at + batch]], (1, at + 1))
            slowest = max(slowest, time.process_time() - before)
        seconds = time.process_time() - start
        print(f"log, random order, batches of {batch}: {seconds / len(part) * 1e6:.2f} µs a route, slowest {slowest * 1e3:.1f} ms")
    print(f"    {used(directory / 'random') / size:.0f} bytes a route")
    topics = [b"bench/%d/x" % random.randrange(size) for _ in range(LOOKUPS)]
    table.remote = None
    table.match(topics[0])
    for what, other in (("own routes", None), ("own and remote routes", remote)):
        table.remote = other
        start = time.process_time()
        for topic in topics:
            table.match(topic)
        print(f"look-up in {what}: {(time.process_time() - start) / LOOKUPS * 1e6:.1f} µs")
    start = time.process_time()
    while not remote.purge(1, BATCH_ROUTES):
        pass
    print(f"purge: {(time.process_time() - start) / size * 1e6:.2f} µs a route")


def main() -> None:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        bench(directory, int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
