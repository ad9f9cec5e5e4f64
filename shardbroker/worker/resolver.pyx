"""From a topic to its cache entry; see resolver.pxd."""

from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from cython cimport final
from shardbroker.mqtt.spec cimport TOPIC_NAME_INVALID
from shardbroker.mqtt.topics cimport is_topic_name
from shardbroker.pubsub.topic_cache cimport CAPTURED, new_lookup
from shm.epochs cimport WILDCARD_BUCKET, bucket_of, buckets_of, sum_of

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import matches

__all__ = ["TopicResolver"]

CACHE_ENTRIES = 1 << 16
"""Entries per generation of the topic cache, of which two are kept: about 40 MB with short topics."""

CACHE_BYTES = 24 << 20
"""What they may take, each of the two: so many entries with topics of 60 bytes. Long topics, and those with very many subscribers, turn
the cache earlier."""

cdef enum:
    VISIT_COST = 8                         # of the budget, for a visit of the route table: some 2 µs
    VISITS_A_PASS = 1024                   # for all look-ups that one turn was too short for: 2 ms
    CACHED_TOPIC_BYTES = 4096              # longest topic in the cache: a client could fill CACHE_BYTES with 400 of 60,000 bytes

UNBOUNDED_VISITS = 1 << 40
"""First visits while there is no client that would have to wait."""


@final
cdef class TopicResolver:
    """context: budget and settings. table: subscriptions of this worker. routes, epochs: those of all workers."""

    def __init__(
        self, WorkerContext context not None, SubscriptionTable table not None, routes, Epochs epochs, Admission admission not None,
        long own_destination,
    ):
        self.context = context
        self.table = table
        self.routes = routes
        self.epochs = epochs
        self.admission = admission
        self.own_destination = own_destination
        self.cache = TopicCache(CACHE_ENTRIES, CACHE_BYTES)
        self.waiting = deque()
        self.channel_lookups = {}
        self.first_visits = UNBOUNDED_VISITS
        self.capture = []

    def capture_topics(self, list filters) -> None:
        """The journal captures messages to topics that match these filters."""
        capture = [filter.encode() for filter in filters]
        if capture != self.capture:
            self.capture = capture
            self.invalidate_all()          # the cache entry of a topic has the mark of a captured one

    # --- validity -----------------------------------------------------------------------------------------------------------

    cdef inline uint64_t stamp_of(self, const Buckets* buckets) noexcept:
        cdef uint64_t stamp = sum_of(self.local_epochs, buckets)
        if self.epochs is not None:
            stamp += self.epochs.current(buckets)
        return stamp

    cdef void invalidate(self, bytes filter) noexcept:
        self.local_epochs[bucket_of(<const uint8_t*>PyBytes_AS_STRING(filter), PyBytes_GET_SIZE(filter))] += 1

    cdef void invalidate_all(self) noexcept:
        self.local_epochs[<int>WILDCARD_BUCKET] += 1

    cdef int publish_change(self, bytes filter) except -1:
        if self.epochs is not None:
            self.epochs.bump(bucket_of(<const uint8_t*>PyBytes_AS_STRING(filter), PyBytes_GET_SIZE(filter)))
        else:
            self.invalidate(filter)
        return 0

    # --- topics -------------------------------------------------------------------------------------------------------------

    cdef TopicEntry cached(self, const uint8_t* topic, uint32_t size):
        cdef TopicEntry entry = self.cache.find(topic, size)
        if entry is not None and entry.stamp == self.stamp_of(&entry.buckets):
            return entry
        return None

    cdef int check_name(self, const uint8_t* topic, uint32_t size) except -1:
        if not is_topic_name(topic, size, self.context.max_topic_levels):
            raise MqttError(TOPIC_NAME_INVALID, "not a topic name", "MQTT-3.3.2-2")
        return 0

    cdef TopicEntry resolve(self, const uint8_t* topic, uint32_t size, list holder):
        cdef TopicEntry entry = self.cached(topic, size)
        if entry is not None:
            return entry
        self.check_name(topic, size)
        return self.look_up(PyBytes_FromStringAndSize(<const char*>topic, size), holder)

    # --- look-ups -----------------------------------------------------------------------------------------------------------

    cdef TopicEntry look_up(self, bytes topic, list holder):
        """Queues a look-up from its second turn on: one at a time continues, so that one grows, and one more for each ring that waits.

        What it finds holds for the message that it was begun for, even if the epochs have moved since: it would never end if it
        began again each time.
        """
        cdef WorkerContext context = self.context
        cdef Lookup lookup
        cdef Buckets buckets
        cdef int64_t left
        if holder is not None:
            for lookup in holder:
                if lookup.topic == topic:
                    if lookup.error is not None:
                        raise lookup.error
                    context.budget = min(context.budget, <int64_t>0) if lookup.entry is None else context.budget
                    return lookup.entry
        buckets_of(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), &buckets)
        lookup = new_lookup(topic, &buckets, self.stamp_of(&buckets), self.routes.search(topic))
        left = lookup.go_on(self.table, self.own_destination, self.first_visits)
        context.budget -= VISIT_COST * (self.first_visits - left)
        if lookup.entry is not None:
            return self.finish(lookup)
        context.budget = min(context.budget, <int64_t>0)
        if holder is not None:
            holder.append(lookup)
            self.waiting.append(lookup)
        return None

    cdef TopicEntry finish(self, Lookup lookup):
        cdef TopicEntry entry = lookup.entry
        cdef bytes topic = entry.topic
        entry.unroutable = not self.outlets.has_all(entry)
        if self.context.recorder is None:
            entry.captured = 0
        elif any([matches(filter, topic) for filter in self.capture]):
            entry.captured |= CAPTURED
        if self.admission.rewriting is not None:
            entry.rewrite = self.admission.rewriting.of_topic(topic)
        if PyBytes_GET_SIZE(topic) <= CACHED_TOPIC_BYTES:
            self.cache.store(entry)
        return entry

    cdef int go_on(self) except -1:
        cdef Lookup lookup
        cdef TopicEntry entry
        cdef int64_t left = VISITS_A_PASS
        while left > 0 and self.waiting:
            lookup = self.waiting[0]
            entry = self.cached(<const uint8_t*>PyBytes_AS_STRING(lookup.topic), <uint32_t>PyBytes_GET_SIZE(lookup.topic))
            if lookup.entry is not None or lookup.error is not None:
                pass                       # ended out of its turn, see look_further()
            elif entry is not None:
                lookup.entry = entry       # found by another look-up of this topic
            elif not lookup.abandoned:
                try:
                    left = lookup.go_on(self.table, self.own_destination, left)
                    if lookup.entry is None:
                        break
                    self.finish(lookup)
                except Exception as error:
                    lookup.error = error   # for its holder, which gives up the message
            self.waiting.popleft()
        return 0

    cdef int look_further(self, list holder, int64_t units) except -1:
        cdef Lookup lookup
        for lookup in holder:
            if lookup.entry is None and lookup.error is None:
                try:
                    lookup.go_on(self.table, self.own_destination, units // VISIT_COST)
                    if lookup.entry is not None:
                        self.finish(lookup)
                except Exception as error:
                    lookup.error = error
        return 0
