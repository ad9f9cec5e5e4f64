"""Slow subscriptions; see slow_subscriptions.pxd."""

from cython cimport final

from shardbroker.pubsub.message cimport Message
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.watcher cimport WATCH_SLOW

__all__ = ["SlowSubscriptions"]

SPANS = {"whole": int(SPAN_WHOLE), "internal": int(SPAN_INTERNAL), "response": int(SPAN_RESPONSE)}


@final
cdef class SlowSubscriptions(Observer):
    def __init__(self, WorkerContext context not None) -> None:
        self.context = context
        self.bit = WATCH_SLOW
        self.slowest = {}

    def configure(self, settings) -> None:
        """Applies the section `slow_subs`; a change of it empties the table."""
        if settings != self.settings:
            self.settings = settings
            self.span = SPANS[settings.stats_type]
            self.least_ms = <uint64_t>(settings.threshold * 1000)
            self.expiry_ms = <uint64_t>(settings.expire_interval * 1000)
            self.most = settings.top_k_num
            self.clear()
        self.observe(settings.enable)

    cdef void sent(self, Session session, Publication publication, bytes topic) noexcept:
        cdef uint64_t published_ms = publication.id_high // 1000
        if published_ms >= session.created_ms:
            self.note(session.client_id, topic, <int64_t>(self.context.now_ms - published_ms))

    cdef void acknowledged(self, Session session, const Delivery* delivery) noexcept:
        cdef Message message
        cdef uint64_t published_ms, from_ms, to_ms
        if delivery.message == NULL or delivery.retain:
            return
        message = <Message>delivery.message
        published_ms = message.id_high // 1000
        if published_ms < session.created_ms:
            return                         # it did not wait for this subscriber
        from_ms = delivery.sent_ms if self.span == SPAN_RESPONSE else published_ms
        to_ms = delivery.sent_ms if self.span == SPAN_INTERNAL else self.context.now_ms
        if <int64_t>(to_ms - from_ms) >= <int64_t>max(self.least_ms, self.floor_ms):
            self.note(session.client_id, message.block[:message.topic_size], <int64_t>(to_ms - from_ms))

    cdef int note(self, bytes client_id, bytes topic, int64_t lasted_ms) except -1:
        """Adds a delivery if it is among the slowest."""
        cdef tuple key = (client_id, topic)
        cdef uint64_t now_ms = self.context.now_ms
        if lasted_ms < <int64_t>self.least_ms:
            return 0
        before = self.slowest.get(key)
        if before is not None:
            self.slowest[key] = (max(before[0], lasted_ms), now_ms)
            return 0
        if lasted_ms < <int64_t>self.floor_ms:
            return 0
        if <uint32_t>len(self.slowest) >= self.most:
            self.expire()
        if <uint32_t>len(self.slowest) >= self.most:
            self.drop_fastest()
        self.slowest[key] = (lasted_ms, now_ms)
        if <uint32_t>len(self.slowest) >= self.most:
            self.floor_ms = min([lasted for lasted, _ in self.slowest.values()])
        return 0

    cdef int drop_fastest(self) except -1:
        """Removes one entry."""
        fastest = None
        for key, (lasted, _) in self.slowest.items():
            if fastest is None or lasted < fastest[0]:
                fastest = (lasted, key)
        del self.slowest[fastest[1]]
        return 0

    cdef int expire(self) except -1:
        """Removes the entries without a slow delivery in the last `expire_interval`."""
        cdef uint64_t now_ms = self.context.now_ms
        self.slowest = {key: (lasted, at) for key, (lasted, at) in self.slowest.items() if at + self.expiry_ms > now_ms}
        self.floor_ms = 0
        return 0

    def rows(self) -> list:
        """Returns [client id, topic, ms, Unix ms] of each entry; an empty list while the feature is disabled."""
        if not self.context.watch & self.bit:
            return []
        self.expire()
        return [[client_id, topic, lasted, at] for (client_id, topic), (lasted, at) in self.slowest.items()]

    def clear(self) -> None:
        """Empties the table."""
        self.slowest, self.floor_ms = {}, 0
