"""Output that must not leave a worker before it is on the disk: level `machine` (docs/design/0002-durability.md).

    pass: settle -> SyncGate.advance -> rings -> flush          a sync: position of the journal .......... durable

    groups      | all passes until one sync was requested | ... until the next one | ...
                    output of connections, up to an end
                    outlets, up to an end: with messages that others may see only once they are in this journal
                    records taken from rings: their producers may then treat them as safe

    output of a connection      sent ........ cleared ........ marked ........ end
                                   | may be sent  | waits         | not seen by the gate yet

An acknowledgement waits for its group, and then until the workers that its message was forwarded to have it on their disks too: it
is owed. The output of one connection stays in order; other connections do not wait for it.

Other durability levels have no gate.
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.journal.writer cimport Writer
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.worker.outlet cimport Outlet
from shm.ring cimport Ring


@final
cdef class OutputFence:
    """How far the output of one connection may be sent."""
    cdef ClientOutput link                 # None: it is closed
    cdef uint64_t sent                     # bytes that its socket has taken, ever
    cdef uint64_t cleared
    cdef uint64_t marked
    cdef uint64_t forwarded_to             # destinations of its acknowledged messages: lane_bit() of each
    cdef object owed                       # collections.deque of (end, needs), oldest first; None: nothing


@final
cdef class Group:
    """What waits for the same sync."""
    cdef uint64_t position                 # of the journal
    cdef uint64_t stored                   # end of the store of retained messages
    cdef dict marks                        # OutputFence -> (end, needs)
    cdef dict heads                        # Outlet -> end
    cdef dict taken                        # (producer, Ring) -> position
    cdef list deeds                        # callables that wait for all forwarded messages as well


@final
cdef class SyncGate:
    cdef Writer writer
    cdef Outlet store                      # of retained messages; None: they are not stored
    cdef list outlets                      # worker -> Outlet, or None before its first use; RingOutlets.by_process
    cdef dict nodes                        # node id -> Outlet; RingOutlets.nodes
    cdef tuple doorbells                   # eventfd of each process
    cdef int workers
    cdef object groups                     # collections.deque of Group
    cdef Group last                        # the newest of them
    cdef dict waiting                      # Outlet -> heap of (end, serial, OutputFence) owed something
    cdef uint64_t serial
    cdef dict held_heads                   # Outlet -> number of groups that hold it back
    cdef set noted                         # Outlets that a message in the journal was put into in this pass
    cdef list deeds                        # (needs, callable)

    # How many of `pending` bytes of output may be sent now. `waits`: what is new in it needs the journal.
    cdef size_t may_send(self, OutputFence guard, size_t pending, bint waits) except? 0
    # Whether what was put stays invisible until the journal is safe. Else the caller commits it.
    cdef bint holds(self, Outlet outlet) except -1
    # Records of a ring were processed up to here, and are in the journal as far as they must be.
    cdef int taken(self, int producer, Ring ring) except -1
    # Releases what has become safe. Called once a pass, after the seal.
    cdef int advance(self) except -1
    # Whether it holds nothing back: everything is on this disk, and what was forwarded on those of its destinations.
    cdef bint is_at_rest(self) except -1
    # The fence of a connection from which nothing waits.
    cdef OutputFence fence(self, ClientOutput link)
    # Whether retained messages are not in their store yet.
    cdef bint is_retaining(self) except -1

    cdef bint is_safe(self) except -1
    cdef Group open_group(self)
    cdef tuple needs_of(self, uint64_t destinations)
    cdef int complete(self, Group group) except -1
    cdef int owe(self, OutputFence guard, uint64_t end, tuple needs) except -1
    cdef int blocked(self, tuple needs) except? -2
    cdef int wait_for(self, OutputFence guard, tuple need) except -1
    cdef int release_waiting(self, Outlet outlet) except -1
    cdef int ring(self, int process) except -1
