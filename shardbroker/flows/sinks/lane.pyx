"""A queue of rows that keep their order: those of the same clients, or of the same journal."""

from collections import deque
from zlib import crc32

from shardbroker.flows.sinks.row cimport Row

from shardbroker.flows.sinks.batch import Batch

__all__ = ["Lane", "lane_of"]

cdef enum:
    CLIENTS_KNOWN = 4096  # whose check sums are kept
    KNOWN_CHARS = 128  # longest client id of these, so that they take less than 1 MB

cdef long long NEVER = 0x7FFFFFFFFFFFFFFF  # above all positions
cdef dict _sums = {}


cpdef long lane_of(str client, long lanes) except -1:
    """Returns the lane of a client."""
    found = _sums.get(client)
    if found is None:
        found = crc32(client.encode(errors="surrogatepass"))
        if len(client) <= KNOWN_CHARS:
            if len(_sums) >= CLIENTS_KNOWN:
                _sums.clear()
            _sums[client] = found
    return <unsigned long>found % <unsigned long>lanes


cdef class Lane:
    """A lane has at most `window` batches under way; with one, rows keep their order when a batch is written again."""

    def __init__(self, long number, long window):
        self.number, self.window = number, window
        self.queue, self.again = deque(), deque()
        self.ready_below = NEVER

    @property
    def is_free(self) -> bool:
        if self.under_way >= self.window:
            return False
        return bool(self.again) or bool(self.queue) and (<Row>self.queue[0]).position < self.ready_below

    def due_s(self, long long records, long long size, double wait_s):
        """Returns when the next batch may leave; None: no row waits, or as many batches as may be are under way.

        records, size: rows and bytes that do not wait for more.
        """
        if not self.is_free:
            return None
        if self.again or wait_s == 0 or len(self.queue) >= records or self.size >= size:
            return float("-inf")
        return (<Row>self.queue[0]).admitted_s + wait_s

    def take(self, long long records, long long size, drop, bint whole_records):
        """Takes the next batch of at most so many rows and about so many bytes; rows that `drop` accepts are left out.

        whole_records: rows of one record stay together, so that the position behind a batch has a meaning.
        """
        cdef list rows = []
        cdef long long total = 0
        cdef Row row, last = None
        queue = self.queue
        while self.again:
            batch = self.again.popleft()
            if drop is not None:
                batch.rows = [row for row in batch.rows if not drop(row)]
            if batch.rows:
                return batch
        while queue:
            row = <Row>queue[0]
            if last is not None and (len(rows) >= records or total + row.size > size) and not (whole_records and _same(last, row)):
                break
            if row.position >= self.ready_below:
                break
            queue.popleft()
            self.size -= row.size
            if drop is None or not drop(row):
                rows.append(row)
                last = row
                total += row.size
        return Batch(self.number, rows) if rows else None


cdef bint _same(Row one, Row other):
    return one.position == other.position and one.journal == other.journal
