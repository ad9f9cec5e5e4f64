"""The topic cache of one worker; see topic_cache.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free

import cython

from shardbroker.mqtt.codec cimport write_varint
from shardbroker.pubsub.subscriptions cimport Subscription

__all__ = ["TopicCache", "TopicEntry"]

cdef enum:
    SUBSCRIPTION_IDENTIFIER = 0x0B         # MQTT 5.0 §3.3.2.3.8


@cython.final
cdef class TopicEntry:
    """One topic's targets."""

    def __dealloc__(self):
        free(self.targets)

    cdef bint nobody(self) noexcept:
        return self.target_count == 0 and not self.destinations and not self.groups


@cython.final
cdef class TopicCache:
    """At most `limit` topics; when it is full it starts again, as publishers to ever new topics gain nothing from it."""

    def __init__(self, uint32_t limit):
        self.entries = {}
        self.limit = limit

    cdef TopicEntry find(self, const uint8_t* topic, uint32_t size):
        return self.entries.get(PyBytes_FromStringAndSize(<const char*>topic, size))

    cdef int store(self, TopicEntry entry) except -1:
        if len(self.entries) >= self.limit:
            self.entries.clear()
        self.entries[entry.topic] = entry
        return 0


cdef bytes encode_identifier(uint32_t identifier):
    cdef uint8_t encoded[5]
    if identifier == 0:
        return b""
    encoded[0] = SUBSCRIPTION_IDENTIFIER
    return PyBytes_FromStringAndSize(<char*>encoded, write_varint(encoded + 1, identifier) - encoded)


cdef TopicEntry build_entry(bytes topic, list filters, SubscriptionTable table, tuple destinations, tuple groups):
    cdef dict by_subscriber = {}
    cdef Subscription subscription
    for filter in filters:
        present = table.filters.get(filter)
        if present is None:
            continue
        if isinstance(present, Subscription):
            present = {0: present}
        for subscription in (<dict>present).values():
            by_subscriber.setdefault(subscription.subscriber.key, []).append(subscription)

    cdef TopicEntry entry = TopicEntry.__new__(TopicEntry)
    entry.topic = topic
    entry.destinations = destinations
    entry.groups = groups
    entry.keep = []
    if by_subscriber:
        entry.targets = <Target*>calloc(len(by_subscriber), sizeof(Target))
        if entry.targets == NULL:
            raise MemoryError(f"no memory for {len(by_subscriber)} subscribers of one topic")
    for matching in by_subscriber.values():
        fill_target(&entry.targets[entry.target_count], entry.keep, matching)
        entry.target_count += 1
    return entry


cdef int fill_target(Target* target, list keep, list matching) except -1:
    """One copy for a subscriber whatever the number of its matching filters, with the highest QoS and all identifiers
    [MQTT-3.3.4-2] [MQTT-3.3.4-4] [MQTT-3.3.5-1]."""
    cdef Subscription subscription
    cdef bytes ids = b"", own_ids = b""
    cdef size_t own_count = 0
    for subscription in matching:
        target.qos = max(target.qos, subscription.qos)
        target.retain_as_published = target.retain_as_published or subscription.retain_as_published
        ids += encode_identifier(subscription.identifier)
        if not subscription.no_local:
            own_count += 1
            target.own_qos = max(target.own_qos, subscription.qos)
            own_ids += encode_identifier(subscription.identifier)
    if own_count == 0:
        target.own = OWN_NONE              # [MQTT-3.8.3-3]
    elif own_count < <size_t>len(matching):
        target.own = OWN_OTHER
    keep.append(subscription.subscriber)
    target.subscriber = <void*>subscription.subscriber
    if ids:
        keep.append(ids)
        target.ids = <void*>ids
    if own_ids:
        keep.append(own_ids)
        target.own_ids = <void*>own_ids
    return 0
