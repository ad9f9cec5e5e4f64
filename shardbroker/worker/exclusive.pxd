"""Exclusive subscriptions of a worker: `$exclusive/<filter>`, at most one holder of a filter on the node.

    SUBSCRIBE       -> claim()             a row in the table of all workers, before SUBACK
    its end         -> end()               the row stays until the journal has that end
    end of a pass   -> release_durable()   the row is removed, and another session may claim the filter

In a cluster with sessions that move, rows are granted by worker/cluster_exclusive.pyx.
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.session.context cimport WorkerContext
from shardbroker.session.session cimport Session


cdef enum:
    CLAIM_REFUSED = 0
    CLAIM_GRANTED = 1
    CLAIM_WAITS = 2


@final
cdef class ExclusiveSubscriptions:
    cdef WorkerContext context
    cdef dict by_key                       # session key -> Session; the router's
    cdef long own_destination
    cdef readonly object owners            # shardbroker.stores.exclusive.ExclusiveTable or its like; None until sessions are recovered
    # Subscriptions that have ended: filter -> (session key, position of the end in the journal), by position. The position of those
    # that have ended since the last release_durable() is None.
    cdef dict releasing
    cdef uint64_t due_ms                   # when the next of them are released; 0: once the journal has their end
    cdef bint refused                      # the table is full, which is logged

    cdef public object cluster             # shardbroker.worker.cluster_exclusive.ClusterExclusive; None: this node alone decides

    # Whether this exclusive subscription is the session's now: CLAIM_REFUSED or CLAIM_GRANTED, or CLAIM_WAITS for other nodes. Then reading
    # from the channel is suspended, and the call is to be repeated once it is resumed.
    cdef int claim(self, object channel, Session session, bytes filter) except -1
    # The session that has the filter in the table and counts as gone, or 0.
    cdef uint64_t ended_holder(self, bytes filter) except? 0
    # The subscription of this session has ended: the filter is released once the journal has that end.
    cdef int end(self, uint64_t session, bytes filter) except -1
    # Releases filters whose subscriptions ended before the position `durable` of the journal: RELEASES_A_PASS at most. `next_sequence`:
    # position of the next record; what has ended since the last call is recorded before it.
    cdef int release_durable(self, uint64_t next_sequence, uint64_t durable) except -1
    cdef int release(self, list due) except -1
