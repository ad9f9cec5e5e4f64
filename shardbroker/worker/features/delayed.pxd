"""Delayed messages: `$delayed/<seconds>/<topic>` (docs/features.md).

    Retries.delay()        -> HELD with a time, in the block of the pass that acknowledges the message
    Delays.take_due()      -> at the due time: into Retries.waiting, a batch at a time
    Router.run_retries()   -> published; LET_GO in the block of the pass that succeeds

They wait in the worker that accepted them, which is that of the publisher's client id.
"""
from libc.stdint cimport uint64_t

from shardbroker.pubsub.message cimport Message
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.timers cimport Timed
from shardbroker.worker.deferred cimport Deferred


cdef class Delays(Timed):
    cdef WorkerContext context
    cdef public object settings            # section `delayed`
    cdef readonly dict waiting             # order of arrival -> Deferred
    cdef dict orders                       # message id -> order of arrival
    cdef list heap                         # (Unix ms, order of arrival), the earliest first
    cdef list arrivals                     # orders of arrival, ascending
    # Entries of deleted messages may remain in `heap` and `arrivals`, but never more than others, beyond SLACK.
    cdef uint64_t last

    cdef int add(self, Deferred deferred) except -1
    cdef bint has(self, Deferred deferred) except -1
    cdef int remove(self, Deferred deferred) except -1
    cdef int compact(self) except -1
    # Appends what is due to `retry`, as long as that is shorter than a batch.
    cdef int take_due(self, list retry) except -1


cdef bytes id_of(Message message)          # 16 bytes
