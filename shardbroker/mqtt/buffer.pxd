"""A growable byte buffer: what the protocol layers write packets into and a shell flushes to a socket.

    data                                     capacity
     |<-- start: already sent -->|<-- pending -->|<-- free -->|
                                 start           end

Invariants: start <= end <= capacity; an empty buffer (start == end) owns no memory (data is NULL).
A pointer returned by `reserve` stays valid until the next call on the same buffer.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef class Buffer:
    cdef uint8_t* data
    cdef size_t start, end, capacity          # bytes
    cdef uint32_t usual                       # capacity that the last round needed: the next one starts with it

    cdef inline size_t pending(self) noexcept:
        return self.end - self.start

    # Room for `size` more bytes at data + end; moves `end` past them. Raises MemoryError.
    cdef uint8_t* reserve(self, size_t size) except NULL
    cdef int append(self, const void* source, size_t size) except -1
    # Takes `size` bytes off the front (they were sent); gives the memory back when nothing is left.
    cdef void consume(self, size_t size) noexcept
    cdef void clear(self) noexcept
