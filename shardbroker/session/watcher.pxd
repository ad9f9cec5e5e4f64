"""The interface of observers of single messages and packets: traces, slow subscriptions, topic metrics, client rates, spans.

`WorkerContext.watch` has a bit for each; while it is 0 no method is called, and each call site costs one test. No method raises or
waits. None changes its arguments, but `begins` and `sent`, which put the context of a span into a message.
worker/observers/ implements it; the layers below use this class.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from shardbroker.mqtt.codec cimport PublishView
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.delivery cimport Delivery

cdef extern from *:
    bint unlikely(bint condition) noexcept  # for the compiler: the branch is placed out of line

cdef enum Watch:                           # bits of WorkerContext.watch
    WATCH_TRACES = 1
    WATCH_SLOW = 2                         # subscriptions
    WATCH_TOPICS = 4
    WATCH_RATES = 8                        # of clients
    WATCH_SPANS = 16                       # for OpenTelemetry


cdef class Watcher:
    # Packets. An incoming PUBLISH is passed to `published` if it has no effect, else to `publishes`, which includes `routed`; an outgoing
    # one to `sent`. `channel` and `link` are the same connection.
    cdef void received(self, object channel, uint8_t first, const uint8_t* body, uint32_t size) noexcept
    cdef void published(self, object channel, const PublishView* view) noexcept
    cdef void publishes(self, object channel, const PublishView* view, Publication publication, bint wanted) noexcept
    # `ids`: encoded subscription identifiers behind the properties of the publication, or None.
    cdef void sent(
        self, object link, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id, bytes ids) noexcept
    # A PUBLISH of a client is about to be routed; True: ended() has to be called when it was.
    cdef bint begins(self, object channel, Publication publication) noexcept
    cdef void ended(self) noexcept
    # `codes`: of a SUBACK or UNSUBACK; None for other packets.
    cdef void acked(self, object link, uint8_t first, uint16_t packet_id, uint8_t reason_code, bytes codes) noexcept
    cdef void replied(self, object channel, bytes packet) noexcept
    # A client that connected, disconnected or was refused: a kind of shm/events.pxd.
    cdef void status_changed(self, int kind, object channel, bytes client_id, int reason_code, int side, str detail) noexcept
    cdef void denied(self, object channel, str action, bytes topic) noexcept
    # Messages. `whom`: a session, a link, or None for no particular client.
    cdef void routed(self, Publication publication, bint wanted) noexcept
    cdef void queued(self, object whom, Publication publication, uint8_t qos) noexcept
    cdef void dropped(self, object whom, const uint8_t* topic, uint32_t topic_size, str why) noexcept
    cdef void acknowledged(self, object session, const Delivery* delivery) noexcept
    cdef void forwarded(self, long worker, Publication publication) noexcept
    cdef void arrived(self, int worker, Publication publication) noexcept
    # Every few milliseconds while `watch` is not 0.
    cdef void tick(self) noexcept
