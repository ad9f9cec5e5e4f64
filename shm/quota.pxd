"""A leaky bucket that several processes fill: one word in shared memory, without a lock.

The word is the time at which the bucket will be empty (CLOCK_MONOTONIC, ns). Each unit added moves that time on by its share of the
rate; the bucket is full while the time is more than a second ahead. Words of a new segment are 0: long empty.
"""
from libc.stdint cimport uint64_t


cdef class SharedBucket:
    cdef uint64_t* empty_at                # ns
    cdef double each_ns                    # ns that one unit adds
    cdef object owner                      # of the memory

    # Returns the ns until there is room; 0: there is room now.
    cdef uint64_t over_ns(self, uint64_t now_ns) noexcept
    # Adds units, whether there is room or not.
    cdef void add(self, uint64_t now_ns, uint64_t count) noexcept
