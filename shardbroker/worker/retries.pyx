"""Messages that wait in a worker before they are published; see retries.pxd."""

from collections import deque

from cython cimport final
from shardbroker.pubsub.message cimport Message
from shardbroker.worker.deferred cimport DEFERRED_FOR_ALL, defer_for_time
from shardbroker.worker.memory cimport REFUSE
from shm.counters cimport DELAYED_COUNT, MESSAGES_DELAYED

__all__ = ["Retries"]

cdef enum:
    UNRESOLVED_MAX = 1024                  # messages set aside; the next one waits in its ring, with all behind it
    UNRESOLVED_BYTES = 4 << 20             # theirs: a packet of any size is set aside below it


@final
cdef class Retries:
    """context: clock, counters and recorder. settings: section `delayed`."""

    def __init__(self, WorkerContext context not None, settings):
        self.context = context
        self.delays = Delays(context, settings)
        self.waiting = []
        self.unresolved = {}

    cdef int defer(self, Deferred deferred) except -1:
        if deferred.message.qos or deferred.purpose == DEFERRED_FOR_ALL:
            self.number(deferred)
        self.waiting.append(deferred)
        return 0

    cdef bint can_set_aside(self) noexcept:
        return self.unresolved_count < UNRESOLVED_MAX and self.unresolved_bytes < <uint64_t>UNRESOLVED_BYTES

    cdef int set_aside(self, Deferred deferred) except -1:
        if deferred.message.qos and not deferred.number:
            self.number(deferred)
        self.unresolved.setdefault(deferred.message.client_id or b"", deque()).append(deferred)
        self.unresolved_count += 1
        self.unresolved_bytes += size_of(deferred.message)
        return 0

    cdef int resolved(self, bytes client_id) except -1:
        cdef object queue = self.unresolved[client_id]
        cdef Deferred deferred = queue.popleft()
        if not queue:
            del self.unresolved[client_id]
        self.unresolved_count -= 1
        self.unresolved_bytes -= size_of(deferred.message)
        if deferred.number:
            self.context.recorder.deferred_done(deferred.number)
        return 0

    cdef list all(self):
        return [*self.waiting, *(deferred for queue in self.unresolved.values() for deferred in queue)]

    cdef int number(self, Deferred deferred) except -1:
        if self.context.recorder is not None:
            self.last_number += 1
            deferred.number = self.last_number
            self.record(deferred)
        return 0

    cdef int record(self, Deferred deferred) except -1:
        if deferred.number == 0:
            return 0
        return self.context.recorder.deferred(
            deferred.number, deferred.purpose, deferred.message, deferred.destination, deferred.record, deferred.member,
            deferred.attempts, deferred.group, deferred.filter, deferred.at_ms)

    cdef int delay(self, Publication publication, uint64_t at_ms) except -1:
        cdef Deferred deferred = defer_for_time(publication.keep(), at_ms)
        self.number(deferred)
        self.delays.add(deferred)
        self.context.count(MESSAGES_DELAYED)
        if self.context.memory_level:
            self.context.queued_by(
                publication.client_id, <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size)
        return 0

    cdef str refusal(self):
        if self.context.memory_level >= REFUSE:
            return "memory limit (overload.memory_high_water) reached"
        limit = self.delays.settings.max_delayed_messages
        return f"delayed message limit ({limit}, delayed.max_delayed_messages) reached" if limit and self.delayed_count() >= limit else None

    cdef int64_t delayed_count(self) except? -1:
        if self.counters_segment is None:
            return <int64_t>self.context.counters[<int>DELAYED_COUNT]
        return self.counters_segment.total_of(DELAYED_COUNT)

    cdef int take_due(self) except -1:
        return self.delays.take_due(self.waiting)

    def forget(self, Deferred deferred not None) -> None:
        """Deletes a delayed message on request of an operator."""
        self.delays.remove(deferred)
        if deferred.number:
            self.context.recorder.deferred_done(deferred.number)
            deferred.number = 0


cdef inline uint64_t size_of(Message message) noexcept:
    return <uint64_t>message.topic_size + message.properties_size + message.payload_size
