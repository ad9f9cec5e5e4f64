"""Somebody who looks at single messages and packets: traces, slow subscriptions, metrics of topics, the loudest clients.

`WorkerContext.watch` says what is looked for; while it is 0 nobody is called, and each place below costs one test. No method raises, waits, or
changes anything of what it is told. worker/observers.pyx is the one that looks; this is its shape, for the layers below it.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from shardbroker.mqtt.codec cimport PublishView
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.delivery cimport Delivery

cdef extern from *:
    bint unlikely(bint condition) noexcept # for the compiler: what is behind this test stays out of the way

cdef enum Watch:                           # bits of WorkerContext.watch
    WATCH_TRACES = 1
    WATCH_SLOW = 2                         # subscriptions
    WATCH_TOPICS = 4
    WATCH_LOUD = 8                         # clients


cdef class Watcher:
    # Packets. A PUBLISH comes by `published` if nothing follows from it, else by `publishes`, which is `routed` as well; it goes by
    # `sent`. `channel` and `link` are one connection.
    cdef void received(self, object channel, uint8_t first, const uint8_t* body, uint32_t size) noexcept
    cdef void published(self, object channel, const PublishView* view) noexcept
    cdef void publishes(self, object channel, const PublishView* view, Publication publication, bint wanted) noexcept
    cdef void sent(self, object link, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id) noexcept
    # `codes`: of a SUBACK or UNSUBACK; None for others.
    cdef void acked(self, object link, uint8_t first, uint16_t packet_id, uint8_t reason_code, bytes codes) noexcept
    cdef void replied(self, object channel, bytes packet) noexcept
    # A client that came, went or was sent away: a kind of shm/events.pxd.
    cdef void status_changed(self, int kind, object channel, bytes client_id, int reason_code, int side, str detail) noexcept
    cdef void denied(self, object channel, str action, bytes topic) noexcept
    # Messages. `whom`: a session, a link, or None for nobody in particular.
    cdef void routed(self, Publication publication, bint wanted) noexcept
    cdef void queued(self, object whom, Publication publication, uint8_t qos) noexcept
    cdef void dropped(self, object whom, const uint8_t* topic, uint32_t topic_size, str why) noexcept
    cdef void acknowledged(self, object session, const Delivery* delivery) noexcept
    cdef void forwarded(self, long worker, Publication publication) noexcept
    cdef void arrived(self, int worker, Publication publication) noexcept
    # Every few milliseconds while somebody looks.
    cdef void tick(self) noexcept
