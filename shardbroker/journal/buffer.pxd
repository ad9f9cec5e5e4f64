"""A buffer that records are written into, one behind the other: plain memory, or the open block of a journal (journal/writer.pxd).

    data               closed            end           capacity
     |  what is sealed   |  <-- open -->  |  <-- free -->  |

Invariant: closed <= end <= capacity. A pointer from `room` stays valid until the next call on the buffer.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class RecordBuffer:
    cdef uint8_t* data
    cdef size_t closed, end, capacity      # bytes
    cdef size_t block_bytes                # an open block this large is closed
    cdef uint32_t count                    # records in the open block
    cdef readonly uint64_t next_sequence   # of the next record

    # Room for a record of at most `size` bytes; `commit` with where it really ended. MemoryError is all that can be raised.
    cdef inline uint8_t* room(self, size_t size) except NULL:
        if self.count and self.end + size <= self.capacity and self.end - self.closed < self.block_bytes:
            return self.data + self.end
        return self.make_room(size)

    cdef inline void commit(self, uint8_t* end) noexcept:
        self.end = end - self.data
        self.count += 1
        self.next_sequence += 1

    # Copies an encoded record into the buffer.
    cdef int add(self, const void* record, size_t size) except -1
    cdef uint8_t* make_room(self, size_t size) except NULL
    cdef int grow(self, size_t capacity) except -1
