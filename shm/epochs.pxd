"""Epochs: when a route changes, the number of its bucket goes up, and topic caches built before are void.

A bucket belongs to the first topic level (hashed); one more belongs to filters that begin with a wildcard. A writer
raises the epoch after its commit and before the SUBACK; a reader takes the epochs before it opens its read transaction.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    BUCKETS = 1024                         # a power of two
    WILDCARD_BUCKET = BUCKETS              # filters that begin with + or #

# Bucket of a topic or filter: of its first level; WILDCARD_BUCKET if that level is + or #.
cdef uint32_t bucket_of(const uint8_t* topic, size_t size) noexcept


cdef class Epochs:
    cdef uint64_t* values                  # BUCKETS + 1, in shared memory
    cdef uint64_t* rotors                  # 65,536 shared counters for round-robin groups, by hash
    cdef object owner

    cdef uint64_t current(self, uint32_t bucket) noexcept      # values[bucket] + values[WILDCARD_BUCKET]
    cdef void bump(self, uint32_t bucket) noexcept             # atomic add: several processes write
    cdef uint64_t next_turn(self, uint32_t hash) noexcept      # atomic fetch-and-add on a rotor
