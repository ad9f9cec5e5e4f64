"""Messages that a worker has accepted and not published yet. The journal has them until they are.

    defer()    for want of room in a ring or on the disk, or of a look-up: Router.run_retries() tries them in each pass, in order
    delay()    until their time: Delays passes them on to `waiting` then
    set_aside()    from another worker, for want of a look-up: Router.deliver_unresolved(), in the order of each publisher
"""
from cython cimport final
from libc.stdint cimport int64_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.deferred cimport Deferred
from shardbroker.worker.features.delayed cimport Delays
from shm.counters cimport Counters


@final
cdef class Retries:
    cdef WorkerContext context
    cdef Counters counters_segment         # of all processes; None: there is no other worker
    cdef readonly Delays delays            # messages that wait for their time
    cdef list waiting                      # Deferred: those that are tried again
    cdef dict unresolved                   # client id of the publisher -> deque of Deferred: from other workers, topics being looked up
    cdef Py_ssize_t unresolved_count
    cdef uint64_t unresolved_bytes
    cdef uint64_t last_number              # of the newest deferred message in the journal

    # Defers a message until there is room.
    cdef int defer(self, Deferred deferred) except -1
    # Whether another message can be set aside.
    cdef bint can_set_aside(self) noexcept
    cdef int set_aside(self, Deferred deferred) except -1
    # The oldest message of this publisher, which was set aside, is delivered or dropped.
    cdef int resolved(self, bytes client_id) except -1
    # All of them but the delayed ones.
    cdef list all(self)
    # Publishes it at this time, whatever happens to its publisher. The caller has checked refusal().
    cdef int delay(self, Publication publication, uint64_t at_ms) except -1
    # Why no further message may be delayed; None if it may.
    cdef str refusal(self)
    # Moves messages that are due to `waiting`.
    cdef int take_due(self) except -1
    # Of all workers, if there are others.
    cdef int64_t delayed_count(self) except? -1
    # Gives it a number and records it in the journal, if there is one.
    cdef int number(self, Deferred deferred) except -1
    cdef int record(self, Deferred deferred) except -1
