"""Epochs: a change of a route raises the epoch of its bucket, which voids the cache entries built under the old epoch.

A bucket belongs to a prefix of one to LEVELS topic levels (hashed); one further bucket belongs to filters that begin with a
wildcard.

    filter                raises the epoch of      | topic         checks the epochs of
    #, +/b                the wildcard bucket      | a             wildcard bucket, a
    a, a/#, a/+/c         a                        | a/b           wildcard bucket, a, a/b
    a/b, a/b/#, a/b/+/d   a/b                      | a/b/c/d       wildcard bucket, a, a/b, a/b/c
    a/b/c, a/b/c/d/#      a/b/c

A filter matches only topics that begin with its levels before the first wildcard, so every topic that the filter matches checks the
filter's bucket. A writer raises the epoch after its commit and before the SUBACK; a reader takes the epochs before it opens its
read transaction.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    LEVELS = 3                             # `v1/devices/<id>/#` of one device leaves the other devices' topics cached
    BUCKETS = 4096                         # a power of two: 32 KB of epochs, and few prefixes in use share one
    WILDCARD_BUCKET = BUCKETS              # filters that begin with + or #

cdef struct Buckets:                       # buckets that a topic checks, besides the wildcard bucket
    uint16_t of[LEVELS]                    # by number of levels; a shorter topic repeats its last one

cdef void buckets_of(const uint8_t* topic, size_t size, Buckets* buckets) noexcept
# Returns the bucket of a filter.
cdef uint32_t bucket_of(const uint8_t* filter, size_t size) noexcept
# Returns the sum of a table's epochs that a topic checks. Epochs only grow, so equal sums mean that none has changed.
cdef inline uint64_t sum_of(const uint64_t* epochs, const Buckets* buckets) noexcept:
    return epochs[<int>WILDCARD_BUCKET] + epochs[buckets.of[0]] + epochs[buckets.of[1]] + epochs[buckets.of[2]]


cdef class Epochs:
    cdef uint64_t* values                  # BUCKETS + 1, in shared memory
    cdef uint64_t* rotors                  # 65,536 shared counters for round-robin groups, by hash
    cdef object owner

    cdef uint64_t current(self, const Buckets* buckets) noexcept   # sum_of(values), loaded atomically
    cdef void bump(self, uint32_t bucket) noexcept             # atomic add: several processes write
    cdef uint64_t next_turn(self, uint32_t hash) noexcept      # atomic fetch-and-add on a rotor
