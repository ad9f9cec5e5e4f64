"""Messages that leave a worker: from the destination of a route to the outlet that takes them.

    Router.forward()  -> Outlets.put(destination) -> Outlet.put()       a record in the ring of another worker; large ones in a file
    RetainedChanges.retain() -> Outlets.put_retained() -> Outlet.put()  level `machine`: its number in the journal
    end of a pass     -> Outlets.commit()         -> Outlet.commit()    the other worker sees all records of the pass at once
    after a sync      -> SyncGate                 -> Outlet.secured()   acknowledgements leave

    kind WORKER    RingOutlet     the lane of this worker in the inbox of another one
    kind NODE      RingOutlet     the lane of this worker in the inbox of the link process that sends its messages to that node
    kind STORE     StoreOutlet    the store of retained messages, at level `machine`
    other kinds    no outlet      has_all() is False before a message is delivered anywhere, so that its publisher is refused

A node's rings exist before the first route to it. While its link is down, QoS 0 that has no room in them is dropped.

A destination has a kind and a number (shm/destinations.pxd). The manager has an inbox and is no destination: of_process() alone
returns its lane.
"""
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.context cimport WorkerContext
from shardbroker.journal.recorder cimport JournalRecorder
from shardbroker.worker.deferred cimport Deferred
from shardbroker.worker.outlet cimport Outlet
from shardbroker.worker.sync_gate cimport SyncGate
from shm.destinations cimport WORKER, kind_of, number_of
from shm.records cimport RecordHeader
from shm.ring cimport Inbox, Ring
from shm.view cimport ViewSegment


cdef class Outlets:
    """The base has no outlet: all messages stay in this worker."""
    cdef uint64_t forwarded_to             # destinations with messages since the last acknowledgement: lane_bit() of each

    # Whether each destination of the entry has an outlet. One without is logged once.
    cdef bint has_all(self, TopicEntry entry) except -1
    # Whether all destinations of the entry have room for a message of `size` bytes; one without rings once it has.
    cdef bint room_for(self, TopicEntry entry, uint64_t size) except -1
    # The same for a message with QoS 0, which is dropped where it has no room in the rings to a node that cannot be reached.
    cdef bint room_for_qos0(self, TopicEntry entry, uint64_t size) except -1
    # False: no room.
    cdef bint put(self, long destination, RecordHeader* header, Publication publication, bytes group, bytes filter) except -1
    # The journal records that the message is to be retained. The caller has checked `publication.unrepeatable`.
    cdef int put_retained(self, Publication publication) except -1

    cdef bint forward(self, long destination, Publication publication) except -1
    cdef bint forward_shared(self, long destination, uint64_t member, tuple group, Publication publication, uint8_t attempts) except -1
    cdef bint put_deferred(self, Deferred deferred) except -1


@final
cdef class RingOutlets(Outlets):
    """The outlets of a worker process: rings to other processes of this broker, and the store of retained messages."""
    cdef WorkerContext context
    cdef readonly object topology          # shm.topology.Topology, a plain Python class
    cdef int number                        # of this worker
    cdef int workers
    cdef list by_process                   # process number -> RingOutlet, attached at first use; those of workers come first
    cdef StoreOutlet store                 # level `machine`, else None
    cdef tuple doorbells
    cdef SyncGate gate                     # level `machine`, else None
    cdef uint64_t pass_us                  # CLOCK_MONOTONIC at the start of this pass
    cdef uint64_t spill_number
    cdef set unknown                       # destinations without an outlet that were logged
    cdef dict nodes                        # node id -> RingOutlet, attached at first use
    cdef ViewSegment view                  # the members of the cluster; None: this broker is alone
    cdef uint64_t view_version             # of the view as of the last look
    cdef list touched                      # outlets with something to commit
    cdef RingOutlet last_touched           # the one of them that was written to last

    cdef int note_unknown(self, long destination) except -1
    # None: there is no outlet for this destination.
    cdef inline RingOutlet outlet_of(self, long destination):
        cdef RingOutlet outlet
        if kind_of(destination) != WORKER or number_of(destination) >= self.workers:
            return self.of_node(destination)
        outlet = <RingOutlet>self.by_process[number_of(destination)]
        return outlet if outlet is not None else self.of_process(<int>number_of(destination))
    # Of another process of this broker with an inbox, by its number.
    cdef RingOutlet of_process(self, int process)
    # None: it is no node, or one that this broker has no rings to.
    cdef RingOutlet of_node(self, long destination)
    # Gives up the rings to nodes that have left.
    cdef int look_at_view(self) except -1
    cdef bint is_reachable(self, RingOutlet outlet) noexcept
    cdef bint has_room(self, TopicEntry entry, uint64_t size, bint droppable) except -1
    cdef int note_forward(
        self, Outlet outlet, uint64_t position, RecordHeader* header, Publication publication, bytes group, bytes filter) except -1
    cdef int touch(self, RingOutlet outlet) except -1
    cdef int commit(self) except -1
    # A record without a publication; dropped if there is no room: its producer repeats it in time.
    cdef int put_plain(self, int process, RecordHeader* header, bytes text) except -1
    cdef int ring(self, int process) except -1


@final
cdef class RingOutlet(Outlet):
    """A lane in the inbox of another process, or of a node."""
    cdef RingOutlets outlets
    cdef int process                       # whose doorbell is rung
    cdef int node                          # node id; 0: it is another process of this broker
    cdef uint64_t is_new, gone             # of the node's row in the view when the ring was attached
    cdef Ring lane
    cdef Inbox inbox
    cdef bint touched

    cdef int64_t spill(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2
    # Rings the doorbell if the process sleeps.
    cdef int wake(self) except -1


@final
cdef class StoreOutlet(Outlet):
    """The store of retained messages. Its changes are committed by RetainedChanges.commit(), in a batch a pass.

    Positions number the changes that are in the journal too; end() counts the batches.
    """
    cdef JournalRecorder recorder
    cdef object retained                   # worker.retaining.SyncedRetained: a thread around an LMDB table, in Python
