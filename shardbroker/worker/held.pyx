"""What waits for room in a ring; see held.pxd."""

from libc.stdint cimport uint64_t

from shardbroker.pubsub.message cimport Message

__all__ = ["Held"]


cdef class Held:
    pass


cdef Held hold_for_all(Message message):
    return hold(HELD_FOR_ALL, message, b"", b"", 0, 0)


cdef Held hold_for_group(Message message, bytes group, bytes filter, uint64_t failed, int attempts):
    return hold(HELD_FOR_GROUP, message, group, filter, failed, attempts)


cdef Held hold_for_ring(Message message, long destination, int record, uint64_t member, int attempts, bytes group, bytes filter):
    cdef Held held = hold(HELD_FOR_RING, message, group, filter, member, attempts)
    held.destination = destination
    held.record = record
    return held


cdef Held hold_for_time(Message message, uint64_t at_ms):
    cdef Held held = hold(HELD_FOR_TIME, message, b"", b"", 0, 0)
    held.at_ms = at_ms
    return held


cdef Held hold(int purpose, Message message, bytes group, bytes filter, uint64_t member, int attempts):
    cdef Held held = Held.__new__(Held)
    held.purpose = purpose
    held.message = message
    held.group = group
    held.filter = filter
    held.member = member
    held.attempts = attempts
    return held
