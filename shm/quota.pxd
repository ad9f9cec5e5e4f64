"""A leaky bucket that several processes fill: one word in shared memory, and no lock.

The word is the moment at which the bucket will be empty (CLOCK_MONOTONIC, ns). What comes moves it on by its share of the rate; the
bucket is full while that moment lies more than a second ahead. Words of a segment that is new are 0: long empty.
"""
from libc.stdint cimport uint64_t


cdef class SharedBucket:
    cdef uint64_t* empty_at                # ns
    cdef double each_ns                    # one more moves it on by so much
    cdef object owner                      # of the memory

    # ns until there is room, 0: there is.
    cdef uint64_t over_ns(self, uint64_t now_ns) noexcept
    # Fills it, whether there is room or not.
    cdef void add(self, uint64_t now_ns, uint64_t count) noexcept
