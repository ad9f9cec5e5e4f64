"""What leaves a worker: from the destination of a route to the place that takes its messages.

    Router.forward()  -> Outlets.put(destination) -> Outlet.put()       a record in the ring of another worker; large ones by a file
    end of a pass    -> Outlets.commit()         -> Outlet.commit()    the other worker sees all records of the pass at once

A destination has a kind and a number (shm/destinations.pxd). A kind that has no outlet is unknown here: nothing is ever written
for it, and has_all() says so before a message is delivered anywhere.
"""
from cython cimport final
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.sync_gate cimport SyncGate
from shardbroker.worker.deferred cimport Deferred
from shm.destinations cimport WORKER, kind_of
from shm.records cimport RecordHeader
from shm.ring cimport Inbox, Ring

cdef enum:
    NO_ROOM = -1                           # in place of a position


cdef class Outlets:
    """The base has no outlet: all messages stay in this worker."""
    cdef uint64_t forwarded_to             # processes that messages went to since the last acknowledgement, a bit each: number % 64

    # Whether each destination of these has an outlet. One that has none is logged once.
    cdef bint has_all(self, TopicEntry entry) except -1
    # Whether all destinations of these have room for a message of `size` bytes; those that have not ring when they have.
    cdef bint room_for(self, TopicEntry entry, uint64_t size) except -1
    # False: no room.
    cdef bint put(self, long destination, RecordHeader* header, Publication publication, bytes group, bytes filter) except -1
    # The journal notes that it is to be retained. The caller has looked at `publication.unrepeatable`.
    cdef int note_retained(self, Publication publication) except -1

    cdef bint forward(self, long destination, Publication publication) except -1
    cdef bint forward_shared(self, long destination, uint64_t member, tuple group, Publication publication, uint8_t attempts) except -1
    cdef bint put_deferred(self, Deferred deferred) except -1


cdef class Outlet:
    """One destination."""
    cdef readonly long destination

    # Room for records of `size` bytes in all?
    cdef bint has_room(self, uint64_t size) except -1
    # Writes a record that is not visible yet. Returns its position, or NO_ROOM.
    cdef int64_t put(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2
    # Makes visible what was written.
    cdef int commit(self) except -1
    # Whether all up to this position is on the disk of the destination.
    cdef bint secured(self, uint64_t position) except -1
    # What a position means something together with.
    cdef uint64_t identity(self) noexcept


@final
cdef class RingOutlets(Outlets):
    """The outlets of a worker process: rings to other processes of this broker."""
    cdef WorkerContext context
    cdef readonly object topology
    cdef int number                        # of this worker
    cdef list by_process                   # process number -> RingOutlet, attached at first use
    cdef list lanes                        # process number -> our Ring in its inbox; likewise
    cdef list inboxes                      # process number -> Inbox; likewise
    cdef tuple doorbells
    cdef SyncGate gate                         # level `machine`, else None
    cdef uint64_t pass_us                  # CLOCK_MONOTONIC at the start of this pass
    cdef uint64_t spill_number
    cdef set unknown                       # destinations without an outlet, which the log has named
    cdef list touched                      # those with something to commit
    cdef RingOutlet last_touched           # the one of them that was written to last

    cdef int note_unknown(self, long destination) except -1
    # None: it has no outlet.
    cdef inline RingOutlet outlet_of(self, long destination):
        cdef RingOutlet outlet
        if kind_of(destination) != WORKER or destination >= PyList_GET_SIZE(self.by_process):
            return None
        outlet = <RingOutlet>self.by_process[destination]
        return outlet if outlet is not None else self.of_process(<int>destination)
    # Of another process of this broker, by its number.
    cdef RingOutlet of_process(self, int process)
    cdef int note_forward(
        self, Outlet outlet, uint64_t position, RecordHeader* header, Publication publication, bytes group, bytes filter) except -1
    cdef int touch(self, RingOutlet outlet) except -1
    cdef int commit(self) except -1
    # A record without a publication; dropped if there is no room: its producer says it again in time.
    cdef int put_plain(self, int process, RecordHeader* header, bytes text) except -1
    cdef int ring(self, int process) except -1


@final
cdef class RingOutlet(Outlet):
    """A lane in the inbox of another process."""
    cdef RingOutlets outlets
    cdef Ring lane
    cdef Inbox inbox
    cdef bint touched

    cdef int64_t spill(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2
    # The process wakes up if it sleeps.
    cdef int wake(self) except -1
