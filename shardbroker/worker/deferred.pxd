"""A message that its publisher would not send again and that found no room in a ring: it waits in the worker, and in its journal.

    Retries.defer()       -> HELD in the block of the pass in which the ring had no room
    Router.run_retries()  -> tried once a pass; LET_GO in the block of the pass that succeeds
"""
from libc.stdint cimport uint8_t, uint64_t

from shardbroker.pubsub.message cimport Message


cdef enum Purpose:                         # schema.DeferredFor
    DEFERRED_FOR_ALL = 1                       # a will: to all subscribers
    DEFERRED_FOR_GROUP = 2                     # to some member of a shared group
    DEFERRED_FOR_RING = 3                      # into one ring, as the record that found no room
    DEFERRED_FOR_TIME = 4                      # to all subscribers at its due time, see delayed.pxd
    DEFERRED_FOR_LOCAL = 5                     # to subscribers of this worker, once its topic is looked up


cdef class Deferred:
    cdef uint64_t number                   # in the journal; 0: not recorded
    cdef readonly int purpose
    cdef Message message
    cdef bytes group, filter               # of the shared group; empty without
    cdef uint64_t member                   # DEFERRED_FOR_GROUP: session that did not take it, or 0; DEFERRED_FOR_RING: session that gets it
    cdef int attempts                      # members that were tried
    cdef list lookups                      # of its topic, under way; None before the first try
    cdef uint8_t answered                  # as of a Publication; FLAG_ANSWERED where it is not known, as after a restart
    cdef long destination                  # DEFERRED_FOR_RING: destination of the ring
    cdef int record                        # DEFERRED_FOR_RING: RECORD_PUBLISH, RECORD_SHARED
    cdef readonly uint64_t at_ms           # DEFERRED_FOR_TIME: Unix ms
    cdef readonly uint64_t order           # DEFERRED_FOR_TIME: of arrival in this worker, from 1 on


cdef Deferred defer_for_all(Message message, uint8_t answered)
cdef Deferred defer_for_group(Message message, bytes group, bytes filter, uint64_t failed, int attempts)
cdef Deferred defer_for_ring(Message message, long destination, int record, uint64_t member, int attempts, bytes group, bytes filter)
cdef Deferred defer_for_time(Message message, uint64_t at_ms)
cdef Deferred defer_for_local(Message message, uint8_t answered)
