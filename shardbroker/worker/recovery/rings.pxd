"""Messages that were under way between workers: in rings of this broker and of brokers that ended, or recorded and never sent."""
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.recovery.repartition cimport Repartition
from shardbroker.worker.recovery.replay cimport Replay
from shardbroker.worker.router cimport Router


cdef class RingRecovery:
    cdef Worker worker
    cdef Router router                     # of the worker
    cdef Replay replay
    cdef Repartition repartition
    cdef dict arrivals                     # (rings, destination) -> position up to which that worker's journal has what was sent

    cdef int forward_one(self, int source, list item, dict inboxes) except -1
    cdef str ring_name(self, long destination)
