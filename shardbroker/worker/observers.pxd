"""Looks at single messages and packets for whoever asked for it; see observers.pyx."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.watcher cimport Watcher
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.one_pass cimport Worker


cdef class TopicCount:                     # of a topic or filter that somebody has registered
    cdef uint64_t arrived[3]               # by QoS
    cdef uint64_t left[3]
    cdef uint64_t dropped


cdef class ClientCount:                    # of a client, within a window
    cdef uint64_t messages_in, bytes_in, messages_out, bytes_out


cdef class Observers(Watcher):
    cdef Worker worker
    # Traces. A trace is a bit; `numbers` says which one.
    cdef dict clients, users, peers        # bytes -> bits
    cdef list filters                      # (filter, bits)
    cdef dict topics_seen                  # topic -> bits, as far as they were worked out
    cdef list numbers, payload_limits      # by bit
    cdef list lost                         # events that found no room, by bit
    cdef int64_t events_left               # that may be told until the next refill
    cdef uint64_t refilled_ms
    # Slow subscriptions.
    cdef object slow_settings              # settings section
    cdef uint8_t slow_kind                 # what is measured: Span
    cdef uint64_t slow_least_ms, slow_expiry_ms
    cdef uint32_t slow_most
    cdef dict slow                         # (client id, topic) -> (ms, at)
    cdef uint64_t slow_floor_ms            # what one must last to come in; 0: there is room
    # Metrics of topics.
    cdef dict counted                      # topic or filter -> TopicCount
    cdef dict counted_seen                 # topic -> tuple of TopicCount, as far as they were worked out
    # The loudest clients, by windows; of the last one is told.
    cdef dict loud, loud_before            # client id -> ClientCount
    cdef uint64_t loud_began_ms, loud_lasted_ms, loud_asked_ms
    cdef uint64_t loud_left_out

    cdef int look(self) except -1
    cdef uint32_t of_channel(self, Channel channel, bytes client_id) except? 0xFFFFFFFF
    cdef uint32_t of_topic(self, bytes topic) except? 0xFFFFFFFF
    cdef int tell(self, uint32_t bits, str event, bytes client_id, Channel channel, dict details) except -1
    cpdef int tell_lost(self) except -1
    cdef bint put(self, object event) except -1
    cdef bytes cut_payload(self, uint32_t bits, const uint8_t* payload, uint32_t size)
    cdef tuple counts_of(self, bytes topic)
    cdef ClientCount count_of(self, bytes client_id)
    cdef int note_slow(self, bytes client_id, bytes topic, int64_t lasted_ms) except -1
    cdef int rotate_loud(self) except -1
