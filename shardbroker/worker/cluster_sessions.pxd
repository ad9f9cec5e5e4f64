r"""The sessions of a worker in a cluster: drives the session cores (shardbroker/cluster/sessions.py) of the worker's partitions.

    CONNECT, end of a connection or session --\
    views and messages of link-0 --------------+-> NodeSessions -> outputs, carried out in order: sessions, journal, CONNACK
    every 50 ms, late messages ---------------/                \-> messages to nodes, held until the journal is written

A message to a node leaves once everything that was recorded before it is durable (level process: written, level machine: synced). So a
node has given up a session only after its new node has it on disk, and what a node has sent is never newer than its journal.

A session that is not owned has left `Router.sessions`, so its client id is free. It keeps its subscriptions without shared groups, and
its queue is what TAIL sends. Its id among the cores is its key.

Invariants: a session of `Router.sessions` has a Place in state OWNED, and the cores hold it; a session in `gone` is not in `Router.sessions`.
"""
from libc.stdint cimport uint64_t

from shardbroker.session.place cimport Place
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.cluster_exclusive cimport ClusterExclusive
from shardbroker.worker.router cimport Router
from shardbroker.worker.session_claims cimport SessionClaims


cdef class ClusterSessions(SessionClaims):
    cdef Router router
    cdef readonly object core              # shardbroker.cluster.sessions.NodeSessions
    cdef readonly object link              # shardbroker.link.session_channel.SessionChannel, or a stand-in
    cdef bytes cluster                     # uuid of the cluster, key of the hashes of client ids
    cdef readonly ClusterExclusive exclusive
    cdef bint started                      # `restore` was called
    cdef readonly bint listening           # messages of nodes are taken; not while another process replaces the worker
    cdef uint64_t paused_ms                # since when not
    cdef dict gone                         # session key -> Session: MOVING, STALE and GONE
    # CONNECTs that wait
    cdef readonly dict waiting             # ticket -> (channel, packet, client id, bytes)
    cdef dict tickets                      # channel -> ticket
    cdef uint64_t last_ticket, waiting_bytes
    # Work of a pass
    cdef object outgoing                   # deque of (journal position, node id, message); of (.., -1 - worker, body) to a worker
    cdef set changed                       # keys of sessions in `gone` with a new message
    cdef uint64_t tick_ms                  # when the cores are called next
    # Ids of messages that sessions have had: noted while another session of a client id may exist
    cdef readonly dict noting              # session key -> Session with Place.seen
    cdef dict doubted                      # session key -> Session: resumed while its client may have had another one
    cdef bint watching                     # sessions without `seen` may be watched
    cdef list to_sweep                     # of these, those that are looked at next
    cdef uint64_t sweep_ms                 # when the next round begins
    cdef uint64_t linked_ms                # since when all seeds are linked; 0: one is missing
    cdef bint merging                      # deliveries are those of TAIL, which are in `seen` already

    cdef int take_image(self, dict image) except -1
    cdef object key_of(self, bytes client_id)
    cdef int perform(self, object outputs) except -1
    cdef int carry_out(self, object output) except -1
    cdef int send(self, int node, object message) except -1
    cdef uint64_t recorded(self) noexcept
    cdef int record(self, Session session) except -1
    # CONNECTs
    cdef int accepted(self, uint64_t ticket, uint64_t uid, bint present) except -1
    cdef int rejected(self, uint64_t ticket, int reason) except -1
    cdef tuple take_waiting(self, uint64_t ticket)
    cdef object go_on(self, Channel channel)
    cdef int check_again(self, Channel channel, object packet) except -1
    cdef int take_view(self, object view) except -1
    cdef int note_ids(self, Session session, object seen) except -1
    cdef int doubt(self, Session session) except -1
    cdef int trust(self) except -1
    cdef int sweep(self) except -1
    cdef Session late_session(self, uint64_t uid)
    # Outputs
    cdef int create(self, object output) except -1
    cdef int import_session(self, object output) except -1
    cdef object enter_subscriptions(self, Session session)
    cdef object seen_before(self, Place place)
    cdef object outgoing_bytes(self)
    cdef int enter(self, Session session) except -1
    cdef int leave(self, Session session) except -1
    cdef int set_apart(self, Session session) except -1
    cdef int export(self, Session session, uint64_t generation) except -1
    cdef int moved_away(self, Session session) except -1
    cdef int restored(self, Session session) except -1
    cdef int kick(self, Session session) except -1
    cdef int bind(self, Session session, int node) except -1
    cdef int end(self, Session session) except -1
    cdef int absorb(self, Session session, Session later) except -1
    cdef int forget(self, Session session) except -1
    cdef int taken(self, Session session, set ids) except -1
    cdef int flow(self, Session session) except -1
    cdef int merge(self, Session session, int node, object tail) except -1
    cdef int take_from_behind(self, Session session, object tail) except -1
    cdef bint deliver_queued(self, Session session, object queued) except -1
