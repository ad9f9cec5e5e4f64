"""Messages that wait for room in a ring or for their time; see deferred.pxd."""

from libc.stdint cimport uint8_t, uint64_t

from shardbroker.pubsub.message cimport Message
from shm.records cimport FLAG_ANSWERED

__all__ = ["Deferred"]


cdef class Deferred:
    pass


cdef Deferred defer_for_all(Message message, uint8_t answered):
    cdef Deferred deferred = defer(DEFERRED_FOR_ALL, message, b"", b"", 0, 0)
    deferred.answered = answered
    return deferred


cdef Deferred defer_for_group(Message message, bytes group, bytes filter, uint64_t failed, int attempts):
    return defer(DEFERRED_FOR_GROUP, message, group, filter, failed, attempts)


cdef Deferred defer_for_ring(Message message, long destination, int record, uint64_t member, int attempts, bytes group, bytes filter):
    cdef Deferred deferred = defer(DEFERRED_FOR_RING, message, group, filter, member, attempts)
    deferred.destination = destination
    deferred.record = record
    return deferred


cdef Deferred defer_for_time(Message message, uint64_t at_ms):
    cdef Deferred deferred = defer(DEFERRED_FOR_TIME, message, b"", b"", 0, 0)
    deferred.at_ms = at_ms
    return deferred


cdef Deferred defer_for_local(Message message, uint8_t answered):
    cdef Deferred deferred = defer(DEFERRED_FOR_LOCAL, message, b"", b"", 0, 0)
    deferred.answered = answered
    return deferred


cdef Deferred defer(int purpose, Message message, bytes group, bytes filter, uint64_t member, int attempts):
    cdef Deferred deferred = Deferred.__new__(Deferred)
    deferred.purpose = purpose
    deferred.message = message
    deferred.group = group
    deferred.filter = filter
    deferred.member = member
    deferred.attempts = attempts
    deferred.answered = FLAG_ANSWERED
    return deferred
