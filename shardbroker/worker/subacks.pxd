r"""SUBSCRIBE packets whose SUBACK waits: for the commit of their routes, and with cluster.suback = cluster for the other nodes.

    SUBSCRIBE -> waiting -- commit ----------------------------------------------> answered
                              \-> held -- link-0: the peers have the routes -----> answered
                                     \--- link-0: its limit; GIVE_UP_MS -------> answered, counter suback.late

A client may publish to its filter from another connection as soon as it has the SUBACK, and that message must arrive. A commit has one
ticket for all its SUBACKs. Positions of the route log only grow, so the SUBACKs of later commits wait for no less.
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.route_changes cimport RouteChanges
from shardbroker.worker.subscriptions cimport Subscriptions


@final
cdef class Subacks:
    cdef WorkerContext context
    cdef Subscriptions subscriptions
    cdef RouteChanges route_changes        # position of the route log behind the last commit
    # (answer, channel, packet id, codes, subscribed, replays), with answer(channel, packet id, codes, replays); `subscribed` is a list of
    # (wire filter, subscription), `replays` of subscriptions.
    cdef list waiting                      # for the commit
    cdef list routed                       # functions without arguments, called when the SUBACKs of this commit would be sent
    cdef readonly int link                 # channel to link-0; -1: no SUBACK waits for other nodes
    cdef dict held                         # ticket -> (SUBACKs, functions, position, Unix ms at which they are answered in any case), in order
    cdef uint64_t last_ticket
    cdef uint64_t reached                  # position of the route log up to which no SUBACK has to wait any more

    # Answers those that wait for the commit, or holds them for other nodes. `full`: the route table had no room for the routes of this pass.
    cdef int committed(self, bint full) except -1
    # Answers those that link-0 has released; called when the channel is readable.
    cdef int take_answers(self) except -1
    # Answers those that link-0 did not release in time; called once a pass.
    cdef int give_up(self) except -1
    # Unix ms of the next call of give_up() with an effect. Only called while SUBACKs are held.
    cdef uint64_t due_ms(self) except? 0
    cdef bint hold(self, list subacks, list routed) except -1
    cdef int call_routed(self, list routed) except -1
    cdef int release(self, object ticket) except -1
    cdef int answer_all(self, list subacks, bint full) except -1
    cdef int answer(self, tuple suback, bint full) except -1
