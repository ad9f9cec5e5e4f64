"""The connection as a session sees it: its output buffer, and the limits that the client sent in CONNECT."""
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
    cdef uint32_t described_in             # segment of the journal that has a record of this connection, counted from 1
    cdef uint16_t receive_maximum          # client's, 65535 if CONNECT has none
    cdef uint16_t alias_maximum            # client's Topic Alias Maximum, 0: none to be sent
    cdef dict aliases_out                  # topic -> alias sent to the client

    # Fields of a connection in the registry of clients, named as in shardbroker/stores/registry.py.
    cdef dict registry_fields(self)
    # Work for this connection failed outside of a packet of its own: the failure ends the connection, not the worker.
    cdef int failed(self, object error) except -1
    cdef void touch(self) noexcept         # something was written to `out`
    cdef bint relieve(self) noexcept       # congested within a pass: sends what the socket takes; True: room again
    cdef inline bint congested(self) noexcept:
        return self.out.end - self.out.start > self.context.max_output_bytes

    # Writes a PUBLISH; 0 if it is larger than the client's Maximum Packet Size [MQTT-3.1.2-24], else 1.
    cdef int write_publish(self, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id, bytes ids) except -1
    cdef uint32_t outgoing_alias(self, Publication publication, bint* known) except? 0
