"""Sessions that another number of workers, or other weights, give to another worker: docs/design/0002-durability.md.

All workers take the same rings, each for the sessions that it has now. `take_part` and `take_all` enclose what was under way to one worker
of the broker that ended.
"""
from shardbroker.pubsub.message cimport Message
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.recovery.replay cimport Replay
from shardbroker.worker.router cimport Router


cdef class Repartition:
    cdef Worker worker
    cdef Router router                     # of the worker
    cdef Replay replay

    # What is delivered from here on was in this ring of this worker. Sessions that were not that worker's take nothing, nor do those to
    # which an earlier start had delivered it before it was killed. Returns these sessions, for take_all().
    cdef list take_part(self, rings, int worker)
    cdef int take_all(self, list others) except -1
    cdef bint is_heir_of(self, int process) except -1
    # Records that a ring has been taken up to `position`: this worker's own ring, or its part of one that all workers take.
    cdef int note_taken(self, rings, int producer, position) except -1
    cdef int take_one(self, list item) except -1
    cdef tuple mark(self)
    cdef int take_message(self, Message message) except -1
    cdef int retain_again(self, rings, list items) except -1
