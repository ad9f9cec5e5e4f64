"""Topic metrics; see topic_metrics.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cython cimport final

from shardbroker.session.context cimport WorkerContext
from shardbroker.session.watcher cimport WATCH_TOPICS
from shardbroker.worker.observers.observer cimport TOPICS_KNOWN

from shardbroker.mqtt.topics import matches

__all__ = ["TopicCount", "TopicMetrics"]


@final
cdef class TopicCount:
    pass


@final
cdef class TopicMetrics(Observer):
    def __init__(self, WorkerContext context not None) -> None:
        self.context = context
        self.bit = WATCH_TOPICS
        self.counted, self.matching = {}, {}

    def configure(self, list topics) -> None:
        """Counts these topics and filters; those that were counted before keep their counts."""
        names = [topic.encode() for topic in topics]
        self.counted = {name: self.counted.get(name) or TopicCount.__new__(TopicCount) for name in names}
        self.matching = {}
        self.observe(bool(names))

    cdef void sent(self, bytes topic, uint8_t qos) noexcept:
        cdef TopicCount count
        for count in self.counts_of(topic):
            count.sent[qos] += 1

    cdef void routed(self, Publication publication, bint wanted) noexcept:
        cdef TopicCount count
        for count in self.counts_of(PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)):
            count.received[publication.qos] += 1
            count.dropped += not wanted

    cdef void dropped(self, bytes topic) noexcept:
        cdef TopicCount count
        for count in self.counts_of(topic):
            count.dropped += 1

    cdef tuple counts_of(self, bytes topic):
        known = self.matching.get(topic)
        if known is None:
            if len(self.matching) >= TOPICS_KNOWN:
                self.matching.clear()
            known = tuple([count for filter, count in self.counted.items() if matches(filter, topic)])
            self.matching[topic] = known
        return <tuple>known

    def rows(self) -> dict:
        """Returns per topic or filter the messages received by QoS, sent by QoS, and dropped."""
        cdef TopicCount count
        return {
            name: [*[count.received[qos] for qos in range(3)], *[count.sent[qos] for qos in range(3)], count.dropped]
            for name, count in self.counted.items()
        }
