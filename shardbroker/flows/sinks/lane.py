"""A queue of rows that keep their order: those of the same clients, or of the same journal."""

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from math import inf
from zlib import crc32

from shardbroker.flows.sinks.batch import Batch
from shardbroker.flows.sinks.row import Row

__all__ = ["Lane", "lane_of"]

CLIENTS_KNOWN = 4096
"""Clients whose lanes are kept: a look-up takes a fifth of the time."""


@lru_cache(CLIENTS_KNOWN)
def lane_of(client: str, lanes: int) -> int:
    """Returns the lane of a client."""
    return crc32(client.encode(errors="surrogatepass")) % lanes


class Lane:
    """A lane has at most `window` batches under way; with one, rows keep their order when a batch is written again."""

    __slots__ = ("again", "number", "queue", "ready_below", "size", "under_way", "window")

    def __init__(self, number: int, window: int) -> None:
        self.number, self.window = number, window
        self.queue: deque[tuple[Row, float]] = deque()
        """Rows, each with the time at which it was admitted."""
        self.size = 0
        """Their memory, estimated, bytes."""
        self.again: deque[Batch] = deque()
        """Batches that are written again; they precede the queue."""
        self.under_way = 0
        self.ready_below: float = inf
        """Rows from this position on wait: others of the same record may follow."""

    @property
    def is_free(self) -> bool:
        return self.under_way < self.window and bool(self.again or (self.queue and self.queue[0][0].position < self.ready_below))

    def due_s(self, records: int, size: int, wait_s: float) -> float | None:
        """Returns when the next batch may leave; None: no row waits, or as many batches as may be are under way.

        records, size: rows and bytes that do not wait for more.
        """
        if not self.is_free:
            return None
        if self.again or wait_s == 0 or len(self.queue) >= records or self.size >= size:
            return float("-inf")
        return self.queue[0][1] + wait_s

    def take(self, records: int, size: int, drop: Callable[[Row], bool], whole_records: bool) -> Batch | None:
        """Takes the next batch of at most so many rows and about so many bytes; rows that `drop` accepts are left out.

        whole_records: rows of one record stay together, so that the position behind a batch has a meaning.
        """
        while self.again:
            batch = self.again.popleft()
            batch.rows = [row for row in batch.rows if not drop(row)]
            if batch.rows:
                return batch
        rows: list[Row] = []
        total = 0
        while self.queue:
            row = self.queue[0][0]
            if rows and (len(rows) >= records or total + row.size > size) and not (whole_records and _same(rows[-1], row)):
                break
            if row.position >= self.ready_below:
                break
            self.queue.popleft()
            self.size -= row.size
            if not drop(row):
                rows.append(row)
                total += row.size
        return Batch(self.number, rows) if rows else None


def _same(one: Row, other: Row) -> bool:
    return one.position == other.position and one.journal == other.journal
