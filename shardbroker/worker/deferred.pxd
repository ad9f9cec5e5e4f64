"""What found no room in a ring, and nobody would send again: it waits in the worker, and stands in its journal.

    Router.suspend_reading()         -> HELD in the block of the pass that could not get rid of it
    Router.run_retries()  -> tried once a pass; LET_GO in the block of the pass that could
"""
from libc.stdint cimport uint8_t, uint64_t

from shardbroker.pubsub.message cimport Message


cdef enum Purpose:                         # schema.HeldFor
    HELD_FOR_ALL = 1                       # a will: to everybody who subscribes
    HELD_FOR_GROUP = 2                     # to some member of a shared group
    HELD_FOR_RING = 3                      # the record that it would have been
    HELD_FOR_TIME = 4                      # to everybody who subscribes when its time has come, see delayed.pxd


cdef class Deferred:
    cdef uint64_t number                   # in the journal; 0: not there, it is worth no record
    cdef readonly int purpose
    cdef Message message
    cdef bytes group, filter               # of the shared group; empty without
    cdef uint64_t member                   # HELD_FOR_GROUP: who did not take it, 0: nobody; HELD_FOR_RING: who is to have it
    cdef int attempts                      # members that were tried
    cdef list lookups                      # of its topic, under way; None before the first try
    cdef long destination                  # HELD_FOR_RING: whose ring
    cdef int record                        # HELD_FOR_RING: RECORD_PUBLISH, RECORD_SHARED
    cdef readonly uint64_t at_ms           # HELD_FOR_TIME: Unix ms
    cdef readonly uint64_t order           # HELD_FOR_TIME: of arrival in this worker, from 1 on


cdef Deferred defer_for_all(Message message)
cdef Deferred defer_for_group(Message message, bytes group, bytes filter, uint64_t failed, int attempts)
cdef Deferred defer_for_ring(Message message, long destination, int record, uint64_t member, int attempts, bytes group, bytes filter)
cdef Deferred defer_for_time(Message message, uint64_t at_ms)
