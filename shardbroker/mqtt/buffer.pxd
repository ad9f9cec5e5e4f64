"""A growable byte buffer: the protocol layers write packets into it, a shell flushes it to a socket.

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
    cdef uint32_t usual                       # capacity that the last round needed, and the next one starts with

    cdef inline size_t pending(self) noexcept:
        return self.end - self.start

    # Reserves `size` more bytes and moves `end` past them; returns where these bytes begin. Raises MemoryError.
    cdef uint8_t* reserve(self, size_t size) except NULL
    cdef int append(self, const void* source, size_t size) except -1
    # Removes `size` bytes from the front, which were sent; frees the memory once the buffer is empty.
    cdef void consume(self, size_t size) noexcept
    cdef void clear(self) noexcept
