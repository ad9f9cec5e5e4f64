"""The topic cache of one worker; see topic_cache.pxd."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

import cython

from shardbroker.mqtt.codec cimport write_varint
from shardbroker.mqtt.spec cimport SUBSCRIPTION_IDENTIFIER
from shardbroker.pubsub.subscriptions cimport OPTION_NO_LOCAL, OPTION_RETAIN_AS_PUBLISHED, Subscription
from shm.destinations cimport FEED, KEPT
from shm.text_hash cimport sb_hash

__all__ = ["TopicCache", "TopicEntry"]

cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")

cdef uint64_t serials = 0                  # number of serials given to entries

cdef size_t ALL_SLOTS = <size_t>-1 >> 1

cdef enum:
    FIRST_SLOTS = 1024
    FADING_SLOTS = 4096                    # emptied at a time: less than 1 ms
    TURN_MS = 60000                        # with fewer messages a topic is looked up in the route table each time
    HEAVY_TURN_MS = 4000                   # the same while few topics take much memory: both of the following limits are exceeded
    HEAVY_BYTES = 1048576                  # all of them together
    HEAVY_ENTRY_BYTES = 4096               # each on average
    SHORT_TURN_MS = 1000                   # the same while memory is short
    ENTRY_BYTES = 300                      # bytes of an entry without its topic and targets, with its slot
    TARGET_BYTES = 64                      # bytes of a target, with its references
    MEMBER_BYTES = 128                     # bytes of a member of a shared group
    SUBSCRIPTIONS_A_VISIT = 8              # local subscriptions that take as long as one seek in the route table


@cython.final
cdef class TopicEntry:
    """The targets of one topic."""

    def __dealloc__(self):
        free(self.targets)

    cdef bint is_empty(self) noexcept:
        return self.target_count == 0 and not self.leaves


cdef inline CacheSlot* slot_of(CacheTable* table, uint64_t hash, const uint8_t* topic, size_t size) noexcept:
    """Returns the slot of a topic, or the free slot for it."""
    cdef size_t i = hash & table.mask
    cdef CacheSlot* slot
    cdef TopicEntry entry
    while True:
        slot = &table.slots[i]
        if slot.entry == NULL:
            return slot
        if slot.hash == hash:
            entry = <TopicEntry>slot.entry
            if <size_t>PyBytes_GET_SIZE(entry.topic) == size and memcmp(PyBytes_AS_STRING(entry.topic), topic, size) == 0:
                return slot
        i = (i + 1) & table.mask


cdef int make_slots(CacheTable* table, size_t capacity) except -1:
    cdef CacheSlot* slots = <CacheSlot*>calloc(capacity, sizeof(CacheSlot))
    if slots == NULL:
        raise MemoryError(f"no memory for {capacity} topics in the cache")
    table.slots = slots
    table.mask = capacity - 1
    table.count = 0
    table.weight = 0
    return 0


cdef size_t drop(CacheTable* table, size_t start, size_t most) noexcept:
    """Drops the entries of `most` slots from `start` on, and after the last slot the table.

    Returns the end of the dropped slots.
    """
    cdef size_t i, end
    if table.slots == NULL:
        return start
    end = min(start + most, table.mask + 1)
    for i in range(start, end):
        if table.slots[i].entry != NULL:
            Py_DECREF(<TopicEntry>table.slots[i].entry)
    if end == table.mask + 1:
        free(table.slots)
        table.slots = NULL
    return end


@cython.final
cdef class TopicCache:
    """A cache in two generations: a topic is looked up in `now`, and moves there from `before`.

    At each turn `now` becomes `before`, so that topics without messages are dropped, with the sessions that their entries refer to.
    A turn is due after TURN_MS, and when `now` has `limit` topics or `weight_limit` bytes.
    """

    def __cinit__(self, size_t limit, uint64_t weight_limit):
        self.limit = limit
        self.weight_limit = weight_limit
        make_slots(&self.now, FIRST_SLOTS)

    def __dealloc__(self):
        drop(&self.now, 0, ALL_SLOTS)
        drop(&self.before, 0, ALL_SLOTS)
        drop(&self.fading, self.faded, ALL_SLOTS)

    cdef TopicEntry find(self, const uint8_t* topic, uint32_t size):
        cdef uint64_t hash = sb_hash(topic, size, SEED)
        cdef CacheSlot* slot = slot_of(&self.now, hash, topic, size)
        if slot.entry != NULL:
            return <TopicEntry>slot.entry
        return self.find_before(hash, topic, size) if self.before.slots != NULL else None

    cdef TopicEntry find_before(self, uint64_t hash, const uint8_t* topic, uint32_t size):
        cdef CacheSlot* slot = slot_of(&self.before, hash, topic, size)
        cdef TopicEntry entry
        if slot.entry == NULL:
            return None
        entry = <TopicEntry>slot.entry     # `before` keeps the entry until the turn
        self.put(hash, entry)
        return entry

    cdef int store(self, TopicEntry entry) except -1:
        return self.put(sb_hash(<const uint8_t*>PyBytes_AS_STRING(entry.topic), PyBytes_GET_SIZE(entry.topic), SEED), entry)

    cdef int put(self, uint64_t hash, TopicEntry entry) except -1:
        cdef CacheSlot* slot
        if self.now.count >= self.limit:
            self.turn()
        elif self.now.weight + entry.weight > self.weight_limit and self.now.count:
            self.turn()
        elif 2 * self.now.count > self.now.mask:
            self.resize(2 * (self.now.mask + 1))
        slot = slot_of(&self.now, hash, <const uint8_t*>PyBytes_AS_STRING(entry.topic), PyBytes_GET_SIZE(entry.topic))
        Py_INCREF(entry)
        if slot.entry == NULL:
            self.now.count += 1
        else:
            self.now.weight -= (<TopicEntry>slot.entry).weight
            Py_DECREF(<TopicEntry>slot.entry)
        self.now.weight += entry.weight
        slot.hash = hash
        slot.entry = <void*>entry
        return 0

    cdef int resize(self, size_t capacity) except -1:
        cdef CacheTable old = self.now
        cdef size_t i, at
        make_slots(&self.now, capacity)
        for i in range(old.mask + 1):
            if old.slots[i].entry != NULL:
                at = old.slots[i].hash & self.now.mask
                while self.now.slots[at].entry != NULL:
                    at = (at + 1) & self.now.mask
                self.now.slots[at] = old.slots[i]
        self.now.count = old.count
        self.now.weight = old.weight
        free(old.slots)
        return 0

    cdef int grow_old(self, uint64_t now_ms, bint short_of_memory) except -1:
        cdef uint64_t interval_ms, weight = self.now.weight + self.before.weight
        self.heavy = weight > <uint64_t>HEAVY_BYTES and weight > <uint64_t>HEAVY_ENTRY_BYTES * (self.now.count + self.before.count)
        interval_ms = SHORT_TURN_MS if short_of_memory else HEAVY_TURN_MS if self.heavy else TURN_MS
        if now_ms >= self.turned_at_ms + interval_ms:
            self.turned_at_ms = now_ms
            if self.now.count or self.before.slots != NULL:
                self.turn()
        if self.fading.slots != NULL:
            self.faded = drop(&self.fading, self.faded, FADING_SLOTS)
        return 0

    cdef int turn(self) except -1:
        cdef CacheTable old = self.now
        make_slots(&self.now, FIRST_SLOTS)
        drop(&self.fading, self.faded, ALL_SLOTS)
        self.fading = self.before
        self.faded = 0
        self.before = old
        return 0


cdef bytes encode_identifier(uint32_t identifier):
    cdef uint8_t encoded[5]
    if identifier == 0:
        return b""
    encoded[0] = SUBSCRIPTION_IDENTIFIER
    return PyBytes_FromStringAndSize(<char*>encoded, write_varint(encoded + 1, identifier) - encoded)


cdef Lookup new_lookup(bytes topic, const Buckets* buckets, uint64_t stamp, object search):
    cdef Lookup lookup = Lookup.__new__(Lookup)
    lookup.topic = topic
    lookup.buckets = buckets[0]
    lookup.stamp = stamp
    lookup.search = search
    lookup.by_subscriber = {}
    return lookup


@cython.final
cdef class Lookup:
    cdef int64_t go_on(self, SubscriptionTable table, long own, int64_t visits) except? -1:
        cdef TopicEntry entry
        cdef list matching
        global serials
        if self.match is None:
            self.match = self.search.step(visits)
            visits -= self.search.visits
            if self.match is None:
                return 0
            self.search = None
        if self.matching is None:
            while self.at < len(self.match.filters):
                if visits <= 0:
                    return 0
                visits -= self.gather(self.match.filters[self.at], table)
                self.at += 1
            self.matching = list(self.by_subscriber.values())[::-1]
            self.growing = entry = TopicEntry.__new__(TopicEntry)
            serials += 1
            entry.serial = serials
            entry.topic = self.topic
            entry.stamp = self.stamp
            entry.buckets = self.buckets
            entry.captured = <uint8_t>((FED if <long>FEED in self.match.destinations else 0) | (
                CAPTURED if <long>KEPT in self.match.destinations else 0))
            entry.destinations = tuple([one for one in self.match.destinations if one != own and one != <long>FEED and one != <long>KEPT])
            entry.groups = tuple([(group.name, group.filter, group.members) for group in self.match.groups])
            entry.leaves = bool(entry.destinations or entry.groups)
            entry.weight = <uint64_t>ENTRY_BYTES + len(self.topic) + TARGET_BYTES * len(self.matching)
            for group in self.match.groups:
                entry.weight += <uint64_t>MEMBER_BYTES * len(group.members)
            entry.keep = []
            if self.matching:
                entry.targets = <Target*>calloc(len(self.matching), sizeof(Target))
                if entry.targets == NULL:
                    raise MemoryError(f"no memory for {len(self.matching)} subscribers of one topic")
        entry = self.growing
        while self.matching:
            if visits <= 0:
                return 0
            matching = self.matching.pop()
            visits -= 1 + len(matching) // SUBSCRIPTIONS_A_VISIT
            entry.weight += fill_target(&entry.targets[entry.target_count], entry.keep, matching)
            entry.target_count += 1
        self.entry = entry
        return max(visits, <int64_t>0)

    cdef int64_t gather(self, object filter, SubscriptionTable table) except? -1:
        """Collects the local subscriptions of a filter. Returns the visits that this is worth."""
        cdef Subscription subscription
        present = table.filters.get(filter)
        if present is None:
            return 0
        if isinstance(present, Subscription):
            present = {0: present}
        for subscription in (<dict>present).values():
            self.by_subscriber.setdefault(subscription.subscriber.key, []).append(subscription)
        return 1 + len(<dict>present) // SUBSCRIPTIONS_A_VISIT


cdef int64_t fill_target(Target* target, list keep, list matching) except -1:
    """Fills one target per subscriber whatever the number of its matching filters, with the highest QoS and all identifiers.

    See [MQTT-3.3.4-2], [MQTT-3.3.4-4] and [MQTT-3.3.5-1]. Returns the bytes of the identifiers.
    """
    cdef Subscription subscription
    cdef bytes ids, own_ids
    cdef list all_ids = [], all_own_ids = []
    cdef size_t own_count = 0
    for subscription in matching:
        target.qos = max(target.qos, subscription.qos)
        target.retain_as_published = target.retain_as_published or subscription.flags & OPTION_RETAIN_AS_PUBLISHED != 0
        if subscription.identifier:
            all_ids.append(encode_identifier(subscription.identifier))
        if not subscription.flags & OPTION_NO_LOCAL:
            own_count += 1
            target.own_qos = max(target.own_qos, subscription.qos)
            if subscription.identifier:
                all_own_ids.append(encode_identifier(subscription.identifier))
    ids, own_ids = b"".join(all_ids), b"".join(all_own_ids)
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
    return len(ids) + len(own_ids)
