"""The output buffer; see buffer.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

import cython

__all__ = ["Buffer"]

cdef enum:
    USUAL_MAX = 262144                     # bytes: what one pass reads from one connection
    FIRST_CAPACITY = 512                   # bytes: a few acknowledgements or one small message


@cython.final
cdef class Buffer:
    """A queue of bytes to be sent to a peer."""

    def __dealloc__(self):
        free(self.data)

    def __bytes__(self):
        return PyBytes_FromStringAndSize(<char*>self.data + self.start, self.end - self.start)

    cdef uint8_t* reserve(self, size_t size) except NULL:
        cdef uint8_t* larger
        cdef size_t capacity
        if self.end + size > self.capacity:
            if self.start and self.end - self.start + size <= self.capacity:
                memmove(self.data, self.data + self.start, self.end - self.start)
            else:
                capacity = max(self.capacity * 2, max(<size_t>FIRST_CAPACITY, self.end - self.start + size), <size_t>self.usual)
                larger = <uint8_t*>realloc(NULL, capacity)
                if larger == NULL:
                    raise MemoryError(f"no memory for {capacity} bytes of output")
                if self.data != NULL:
                    memcpy(larger, self.data + self.start, self.end - self.start)
                free(self.data)
                self.data = larger
                self.capacity = capacity
            self.end -= self.start
            self.start = 0
        self.end += size
        return self.data + self.end - size

    cdef int append(self, const void* source, size_t size) except -1:
        memcpy(self.reserve(size), source, size)
        return 0

    cdef void consume(self, size_t size) noexcept:
        self.start += size
        if self.start >= self.end:
            self.clear()

    cdef void clear(self) noexcept:
        free(self.data)
        self.data = NULL
        # The next round starts with what this one needed, but at least half of the last estimate: a burst does not last.
        self.usual = <uint32_t>min(max(self.end, <size_t>self.usual // 2), <size_t>USUAL_MAX)
        self.start = self.end = self.capacity = 0
