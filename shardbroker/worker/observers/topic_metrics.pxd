"""Topic metrics: messages counted by the topics and filters in `topic_metrics.topics`."""
from cython cimport final
from libc.stdint cimport uint8_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.worker.observers.observer cimport Observer


@final
cdef class TopicCount:
    """Counts of one topic or filter since it was registered in this worker."""
    cdef uint64_t received[3]              # by QoS
    cdef uint64_t sent[3]
    cdef uint64_t dropped


@final
cdef class TopicMetrics(Observer):
    cdef dict counted                      # topic or filter -> TopicCount
    cdef dict matching                     # topic -> tuple of TopicCount; a cache

    cdef void sent(self, bytes topic, uint8_t qos) noexcept
    cdef void routed(self, Publication publication, bint wanted) noexcept
    cdef void dropped(self, bytes topic) noexcept
    # The counts of a topic: its own, and those of the filters that match it.
    cdef tuple counts_of(self, bytes topic)
