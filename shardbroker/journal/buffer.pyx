"""Memory for records; see buffer.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

__all__ = ["RecordBuffer"]


cdef class RecordBuffer:
    """Records in memory, without blocks; `shardbroker.journal.Writer` is the buffer with blocks and files."""

    def __cinit__(self):
        self.block_bytes = <size_t>-1

    def __dealloc__(self):
        free(self.data)

    def __bytes__(self) -> bytes:
        return PyBytes_FromStringAndSize(<const char*>self.data, self.end)

    def __len__(self) -> int:
        """Number of records in the open block."""
        return self.count

    cdef int add(self, const void* record, size_t size) except -1:
        cdef uint8_t* at = self.room(size)
        memcpy(at, record, size)
        self.commit(at + size)
        return 0

    cdef uint8_t* make_room(self, size_t size) except NULL:
        if self.end + size > self.capacity:
            self.grow(max(self.capacity * 2, self.end + size))
        return self.data + self.end

    cdef int grow(self, size_t capacity) except -1:
        cdef uint8_t* moved = <uint8_t*>realloc(self.data, capacity)
        if moved == NULL:
            raise MemoryError(f"no memory for {capacity} bytes of records")
        self.data = moved
        self.capacity = capacity
        return 0
