"""Publish rates of a client: leaky buckets of messages and bytes. A client above its rate is not read until they have leaked."""
from libc.stdint cimport uint64_t

from shm.counters cimport Counters

cdef class SharedRates:
    """Shared rates of all clients of a listener, and of the whole broker: one object per listener."""
    cdef list messages, bytes              # SharedBuckets

    cdef uint64_t over_ns(self, uint64_t now_ns) noexcept
    cdef void add(self, uint64_t now_ns, uint64_t bytes) noexcept


cdef class Quotas:
    """Finds the SharedRates of a listener."""
    cdef Counters counters
    cdef list zone                         # rates of messages and bytes of all listeners, 0: none
    cdef dict known                        # (listener number, rates) -> SharedRates

    # None: it has no shared limits. `rates`: its own, as `zone`, or None.
    cdef SharedRates of(self, int listener, object rates)


cdef class Rates:
    cdef double messages, bytes            # a second; 0: no limit
    cdef double messages_in, bytes_in      # in the buckets
    cdef uint64_t at_ms                    # as of when
    cdef uint64_t stopped_until_ms         # the client is not read until then
    cdef SharedRates shared                # None mostly

    # Adds what came. Returns how many ms nothing more should be read, mostly 0.
    cdef uint64_t add(self, uint64_t now_ms, uint64_t messages, uint64_t bytes) noexcept
