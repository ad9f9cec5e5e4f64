"""Slow subscriptions: the slowest delivery per client and topic in `slow_subs.expire_interval`; `slow_subs.top_k_num` of them."""
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.session cimport Session
from shardbroker.worker.observers.observer cimport Observer

cdef enum Span:                            # slow_subs.stats_type
    SPAN_WHOLE = 0                         # from the publish to the acknowledgement
    SPAN_INTERNAL = 1                      # from the publish until it was sent
    SPAN_RESPONSE = 2                      # from then to the acknowledgement


@final
cdef class SlowSubscriptions(Observer):
    cdef object settings                   # section `slow_subs`, compared as a whole
    cdef uint8_t span                      # what is measured: Span
    cdef uint64_t least_ms, expiry_ms
    cdef uint32_t most
    cdef dict slowest                      # (client id, topic) -> (ms, Unix ms of the last slow delivery)
    cdef uint64_t floor_ms                 # least duration for a new entry while the table is full; 0: it has room

    # Whether a QoS 0 delivery is measured when it is sent; it has no acknowledgement.
    cdef inline bint measures_sending(self) noexcept:
        return self.span != SPAN_RESPONSE
    cdef void sent(self, Session session, Publication publication, bytes topic) noexcept
    cdef void acknowledged(self, Session session, const Delivery* delivery) noexcept
    cdef int note(self, bytes client_id, bytes topic, int64_t lasted_ms) except -1
    cdef int expire(self) except -1
    cdef int drop_fastest(self) except -1
