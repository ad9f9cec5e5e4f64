"""The bounds of what one action has in memory: rows in queues and rows under way."""

from shardbroker.flows.sinks.row cimport Row

__all__ = ["Buffer"]


cdef class Buffer:
    """records, size: the bounds; whichever is reached first."""

    def __init__(self, long long records, long long size):
        self.records_max, self.bytes_max = records, size

    cdef bint full(self):
        return self.records >= self.records_max or self.bytes >= self.bytes_max

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another record. The rows of one record are admitted together: a little more may be there."""
        return self.full()

    @property
    def room(self) -> int:
        """Records for which there is room."""
        return self.records_max - self.records

    @property
    def is_low(self) -> bool:
        """Whether half of it is free: a reader that waits for room is worth waking."""
        return self.records * 2 <= self.records_max and self.bytes * 2 <= self.bytes_max

    cdef int add(self, long long size) except -1:
        """Notes a row."""
        self.records += 1
        self.bytes += size

    def remove(self, rows) -> None:
        """Notes that rows are done."""
        cdef Row row
        for row in rows:
            self.records -= 1
            self.bytes -= row.size
