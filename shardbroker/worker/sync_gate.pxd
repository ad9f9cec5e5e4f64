"""What must not leave a worker before it is on the disk: level `machine` (docs/design/0002-durability.md).

    pass: settle -> SyncGate.advance -> rings -> flush          a sync: position of the journal .......... durable

    groups      | all of the passes until one sync was asked for | ... until the next one | ...
                    output of connections, up to where
                    heads of rings, up to where: with messages that must come to others only when this journal knows them
                    records taken from rings: their producers may then say that these are safe

    output of a connection      sent ........ cleared ........ marked ........ end
                                   | may go      | waits          | not seen by the gate yet

An acknowledgement waits for its group, and then until the workers that its message was forwarded to have it on their disks too: it
is owed. What a connection is owed goes in order; others do not wait for it.

There is none of this at other levels.
"""
from libc.stdint cimport uint64_t

from shardbroker.journal.writer cimport Writer
from shardbroker.session.client_output cimport ClientOutput
from shm.ring cimport Ring


cdef class OutputFence:
    """Of one connection: how far its output may go."""
    cdef ClientOutput link                         # None: it is closed
    cdef uint64_t sent                     # bytes that its socket has taken, ever
    cdef uint64_t cleared
    cdef uint64_t marked
    cdef uint64_t lanes                    # workers that what it acknowledges was forwarded to, a bit each: number % 64
    cdef object owed                       # deque of (end, needs), oldest first; None: nothing


cdef class Group:
    """What waits for the same sync."""
    cdef uint64_t position                 # of the journal
    cdef uint64_t retained                 # batches of retained messages
    cdef dict marks                        # OutputFence -> (end, needs)
    cdef dict heads                        # process -> position
    cdef dict taken                        # (producer, Ring) -> position
    cdef list deeds                        # callables that wait for all that was forwarded as well


cdef class SyncGate:
    cdef Writer writer
    cdef readonly object retained          # worker.retaining.SyncedRetained
    cdef list lanes                        # process number -> our Ring in its inbox, or None; the loop's
    cdef list outboxes                     # process number -> Inbox; the loop's
    cdef tuple doorbells
    cdef int workers
    cdef object groups                     # deque of Group
    cdef Group last                        # the newest of them
    cdef dict waiting                      # process -> heap of (position, serial, OutputFence) owed something
    cdef uint64_t serial
    cdef dict held_heads                   # process -> number of groups that have a head of it
    cdef set noted                         # processes that a message in the journal was forwarded to in this pass
    cdef list deeds                        # (needs, callable)

    # How many of `pending` bytes of output may go now. `waits`: what is new in it promises something.
    cdef size_t may_send(self, OutputFence guard, size_t pending, bint waits) except? 0
    # Whether what was written for this process stays unseen until the journal is safe. Else the caller commits it.
    cdef bint holds_head(self, long process, Ring lane) except -1
    # Records of a ring were dealt with up to here, and stand in the journal as far as they must.
    cdef int taken(self, int producer, Ring ring) except -1
    # Something new may be safe: lets it go. Once a pass, behind the seal.
    cdef int advance(self) except -1
    # Retained messages that are not in their store yet.
    cdef bint is_retaining(self) except -1

    cdef bint is_safe(self) except -1
    cdef Group open_group(self)
    cdef tuple needs_of(self, uint64_t lanes)
    cdef int complete(self, Group group) except -1
    cdef int owe(self, OutputFence guard, uint64_t end, tuple needs) except -1
    cdef int blocked(self, tuple needs) except? -2
    cdef int wait_for(self, OutputFence guard, tuple need) except -1
    cdef int look_at_lane(self, int process) except -1
    cdef int ring(self, int process) except -1
