r"""Exclusive subscriptions in a cluster: at most one holder of a filter on all nodes that reach each other.

    worker of the client                      worker of the filter's partition              registrar, holder
    SUBSCRIBE: WANT, reading suspended   ->   the node has it: the row in the table decides
                                              else CLAIM                                ->  GRANT, TAKE
                                         <-   row, not confirmed; ANSWER
    row confirmed, SUBACK
    UNSUBSCRIBE, end: row removed             RELEASE, once it finds no row             ->
                                         <-   LOST, until the row is gone               <-  TAKE of its client, REVOKE
    WANT once more, or row removed

The claim of a node is that of the worker of the filter's partition, like all claims (shardbroker/cluster/claims.py), and its row in the
table of the node (shardbroker/stores/exclusive.py) has the session. Rows outlive processes: a worker that starts finds its claims there.
A claim without a row has ended, so no message about an end can be missing. A claim has the client id of its session: the holder
gives it to the same client at another node, since a client has one session.

What a session has brought (a move, a start) is claimed behind it, and stays until the claim is refused because of another client.

Messages between workers pass link-0 and may be lost: WANT is repeated until it is answered, LOST until the row is gone, and a row that is
not confirmed in time is taken back.
"""
from libc.stdint cimport int64_t, uint64_t

from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.router cimport Router


cdef class Want:
    """A filter that a session of this worker wants, or has brought."""
    cdef uint64_t session                  # key
    cdef bytes filter
    cdef uint64_t ticket
    cdef Channel channel                   # suspended; None: nothing waits
    cdef int reason                        # of the answer; -1: it has not arrived
    cdef uint64_t due_ms                   # when WANT is sent again
    cdef uint64_t ends_ms                  # when SUBACK refuses; 0: the session has the subscription already


cdef class ClusterExclusive:
    cdef Router router
    cdef object core                       # shardbroker.cluster.sessions.NodeSessions
    cdef bytes cluster                     # uuid
    cdef object workers                    # worker of each partition; None: this one of all
    cdef object perform                    # carries out outputs of the core
    cdef object post                       # (worker, body): sends to another worker, behind the journal
    cdef object table                      # shardbroker.stores.exclusive.ExclusiveTable
    cdef int number                        # of this worker
    # Worker of the client
    cdef readonly dict wanted              # (session key, filter) -> Want
    cdef dict tickets                      # ticket -> Want
    cdef object brought                    # deque of (session key, filter) that are not claimed yet
    cdef uint64_t last_ticket, wanted_bytes
    # Worker of the filter
    cdef int64_t last_number               # ticket or uid of the cores, downwards from -1: those of sessions are positive
    cdef dict pending                      # key -> [worker, ticket, session key, filter, client id, ended session, reason]
    cdef dict claiming                     # ticket of the core -> key
    cdef readonly dict held                # key -> (filter, uid): claims of this node
    cdef dict uids                         # uid -> key
    cdef dict fresh                        # filter -> Unix ms: taken back then if it is not confirmed
    cdef dict lost                         # filter -> (worker, session key, Unix ms of the next LOST)
    cdef list to_sweep
    cdef uint64_t sweep_ms

    # Takes rows of the table, and subscriptions of the sessions that were recovered.
    cdef int restore(self) except -1
    # For the process that replaces the worker, in place of `restore`.
    cdef dict image(self)
    cdef int take_image(self, dict image) except -1
    # The session has its exclusive subscriptions from elsewhere: they are claimed, or end.
    cdef int bring(self, Session session) except -1
    # The session is stale: another one of its client is served.
    cdef int leave(self, Session session) except -1
    # Whether an output of the core was one of an exclusive subscription, and has been carried out.
    cdef bint performs(self, object output) except -1
    # A node wants the key: a claim without a row ends before.
    cdef int look(self, object key) except -1
    cdef int received(self, int worker, object message) except -1
    cdef int tick(self) except -1

    cdef bint owns(self, Session session) noexcept
    cdef bint has(self, Session session, bytes filter) except -1
    cdef Want new_want(self, Session session, bytes filter, uint64_t ends_ms)
    cdef int drop(self, Want want) except -1
    cdef int send_want(self, Want want) except -1
    cdef bint confirm(self, uint64_t session, bytes filter) except -1
    cdef int answered(self, uint64_t ticket, int reason) except -1
    cdef int brought_answered(self, Want want, int reason) except -1
    cdef int end(self, Session session, bytes filter) except -1
    cdef int on_lost(self, uint64_t session, bytes filter) except -1
    cdef int remove(self, list rows) except -1
    cdef int tick_wanted(self) except -1
    cdef int send(self, int worker, list message) except -1
    cdef int answer(self, int worker, uint64_t ticket, int reason) except -1
    cdef int on_want(self, int worker, uint64_t ticket, uint64_t session, bytes filter, bytes client_id, uint64_t ended) except -1
    cdef int grant_again(self, object key, object claim, uint64_t ended, uint64_t ticket) except -1
    cdef int create(self, object output) except -1
    cdef int decided(self, object ticket, int reason) except -1
    cdef int given(self, object uid) except -1
    cdef int forget(self, object key) except -1
    cdef int tick_held(self) except -1
