"""Connections that are not read for a while, and when they are read again.

    STOP_RING      a PUBLISH waits for room in a ring          tried again in each pass, in turn
    STOP_MEMORY    memory is short; it fills queues most       PAUSE_MS after the last report of any worker
    STOP_DISK      its session stays, the disk refuses         when the disk takes writes again
    STOP_RATE      it has sent more than its listener allows   when its bucket has leaked
    STOP_HELD      its acknowledgements wait for full queues          when these have room (PushBack), after mqtt.push_back_timeout
    STOP_OUTPUT    it does not read what it has asked for      when its output has gone (Connection.flush)
    STOP_ACCESS    authorization is pending                    with the answer (Channel.resume_reading)
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.worker.memory cimport MemoryWatch
from shardbroker.worker.outlets cimport RingOutlets
from shardbroker.worker.router cimport Router
from shardbroker.worker.turn cimport Turn


@final
cdef class Backpressure:
    cdef Router router
    cdef Turn turn
    cdef RingOutlets rings
    cdef MemoryWatch memory
    cdef uint64_t look_at_ms               # when memory is measured next

    cdef int resume_parked(self) except -1
    cdef int resume_busy(self) except -1
    cdef int resume_limited(self) except -1
    cdef int resume_unread(self) except -1
    cdef int look_at_memory(self) except -1
    # Stops reading this publisher for a while; another report in time prolongs that.
    cdef int pause_client(self, bytes client_id) except -1
    cdef int send_pause(self, int process, bytes client_id) except -1
