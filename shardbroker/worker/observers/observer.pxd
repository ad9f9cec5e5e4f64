"""Base of the features of this package."""
from libc.stdint cimport uint32_t

from shardbroker.session.context cimport WorkerContext

cdef enum:
    TOPICS_KNOWN = 4096                    # topics whose matches are cached; a full cache starts again empty


cdef class Observer:
    """A feature that is called while its bit in WorkerContext.watch is set."""
    cdef WorkerContext context
    cdef uint32_t bit                      # of session/watcher.pxd

    # Sets or clears the bit.
    cdef void observe(self, bint wanted) noexcept
