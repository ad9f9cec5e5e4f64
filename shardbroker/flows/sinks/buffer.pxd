"""The bounds of what one action has in memory: rows in queues and rows under way."""


cdef class Buffer:
    cdef readonly long long records_max, bytes_max
    cdef readonly long long records, bytes

    cdef bint full(self)
    cdef int add(self, long long size) except -1
