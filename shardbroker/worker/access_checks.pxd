"""Answers of the access gate, and connections that are checked again when bans or rules have changed."""
from cython cimport final
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.worker.router cimport Router
from shardbroker.worker.turn cimport Turn
from shm.counters cimport Counters


@final
cdef class AccessChecks:
    cdef Router router
    cdef Turn turn
    cdef Counters counters
    cdef object gate                       # shardbroker.access.auth_client.AuthClient; None: nothing is checked
    cdef int fd                            # answers arrive by it; -1: nothing is checked
    cdef uint64_t seen                     # what Counters.access_generation was last
    cdef tuple settings                    # sections that connections are checked by
    cdef uint32_t changes                  # times that these sections have changed
    cdef list rechecking                   # connections that a reload of rules or bans has not reached yet
    cdef bint rules_moved                  # rules have changed, too
    cdef bint late                         # more requests are overdue than one step had room for

    # Whether look() must not wait for its turn.
    cdef bint is_due(self) noexcept
    # Of rules and of the settings that connections are checked by.
    cdef uint32_t rules_generation(self) noexcept
    cdef int look(self) except -1
    # As many as a step allows: a login that ends takes as long as hundreds of messages.
    cdef int take_results(self) except -1
    cdef int deliver_result(self, waiter, result) except -1
