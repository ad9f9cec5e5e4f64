"""Traces: an event for each packet and message that matches a client id, user name, address or topic filter.

    event   CBOR: [numbers of the traces, Unix µs, what, client id, user name, peer, details]

The manager writes the events into files (management/tracing.py). A trace never delays its worker: events take at most half of the
manager's ring and EVENTS_A_SECOND. The others are counted, and the count is sent once the ring has room. Passwords and the data of
AUTH packets are never part of an event.
"""
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.mqtt.codec cimport PublishView
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.observers.observer cimport Observer
from shardbroker.worker.reporter cimport Reporter


@final
cdef class Traces(Observer):
    """Each trace has a bit here; `numbers` maps it to the number that the manager uses."""
    cdef Reporter reporter
    cdef int worker                        # number of this worker
    cdef dict clients, users, peers        # bytes -> bits
    cdef list filters                      # (filter, bits)
    cdef dict matching                     # topic -> bits; a cache
    cdef list numbers, payload_limits      # by bit
    cdef list lost                         # events without room, by bit
    cdef int64_t events_left               # that may be sent until the next refill
    cdef uint64_t refilled_ms

    cdef void received(self, Channel channel, uint8_t first, const uint8_t* body, uint32_t size) noexcept
    cdef void published(self, Channel channel, const PublishView* view) noexcept
    cdef void sent(
        self, Channel channel, Publication publication, bytes topic, uint8_t qos, bint retain, bint dup,
        uint16_t packet_id) noexcept
    cdef void acked(self, Channel channel, uint8_t first, uint16_t packet_id, uint8_t reason_code, bytes codes) noexcept
    cdef void replied(self, Channel channel, bytes packet) noexcept
    cdef void status_changed(self, int kind, Channel channel, bytes client_id, int reason_code, int side, str detail) noexcept
    cdef void denied(self, Channel channel, str action, bytes topic) noexcept
    cdef void queued(self, Session session, Publication publication, uint8_t qos) noexcept
    cdef void forwarded(self, long worker, Publication publication) noexcept
    cdef void arrived(self, int worker, Publication publication) noexcept
    # An event of a message on its way to `whom` (a Session or a Channel; None before a subscriber is known). It matches by the
    # topic and the subscriber, or the publisher where there is no subscriber yet.
    cdef void message(self, str event, object whom, bytes topic, bytes publisher, dict details) noexcept
    cdef void tick(self) noexcept

    # The traces that match this client.
    cdef uint32_t of_client(self, Channel channel, bytes client_id) except? 0xFFFFFFFF
    cdef uint32_t of_topic(self, bytes topic) except? 0xFFFFFFFF
    # Sends one event to each trace among `bits`.
    cdef int send_event(self, uint32_t bits, str event, bytes client_id, Channel channel, dict details) except -1
    # False: the manager's ring has no room for it.
    cdef bint put(self, object event) except -1
    # The payload as far as one of these traces shows it; None: they show none of it.
    cdef bytes cut_payload(self, uint32_t bits, const uint8_t* payload, uint32_t size)


# The client id of a connection; empty before CONNECT.
cdef bytes client_id_of(Channel channel)
