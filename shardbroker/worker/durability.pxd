"""The journal of a worker: when the effects of a pass are in it, and on the disk (docs/design/0002-durability.md).

    pass: ... -> settle(): one block of the journal -> rings -> acknowledgements
    from time to time a cycle writes every session again, some in each pass, so that old segments can be removed

`behind`: the journal does not contain everything yet. No acknowledgement leaves, and no record is taken from a ring.
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.journal.recorder cimport JournalRecorder
from shardbroker.journal.writer cimport Writer
from shardbroker.worker.arrivals cimport StreamPositions
from shardbroker.worker.disk cimport DiskWatch
from shardbroker.worker.sync_gate cimport SyncGate
from shardbroker.worker.outlets cimport RingOutlets
from shardbroker.worker.router cimport Router
from shm.ring cimport Inbox


@final
cdef class Durability:
    cdef Router router
    cdef RingOutlets rings
    cdef Inbox inbox
    cdef JournalRecorder recorder          # None: level `none`, or not recovered yet
    cdef DiskWatch disk
    cdef SyncGate gate                     # level `machine`: output that waits for the disk; else None
    cdef bint behind
    cdef uint64_t settled                  # position of the journal that the last settle() came to
    cdef Inbox reader                      # of the process flows that reads this journal; its bell rings for what rules need
    cdef int reader_process                # its number
    cdef list drained                      # lanes with records taken since the last release: (producer, Ring, Inbox)
    cdef bint note_consumed                # records were taken whose sender needs that in the journal
    cdef readonly StreamPositions streams  # from other nodes
    cdef dict arrivals                     # (rings, producer) -> (position, weights): records dealt with that came through older rings
    cdef uint64_t cycle_from               # position of the journal where the current cycle of snapshots began
    cdef list cycle_left                   # sessions still to be written in it; None between two
    cdef uint64_t cycle_bytes              # journal.cycle_bytes
    cdef uint64_t cycle_due_bytes          # of the journal, from which on the next one begins
    cdef object retention                  # settings section journal.retention: plain Python, read once per cycle
    cdef object hold_problems              # deque of (consumer, reason): holds that the last thread of retention could not read
    cdef object counted                    # CounterSlot of this worker, for that thread

    # Writes the effects of this pass as one block: all of it has happened, or nothing.
    cdef list leaving(self)
    cdef int settle(self) except -1
    cdef int ring_reader(self) except -1
    cdef int release_exclusive(self, Writer writer) except -1
    cdef int settle_synced(self, Writer writer) except -1
    cdef int write_consumed(self) except -1
    cdef int cycle_if_due(self) except -1
    cdef int begin_cycle(self) except -1
    # Writes some more sessions; once all are written, older segments can be removed.
    cdef int go_on_with_cycle(self) except -1
    cdef int take_snapshots(self) except -1
    cdef int write_arrivals(self) except -1
    cdef int save_again(self, object left) except -1
    cdef int watch_disk(self) except -1
    cdef bint is_settled(self) except -1
