"""Costs of retained messages on all nodes: `python -m tests.link.bench_retained [messages]`; CPU time, and the longest steps.

Two stores with their cores, in one process, without sockets: a change, the stamps of an older store, a new node, and two nodes
of which each lacks some messages.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shardbroker.cluster.messages import RetainedMessages
from shardbroker.cluster.retained import COMPARE_MS, Replication
from shardbroker.link.codec import encode
from shardbroker.stores.replicated import ReplicatedStore
from shardbroker.stores.retained import RetainedMessage, RetainedStore

BATCH = 500
DIFFERENT = 1_000


class Table:
    """A store as link-0 has it, without its limits."""

    def __init__(self, path: Path) -> None:
        self.store = ReplicatedStore(path)
        self.head = self.store.stamps.head
        self.changes_behind = self.store.stamps.changes_behind
        self.sums = self.store.stamps.sums
        self.entries = self.store.stamps.entries
        self.rows = self.store.rows

    def is_ready(self) -> bool:
        return True

    def merge(self, rows: tuple[bytes, ...]) -> None:
        self.store.merge(rows, time.time_ns() // 1_000_000)


def message(number: int, suffix: bytes = b"") -> RetainedMessage:
    now_ms = time.time_ns() // 1_000_000
    id = (now_ms * 1000).to_bytes(8, "big") + number.to_bytes(8, "big")
    return RetainedMessage(b"bench/%d/%d%s" % (number % 1000, number, suffix), b"x" * 100, 1, b"", id, now_ms, 0, b"publisher")


def fill(store: RetainedStore, count: int) -> float:
    """Stores messages and returns the CPU time of one, µs."""
    spent = 0.0
    for first in range(0, count, BATCH):
        batch = [message(number) for number in range(first, min(count, first + BATCH))]
        began = time.process_time()
        store.update(batch)
        spent += time.process_time() - began
    return spent / count * 1e6


class Pair:
    """Two nodes; each call of a core is measured."""

    def __init__(self, tables: tuple[Table, Table]) -> None:
        self.cores = [Replication(table) for table in tables]  # type: ignore[arg-type]
        self.spent = [0.0, 0.0]
        self.longest_s = 0.0
        self.bytes = 0

    def call(self, node: int, work: Callable[[], list[tuple[int, RetainedMessages]]]) -> list[RetainedMessages]:
        began = time.process_time()
        sent = work()
        took = time.process_time() - began
        self.spent[node] += took
        self.longest_s = max(self.longest_s, took)
        self.bytes += sum(len(encode(one)) for _, one in sent)
        return [one for _, one in sent]

    def run(self, now_ms: int) -> None:
        for node in (0, 1):
            self.cores[node].follow({1: node == 0}, now_ms)
        queues: list[list[RetainedMessages]] = [[], []]
        quiet = 0
        while quiet < 3:
            quiet += 1
            for node in (0, 1):
                core = self.cores[node]
                found = self.call(node, lambda core=core: core.work(now_ms)[0])  # type: ignore[misc]
                queues[node] += found
                for message in queues[1 - node]:
                    queues[node] += self.call(node, partial(core.received, 1, message, now_ms))
                    quiet = 0
                queues[1 - node] = []
                if found or not self.cores[node].is_synced(1):
                    quiet = 0

    def report(self, what: str) -> None:
        one, other = self.spent
        longest_ms = self.longest_s * 1000
        print(f"{what}: {one:.2f} s and {other:.2f} s of CPU, longest step {longest_ms:.0f} ms, {self.bytes / 1e6:.1f} MB")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        plain = RetainedStore(Path(directory) / "one")
        print(f"a change of a single node: {fill(plain, count):.1f} µs")
        plain.close()
        one = Table(Path(directory) / "one")
        began, longest_s = time.process_time(), 0.0
        is_built = False
        while not is_built:
            step = time.process_time()
            is_built = one.store.build()
            longest_s = max(longest_s, time.process_time() - step)
        print(f"stamps of {count} messages: {time.process_time() - began:.1f} s of CPU, longest step {longest_s * 1000:.0f} ms")
        with tempfile.TemporaryDirectory() as again, ReplicatedStore(Path(again)) as stamped:
            print(f"a change of a node in a cluster: {fill(stamped, count):.1f} µs")
        other = Table(Path(directory) / "other")
        pair = Pair((one, other))
        pair.run(0)
        pair.report(f"a new empty node gets {count} messages")
        sizes = [(Path(directory) / name / "data.mdb").stat().st_size / count for name in ("one", "other")]
        print(f"files: {sizes[0]:.0f} and {sizes[1]:.0f} bytes a message")
        for table, suffix in ((one, b"/one"), (other, b"/other")):
            table.store.update([message(number, suffix) for number in range(DIFFERENT)])
        pair = Pair((one, other))
        pair.run(COMPARE_MS)
        pair.report(f"two nodes of which each lacks {DIFFERENT} messages")
        pair = Pair((one, other))
        pair.run(2 * COMPARE_MS)
        pair.report("two equal nodes")


if __name__ == "__main__":
    main()
