"""The watcher of a worker; see observers.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cython cimport final
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from shardbroker.mqtt.codec cimport PublishView
from shardbroker.pubsub.message cimport Publication
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.session cimport Session
from shardbroker.session.watcher cimport WATCH_RATES, WATCH_SLOW, WATCH_SPANS, WATCH_TOPICS, WATCH_TRACES
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.observers.traces cimport client_id_of
from shardbroker.worker.router cimport Router

__all__ = ["Observers"]


@final
cdef class Observers(Watcher):
    """number: of the worker. workers: how many this node has."""

    def __init__(self, Router router not None, int number, int workers) -> None:
        self.context = router
        self.traces = Traces(router, router.reporter, number)
        self.slow_subscriptions = SlowSubscriptions(router)
        self.topic_metrics = TopicMetrics(router)
        self.client_rates = ClientRates(router)
        self.spans = Spans(router, workers)
        router.watcher = self

    def configure(self, settings) -> None:
        """Applies the sections `slow_subs`, `topic_metrics` and `opentelemetry.traces`."""
        self.slow_subscriptions.configure(settings.slow_subs)
        self.topic_metrics.configure(settings.topic_metrics.topics)
        self.spans.configure(settings.opentelemetry.traces)

    # --- packets ----------------------------------------------------------------------------------------------------------------

    cdef void received(self, object channel, uint8_t first, const uint8_t* body, uint32_t size) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.received(<Channel>channel, first, body, size)

    cdef void published(self, object channel, const PublishView* view) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.published(<Channel>channel, view)

    cdef void publishes(self, object channel, const PublishView* view, Publication publication, bint wanted) noexcept:
        self.published(channel, view)
        self.routed(publication, wanted)

    cdef void sent(
        self, object link, Publication publication, uint8_t qos, bint retain, bint dup, uint16_t packet_id, bytes ids,
    ) noexcept:
        cdef Channel channel = <Channel>link
        cdef uint32_t watch = self.context.watch
        cdef bint measured = watch & WATCH_SLOW and qos == 0 and not retain and self.slow_subscriptions.measures_sending()
        cdef bytes topic, client_id = client_id_of(channel)
        if watch & WATCH_SPANS:
            self.spans.delivered(channel, publication, qos, retain, dup, ids)
        if watch & WATCH_RATES:
            self.client_rates.sent(client_id, publication)
        if not watch & (WATCH_TRACES | WATCH_TOPICS) and not measured:
            return
        topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
        if channel.mounted:
            topic = channel.below(topic)
        if watch & WATCH_TOPICS:
            self.topic_metrics.sent(topic, qos)
        if measured and channel.session is not None:
            self.slow_subscriptions.sent(channel.session, publication, topic)
        if watch & WATCH_TRACES:
            self.traces.sent(channel, publication, topic, qos, retain, dup, packet_id)

    cdef bint begins(self, object channel, Publication publication) noexcept:
        return self.context.watch & WATCH_SPANS and self.spans.begin(<Channel>channel, publication)

    cdef void ended(self) noexcept:
        self.spans.end()

    cdef void acked(self, object link, uint8_t first, uint16_t packet_id, uint8_t reason_code, bytes codes) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.acked(<Channel>link, first, packet_id, reason_code, codes)

    cdef void replied(self, object channel, bytes packet) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.replied(<Channel>channel, packet)

    cdef void status_changed(self, int kind, object channel, bytes client_id, int reason_code, int side, str detail) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.status_changed(kind, <Channel>channel, client_id, reason_code, side, detail)

    cdef void denied(self, object channel, str action, bytes topic) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.denied(<Channel>channel, action, topic)

    # --- messages ---------------------------------------------------------------------------------------------------------------

    cdef void routed(self, Publication publication, bint wanted) noexcept:
        cdef uint32_t watch = self.context.watch
        if watch & WATCH_RATES:
            self.client_rates.routed(publication)
        if watch & WATCH_TOPICS:
            self.topic_metrics.routed(publication, wanted)
        if watch & WATCH_TRACES and not wanted:
            self.traces.message("dropped", None, publication.topic[:publication.topic_size], publication.client_id, {
                "reason": "no_subscribers"})

    cdef void queued(self, object whom, Publication publication, uint8_t qos) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.queued(<Session>whom, publication, qos)

    cdef void dropped(self, object whom, const uint8_t* topic, uint32_t topic_size, str why) noexcept:
        cdef uint32_t watch = self.context.watch
        if watch & WATCH_TOPICS and whom is None:
            self.topic_metrics.dropped(topic[:topic_size])
        if watch & WATCH_TRACES:
            self.traces.message("dropped", whom, topic[:topic_size], None, {"reason": why})

    cdef void acknowledged(self, object session, const Delivery* delivery) noexcept:
        if self.context.watch & WATCH_SLOW:
            self.slow_subscriptions.acknowledged(<Session>session, delivery)

    cdef void forwarded(self, long worker, Publication publication) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.forwarded(worker, publication)

    cdef void arrived(self, int worker, Publication publication) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.arrived(worker, publication)

    # --- time -------------------------------------------------------------------------------------------------------------------

    cdef void tick(self) noexcept:
        if self.context.watch & WATCH_TRACES:
            self.traces.tick()
        if self.context.watch & WATCH_RATES:
            self.client_rates.tick()
        if self.context.watch & WATCH_SPANS:
            self.spans.tick()
