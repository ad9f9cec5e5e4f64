"""The client's end as a session sees it: where packets are written, and what the client said it can take."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.timers cimport Timed


cdef class ClientOutput(Timed):
    cdef WorkerContext context
    cdef Buffer out
    cdef readonly uint8_t version          # 3, 4, 5; 0 before CONNECT
    cdef uint8_t promised                  # `out` acknowledges something since it was last empty
    cdef uint32_t max_packet               # client's Maximum Packet Size, bytes; 0: none
    cdef uint16_t receive_maximum          # client's, 65535 when it said nothing
    cdef uint16_t alias_maximum            # client's Topic Alias Maximum, 0: none to be sent
    cdef dict aliases_out                  # topic -> alias sent to the client

    # What the registry of clients says of a connection, as shardbroker/stores/registry.py names it.
    cdef dict registry_fields(self)
    cdef void touch(self) noexcept         # something was written to `out`
    cdef bint relieve(self) noexcept       # congested in the middle of a pass: sends what goes; True if there is room again
    cdef inline bint congested(self) noexcept:
        return self.out.end - self.out.start > self.context.max_output_bytes

    # Writes a PUBLISH; 0 if it is larger than the client takes [MQTT-3.1.2-24], else 1.
    cdef int write_publish(self, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id, bytes ids) except -1
    cdef uint32_t outgoing_alias(self, Publication publication, bint* known) except? 0
