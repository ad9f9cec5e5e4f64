"""Changes of this worker's subscriptions that the route table of all workers does not have yet.

    Subscriptions   -> note()     added or removed; a change that is undone before the commit leaves nothing
    Router.commit() -> commit()   all that are due in one transaction, then the epochs of their filters
"""
from cython cimport final
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.resolver cimport TopicResolver

cdef enum:
    REMOVAL_DELAY_MS = 20                  # for routes of sessions that end, see few_removals()


@final
cdef class RouteChanges:
    cdef WorkerContext context
    cdef TopicResolver resolver            # the topics of committed changes are looked up again
    cdef object routes                     # shm.routes.RouteTable or its like: update(), replace()
    cdef long own_destination
    cdef dict changes                      # (filter, group, member) -> added?: what differs from the route table
    cdef uint64_t due_ms                   # when they are to be committed; 0: at once
    cdef uint64_t removals_since_ms
    cdef uint32_t removals                 # since then
    cdef uint64_t full_tables              # commits that the route table had no room for
    cdef uint64_t position                 # of the route log, behind all commits; 0: no peer needs any of them

    # Notes a change. It is committed at the end of the pass, or after `delay_ms` if nothing is more urgent.
    cdef int note(self, Subscription subscription, bint add, uint64_t delay_ms) except -1
    # Commits the changes. True if the table has no room for them: then none is added, and removals are tried again.
    cdef bint commit(self) except -1
    # Whether a removal is among the first PROMPT_REMOVALS of REMOVAL_DELAY_MS: only a crowd has to wait.
    cdef bint few_removals(self) noexcept
