"""Acknowledgements of one publisher that wait until queues of subscribers have room (session/overflow.pxd).

PUBACK and PUBREC stay in their order [MQTT-4.6.0-2] [MQTT-4.6.0-3]: while one waits, all later ones do. Nothing else of the
connection waits: deliveries, PUBCOMP, SUBACK and PINGRESP are sent as usual.
"""
from cython cimport final
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    HELD_MAX = 1024                        # acknowledgements of a connection from which it is not read


cdef struct HeldAck:
    uint64_t since_ms
    uint16_t packet_id
    uint8_t first                          # PUBACK_FIRST or PUBREC_FIRST
    uint8_t reason_code


@final
cdef class HeldAcks:
    cdef object connection                 # shardbroker.worker.connection.Connection
    cdef dict sources                      # (process, session key) of each full queue -> until when it counts, Unix ms
    cdef HeldAck* slots
    cdef uint32_t first, end, capacity     # slots in use

    cdef inline uint32_t count(self) noexcept:
        return self.end - self.first

    cdef int add(self, uint64_t now_ms, uint8_t first, uint16_t packet_id, uint8_t reason_code) except -1
    cdef HeldAck take(self) noexcept       # the oldest
