"""What one client may send: leaky buckets of messages and bytes. Whoever has sent too much is not read until it has leaked away."""
from libc.stdint cimport uint64_t



cdef class Rates:
    cdef double messages, bytes            # a second; 0: no limit
    cdef double messages_in, bytes_in      # in the buckets
    cdef uint64_t at_ms                    # as of when
    cdef uint64_t stopped_until_ms         # the client is not read until then

    # Adds what came. Returns how many ms nothing more should be read, mostly 0.
    cdef uint64_t add(self, uint64_t now_ms, uint64_t messages, uint64_t bytes) noexcept
