from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    SUB_BITS = 6                           # 64 steps per power of two: at most 1.6 % wide
    BUCKETS = 59 << SUB_BITS               # for every value of 64 bits


cdef class Histogram:
    """Counts of durations in nanoseconds, in steps of at most 1.6 %; exact below 64 ns."""
    cdef uint64_t counts[BUCKETS]
    cdef readonly uint64_t count, largest
    cdef readonly double sum_ns

    cdef void add(self, uint64_t value_ns) noexcept
