"""The protocol core of one worker; see router.pxd."""

import os
import random
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

from shardbroker.hooks.masks cimport (
    HOOK_MESSAGE_DROPPED, HOOK_MESSAGE_PUBLISH, HOOK_SESSION_CREATED, HOOK_SESSION_DISCARDED,
    HOOK_SESSION_RESUMED, HOOK_SESSION_TAKENOVER, HOOK_SESSION_TERMINATED, HOOK_SESSION_UNSUBSCRIBED,
)
from shardbroker.mqtt.topics cimport is_topic_name
from shardbroker.mqtt.spec cimport (
    FAILURE, NOT_AUTHORIZED, PAYLOAD_FORMAT_INVALID, QOS_NOT_SUPPORTED, QUOTA_EXCEEDED, RETAIN_NOT_SUPPORTED, TOPIC_NAME_INVALID,
)
from shardbroker.pubsub.message cimport make_message
from shardbroker.pubsub.subscriptions cimport OPTION_EXCLUSIVE, OPTION_RETAIN_AS_PUBLISHED, Subscriber
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.worker.features.delayed cimport Delays, id_of
from shardbroker.worker.deferred cimport DEFERRED_FOR_ALL, DEFERRED_FOR_GROUP, DEFERRED_FOR_TIME, Deferred, defer_for_all, defer_for_group, defer_for_ring, defer_for_time
from shardbroker.worker.disk cimport DISK_LIMIT
from shardbroker.worker.memory cimport REFUSE
from shardbroker.pubsub.topic_cache cimport OWN_NONE, OWN_SAME, Lookup, Target, encode_identifier, new_lookup
from shardbroker.session.context cimport NOTIFY_DROPPED, NOTIFY_SUBSCRIBED
from shardbroker.session.journaling cimport (
    ENDED_CLEAN_START, ENDED_DISCONNECTED, ENDED_EXPIRED, WILL_DISCARDED, WILL_PUBLISHED,
)
from shm.counters cimport (
    DELAYED_COUNT, DELIVERY_DROPPED, DELIVERY_DROPPED_EXPIRED, DELIVERY_DROPPED_NO_LOCAL, EVENTS_DROPPED, MESSAGES_DELAYED,
    MESSAGES_DROPPED, MESSAGES_DROPPED_NO_SUBSCRIBERS, MESSAGES_DROPPED_OUTDATED, RETAINED_DROPPED, RETAINED_ERRNO_COUNT,
    SESSION_CREATED, SESSION_DISCARDED, SESSION_RESUMED, SESSION_TAKENOVER, SESSION_TERMINATED, SESSIONS_COUNT,
    SUBSCRIPTIONS_COUNT, SUBSCRIPTIONS_SHARED_COUNT,
)
from shm.destinations cimport number_of
from shm.epochs cimport WILDCARD_BUCKET, Buckets, bucket_of, buckets_of, sum_of
from shm.records cimport RECORD_PUBLISH, RECORD_SHARED

from shardbroker.logs.phrases import log_line
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_name, matches
from shardbroker.worker.features import event_messages
from shardbroker.worker.features.delayed import DELAYED, parse_delayed
from shardbroker.worker.features.rewrite import AutoTopics, Rewriting
from shardbroker.stores.exclusive import Claim, ExclusiveTableFull
from shardbroker.stores.retained import RetainedMessage, RetainedStoreRefused
from shm.routes import RouteTableFull

__all__ = ["OWN_TOPICS", "Router"]

TOPIC_CACHE_ENTRIES = 1 << 16
"""Entries per generation of the topic cache, of which two are kept: about 40 MB with short topics."""

TOPIC_CACHE_BYTES = 24 << 20
"""What they may take, each of the two: so many entries with topics of 60 bytes. Long topics, and those with very many subscribers, turn
the cache earlier."""

cdef enum:
    VISIT_COST = 8                         # of the budget, for a visit of the route table: some 2 µs
    VISITS_A_PASS = 1024                   # for all look-ups that one turn was too short for: 2 ms

UNBOUNDED_VISITS = 1 << 40
"""First visits while there is no client that would have to wait."""

SHARED_ATTEMPTS = 8
"""Members of a shared group that are tried before a message for it is given up."""

REPLAY_BATCH = 64
"""Retained messages read from the store at a time, for one session."""

REPLAY_BATCH_BYTES = 1 << 18
"""Bytes of retained messages read at a time, for one session."""

cdef enum:
    GROUP_COST = 8                         # of the budget, for the choice of a shared group's member: some 2 µs
    REMOVAL_DELAY_MS = 20                  # see few_removals
    PROMPT_REMOVALS = 4
# Routes of sessions that end are removed at once if they are few. When many end, their routes stand for REMOVAL_DELAY_MS and go in
# one transaction, for a tenth of the price; until then other workers send messages here that find no subscriber.

RETAINED_RETRY_MS = 100
"""Between two tries to store retained messages while the disk refuses."""

RETAINED_BYTES = 200
"""What a retained message takes in memory beside its texts, while it waits for the disk."""

LEAVE_BATCH = 128
"""Subscriptions of an ended session that one pass takes out: about 1 ms, the commit included."""

RELEASES_A_PASS = 512
"""Exclusive subscriptions released in one transaction: about 2 ms, when many have waited for a disk that refuses."""

RELEASE_RETRY_MS = 100
"""Between two tries to release exclusive subscriptions while their table is full."""

REMOVALS_A_PASS = 512
"""Routes that one pass takes out of the table: about 2 ms, when thousands of clients go at once."""

NEVER = 0xFFFFFFFFFFFFFFFF

OWN_TOPICS = "topics below $SYS/ and $event/ are reserved"


cdef class Router(WorkerContext):
    """settings: the whole configuration. routes, retained, epochs, slot: the shared parts (shm), or stand-ins of the same shape."""

    def __init__(self, settings, uint64_t now_ms, slot, routes, retained, Epochs epochs, long own_destination, int node_id=0,
                 seed=None):
        WorkerContext.__init__(self, settings.mqtt, now_ms, slot)
        self.sessions = {}
        self.by_key = {}
        self.table = SubscriptionTable.__new__(SubscriptionTable)
        self.cache = TopicCache(TOPIC_CACHE_ENTRIES, TOPIC_CACHE_BYTES)
        self.outlets = Outlets.__new__(Outlets)
        self.reporter = Reporter.__new__(Reporter)
        self.lookups = deque()
        self.channel_lookups = {}
        self.first_visits = UNBOUNDED_VISITS
        self.epochs = epochs
        self.routes = routes
        self.retained = retained
        self.retainer = settings.retainer
        self.auth, self.acl = settings.auth, settings.acl
        self.own_destination = own_destination
        self.picker = GroupPicker(settings.mqtt.shared_subscription_strategy, self.turn, own_destination, seed)
        self.publication = Publication.__new__(Publication)
        self.route_changes = {}
        self.retained_changes = []
        self.subacks = []
        self.replaying = []
        self.leaving = []
        self.releasing = {}
        self.retry = []
        self.delays = Delays(self, settings.delayed)
        self.capture = []
        self.announce_events(settings)
        # Keys are unique on the node and differ from those of a worker that died: worker | start second | count.
        self.next_key = ((<uint64_t>number_of(own_destination) & 0xFFFF) << 52) | ((now_ms // 1000 & 0xFFFFFFFF) << 20)
        self.id_low_base = ((<uint64_t>node_id & 0xFFFF) << 48) | ((<uint64_t>os.getpid() & 0xFFFFFFFF) << 16)

    def turn(self, hash) -> int:
        """Next number of a node-wide round robin counter."""
        return self.epochs.next_turn(hash) if self.epochs is not None else random.getrandbits(32)

    def log(self, str level, str text) -> None:
        self.reporter.log(level, text)

    cdef int queued_by(self, bytes client_id, uint64_t size) except -1:
        return self.memory.note(client_id, size) if client_id and self.memory is not None else 0

    def apply_settings(self, settings) -> None:
        """Applies the settings that can change while the worker runs."""
        self.configure(settings.mqtt)
        self.retainer = settings.retainer
        self.retained.max_messages = settings.retainer.max_messages
        self.retained.max_bytes = settings.retainer.max_total_bytes
        self.capture_topics(settings.journal.capture)
        self.change_topics(settings)
        self.delays.settings = settings.delayed
        self.announce_events(settings)
        if self.watcher is not None:
            self.watcher.configure(settings)

    def capture_topics(self, list filters) -> None:
        """The journal captures messages to topics that match these filters."""
        capture = [filter.encode() for filter in filters]
        if capture != self.capture:
            self.capture = capture
            self.local_epochs[<int>WILDCARD_BUCKET] += 1   # the cache entry of a topic says whether it is captured

    def change_topics(self, settings) -> None:
        """Applies rewrite.rules and auto_subscribe.topics; existing subscriptions stay as they are."""
        rules, topics = settings.rewrite.rules, settings.auto_subscribe.topics
        if rules or self.rewriting is not None:
            self.rewriting = Rewriting(rules) if rules else None
            self.local_epochs[<int>WILDCARD_BUCKET] += 1   # the cache entry of a topic has its rule
        self.auto_topics = AutoTopics(topics) if topics else None

    def recover_routes(self) -> None:
        """Replaces the routes to this worker by those of its recovered sessions, without a moment in which one is missing."""
        wanted = [(True, filter, self.own_destination, group, member) for filter, group, member in self.route_changes]
        self.route_changes = {}
        self.routes_due_ms = 0
        self.routes.replace(self.own_destination, wanted)

    # --- publishing -----------------------------------------------------------------------------------------------------

    cdef int stamp(self, Publication publication) noexcept:
        """A new message id: µs since the epoch, node, process, sequence."""
        self.id_sequence += 1
        publication.id_high = self.now_ms * 1000
        publication.id_low = self.id_low_base | self.id_sequence
        return 0

    cdef inline uint64_t stamp_of(self, const Buckets* buckets) noexcept:
        cdef uint64_t stamp = sum_of(self.local_epochs, buckets)
        if self.epochs is not None:
            stamp += self.epochs.current(buckets)
        return stamp

    cdef TopicEntry cached(self, const uint8_t* topic, uint32_t size):
        cdef TopicEntry entry = self.cache.find(topic, size)
        if entry is not None and entry.stamp == self.stamp_of(&entry.buckets):
            return entry
        return None

    cdef int check_name(self, const uint8_t* topic, uint32_t size) except -1:
        if not is_topic_name(topic, size, self.max_topic_levels):
            raise MqttError(TOPIC_NAME_INVALID, "not a topic name", "MQTT-3.3.2-2")
        return 0

    cdef TopicEntry resolve(self, const uint8_t* topic, uint32_t size, list holder):
        cdef TopicEntry entry = self.cached(topic, size)
        if entry is not None:
            return entry
        self.check_name(topic, size)
        return self.look_up(PyBytes_FromStringAndSize(<const char*>topic, size), holder)

    cdef TopicEntry look_up(self, bytes topic, list holder):
        """Queues a look-up from its second turn on: one at a time continues, so that one grows, and one more for each ring that waits.

        What it finds holds for the message that it was begun for, even if the epochs have moved since: it would never end if it
        began again each time.
        """
        cdef Lookup lookup
        cdef Buckets buckets
        cdef int64_t left
        if holder is not None:
            for lookup in holder:
                if lookup.topic == topic:
                    if lookup.error is not None:
                        raise lookup.error
                    self.budget = min(self.budget, <int64_t>0) if lookup.entry is None else self.budget
                    return lookup.entry
        buckets_of(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), &buckets)
        lookup = new_lookup(topic, &buckets, self.stamp_of(&buckets), self.routes.search(topic))
        left = lookup.go_on(self.table, self.own_destination, self.first_visits)
        self.budget -= VISIT_COST * (self.first_visits - left)
        if lookup.entry is not None:
            return self.finish(lookup)
        self.budget = min(self.budget, <int64_t>0)
        if holder is not None:
            holder.append(lookup)
            self.lookups.append(lookup)
        return None

    cdef TopicEntry finish(self, Lookup lookup):
        cdef TopicEntry entry = lookup.entry
        cdef bytes topic = entry.topic
        entry.unroutable = not self.outlets.has_all(entry)
        entry.captured = self.recorder is not None and any([matches(filter, topic) for filter in self.capture])
        if self.rewriting is not None:
            entry.rewrite = self.rewriting.of_topic(topic)
        self.cache.store(entry)
        return entry

    cdef int look_up_some(self) except -1:
        cdef Lookup lookup
        cdef TopicEntry entry
        cdef int64_t left = VISITS_A_PASS
        while left > 0 and self.lookups:
            lookup = self.lookups[0]
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
            self.lookups.popleft()
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

    cdef bint publish(self, TopicEntry entry, Publication publication, Session publisher) except -1:
        if entry.captured:
            self.recorder.captured(publication)
        if publication.retain:
            self.retain(publication)
        if entry.is_empty():
            self.count(MESSAGES_DROPPED)
            self.count(MESSAGES_DROPPED_NO_SUBSCRIBERS)
            if self.notifications & NOTIFY_DROPPED:
                self.publish_event(NOTIFY_DROPPED, publisher, publication)
            if self.hooks & HOOK_MESSAGE_DROPPED:
                self.hooked.message_dropped(publication, "no_subscribers")
            return False
        self.deliver_locally(entry, publication, publisher)
        if entry.leaves:
            for destination in entry.destinations:
                self.forward(destination, publication)
            if entry.groups:
                self.budget -= GROUP_COST * <int64_t>len(entry.groups)
            for group in entry.groups:
                self.deliver_shared(<tuple>group, publication, publisher, 0, None)
        return True

    cdef int deliver_locally(self, TopicEntry entry, Publication publication, Session publisher) except -1:
        cdef Target* target
        cdef Subscriber subscriber
        cdef uint32_t i
        cdef uint8_t qos
        cdef void* ids
        self.budget -= entry.target_count >> 2     # an append costs a quarter of a packet; a session adds what it costs more
        for i in range(entry.target_count):
            target = &entry.targets[i]
            subscriber = <Subscriber>target.subscriber
            qos = target.qos
            ids = target.ids
            if publisher is not None and subscriber is publisher:
                if target.own == OWN_NONE or (self.ignore_loop_deliver and publisher.link is not None
                                              and publisher.link.version < 5):
                    self.delivery_dropped(publisher, publication, DELIVERY_DROPPED_NO_LOCAL, "no_local")
                    continue
                if target.own != OWN_SAME:
                    qos = target.own_qos
                    ids = target.own_ids
            subscriber.deliver(
                publication, qos, publication.retain and target.retain_as_published,
                <bytes>ids if ids != NULL else None, None,
            )
        return 0

    cdef int publish_message(self, Message message, Session publisher, uint64_t at_ms) except -1:
        """Publishes what the broker itself holds: a will. It is held while a ring is full."""
        cdef Publication publication
        if self.hooks & HOOK_MESSAGE_PUBLISH:
            message = self.hooked.publish_message(message, at_ms)
        if message is None:
            return 0
        if at_ms:
            publication = Publication.__new__(Publication)
            publication.borrow(message)
            return self.delay(publication, at_ms)
        if not self.try_publish(message, publisher, None):
            self.defer(defer_for_all(message))
        return 0

    # --- what may be published ----------------------------------------------------------------------------------------------

    cdef bytes take_delay(self, bytes topic, uint64_t* at_ms):
        at_ms[0] = 0
        if not topic.startswith(DELAYED):
            return topic
        if not self.delays.settings.enable:
            raise MqttError(TOPIC_NAME_INVALID, "delayed messages are disabled (delayed.enable)")
        at_ms[0], topic = parse_delayed(topic, self.now_ms)
        check_topic_name(topic, self.max_topic_levels)
        return topic

    cdef bytes rewritten(self, object rule, bytes topic, bytes client_id, bytes username):
        cdef bytes changed = rule.apply(topic, client_id, username)
        if changed is None or not is_topic_name(
                <const uint8_t*>PyBytes_AS_STRING(changed), <uint32_t>PyBytes_GET_SIZE(changed), self.max_topic_levels):
            return None
        return changed

    cdef uint64_t expires_ms(self, bint has_expiry, uint32_t expiry_s) noexcept:
        cdef uint64_t left_ms = <uint64_t>expiry_s * 1000
        if not has_expiry:
            left_ms = self.message_expiry_ms
            return self.now_ms + left_ms if left_ms else 0
        if self.message_expiry_ms and left_ms > self.message_expiry_ms:
            left_ms = self.message_expiry_ms
        return self.now_ms + left_ms

    cdef bytes admit(self, Message message, bytes username, uint64_t* at_ms):
        cdef bytes topic, changed
        if message.qos > self.max_qos:
            raise MqttError(QOS_NOT_SUPPORTED, f"QoS {message.qos} exceeds mqtt.max_qos_allowed ({self.max_qos})")
        if message.retain and not self.retain_available:
            raise MqttError(RETAIN_NOT_SUPPORTED, "RETAIN is not available (mqtt.retain_available)")
        topic = self.take_delay(message.topic, at_ms)
        check_topic_name(topic, self.max_topic_levels)
        rule = None if self.rewriting is None else self.rewriting.of_topic(topic)
        if rule is not None:
            changed = self.rewritten(rule, topic, message.client_id or b"", username)
            topic = topic if changed is None else changed
        if message.payload_format and not is_text(
                message.block + message.topic_size + message.properties_size, message.payload_size):
            raise MqttError(PAYLOAD_FORMAT_INVALID, "payload is not valid UTF-8 although Payload Format Indicator is 1")
        if is_own(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic)):
            raise MqttError(NOT_AUTHORIZED, OWN_TOPICS)
        return topic

    cdef bint publish_in_order(self, Message message, Session publisher) except -1:
        if not self.retry and self.try_publish(message, publisher, None):
            return True
        self.defer(defer_for_all(message))
        return False

    cdef bint try_publish(self, Message message, Session publisher, list holder) except -1:
        try:
            return self.publish_held(message, publisher, holder)
        except MqttError:
            self.count_outdated()          # fewer levels are allowed than when it came
        except Exception as error:
            self.drop_failed("publish", message.topic, error)
        return True

    cdef bint publish_held(self, Message message, Session publisher, list holder) except -1:
        cdef TopicEntry entry = self.resolve(message.block, message.topic_size, holder)
        cdef Publication publication
        if entry is not None and entry.unroutable:
            self.count_unroutable()
            return True
        if entry is None or not self.room_for(entry, <uint64_t>message.topic_size + message.properties_size + message.payload_size):
            return False
        publication = Publication.__new__(Publication)
        publication.borrow(message)
        if self.watch:
            self.watcher.routed(publication, not entry.is_empty())
        publication.unrepeatable = True
        self.publish(entry, publication, publisher)
        return True

    # --- what waits for room in a ring ---------------------------------------------------------------------------------------

    cdef int defer(self, Deferred deferred) except -1:
        if deferred.message.qos or deferred.purpose == DEFERRED_FOR_ALL:
            self.number_deferred(deferred)
        self.retry.append(deferred)
        return 0

    cdef int number_deferred(self, Deferred deferred) except -1:
        """Records a deferred message in the journal, if there is one."""
        if self.recorder is not None:
            self.last_deferred += 1
            deferred.number = self.last_deferred
            self.record_deferred(deferred)
        return 0

    cdef int record_deferred(self, Deferred deferred) except -1:
        if deferred.number == 0:
            return 0
        return self.recorder.deferred(
            deferred.number, deferred.purpose, deferred.message, deferred.destination, deferred.record, deferred.member, deferred.attempts, deferred.group, deferred.filter,
            deferred.at_ms)

    cdef int run_retries(self) except -1:
        """Each tries again, in order."""
        cdef list waiting = self.retry
        cdef Deferred deferred
        cdef bint done
        self.retry = []
        for deferred in waiting:
            try:
                done = self.try_again(deferred)
            except Exception as error:
                self.drop_failed("retry", deferred.message.topic, error)
                self.delays.remove(deferred)
                done = True
            if not done:
                self.retry.append(deferred)
            elif deferred.number:
                self.recorder.deferred_done(deferred.number)
        if not self.retry and self.hooked is not None:
            self.hooked.go_on()
        return self.delays.take_due(self.retry)

    cdef bint try_again(self, Deferred deferred) except -1:
        if deferred.lookups is None:
            deferred.lookups = []
        if deferred.purpose == DEFERRED_FOR_ALL:
            return self.try_publish(deferred.message, self.sessions.get(deferred.message.client_id), deferred.lookups)
        if deferred.purpose == DEFERRED_FOR_TIME:
            return self.publish_delayed(deferred)
        if deferred.purpose == DEFERRED_FOR_GROUP:
            return self.hand_on(deferred.group, deferred.filter, deferred.message, deferred.attempts, deferred.member, deferred.lookups)
        return self.outlets.put_deferred(deferred)

    # --- events as messages -------------------------------------------------------------------------------------------------

    def announce_events(self, settings) -> None:
        """The events of these settings are published from now on."""
        if self.announcer is not None:
            self.announcer.publish()
        self.announcer = event_messages.EventMessages(self, settings)
        self.notifications = self.announcer.mask

    def has_subscribers(self, bytes topic not None) -> bool:
        cdef TopicEntry entry = self.resolve(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic), None)
        return entry is None or not entry.is_empty()         # None: so many filters lead near it that one turn was too short

    def publish_own(self, bytes topic not None, bytes payload not None) -> None:
        """A message of the broker's own; dropped if a ring is full, or if its topic cannot be looked up at once."""
        cdef Publication stamped = Publication.__new__(Publication)
        self.stamp(stamped)
        id = stamped.id_high.to_bytes(8, "big") + stamped.id_low.to_bytes(8, "big")
        if not self.try_publish(make_message(topic, payload, b"", None, id, 0, 0, False, 0, 0), None, None):
            self.drop_event()

    def drop_event(self) -> None:
        self.count(EVENTS_DROPPED)

    cdef int publish_event(self, int event, object subscriber, Publication publication) except -1:
        cdef Message message
        cdef bytes client_id = b"" if subscriber is None else (<Session>subscriber).client_id
        if is_own(publication.topic, publication.topic_size):
            return 0
        topics = self.announcer.listeners(event, client_id)
        if topics:
            message = publication.keep()
            fields = event_messages.message(
                message.id_high, message.id_low, message.topic, message.payload, message.qos, message.retain, message.client_id or b"")
            if subscriber is not None and (<Session>subscriber).link is not None:
                holder = (<Session>subscriber).link
                fields |= holder.identity()
            if event == NOTIFY_DROPPED:
                fields["reason"] = "no_subscribers"
            self.announcer.note(topics, fields, self.now_ms)
        return 0

    # --- delayed messages -------------------------------------------------------------------------------------------------------

    cdef int delay(self, Publication publication, uint64_t at_ms) except -1:
        cdef Deferred deferred = defer_for_time(publication.keep(), at_ms)
        self.number_deferred(deferred)
        self.delays.add(deferred)
        self.count(MESSAGES_DELAYED)
        if self.memory_level:
            self.queued_by(
                publication.client_id, <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size)
        return 0

    cdef int count_outdated(self) except -1:
        self.count(MESSAGES_DROPPED)
        self.count(MESSAGES_DROPPED_OUTDATED)
        return 0

    cdef str no_delay(self):
        if self.memory_level >= REFUSE:
            return "memory limit (overload.memory_high_water) reached"
        limit = self.delays.settings.max_delayed_messages
        return f"delayed message limit ({limit}, delayed.max_delayed_messages) reached" if limit and self.delayed_count() >= limit else None

    cdef int64_t delayed_count(self) except? -1:
        if self.counters_segment is None:
            return <int64_t>self.counters[<int>DELAYED_COUNT]
        return self.counters_segment.total_of(DELAYED_COUNT)

    cdef int messages_due(self) except -1:
        return self.delays.take_due(self.retry)

    cdef bint publish_delayed(self, Deferred deferred) except -1:
        if not self.delays.has(deferred):
            return True                    # deleted since it was due
        if is_own(deferred.message.block, deferred.message.topic_size):
            self.count_outdated()          # a journal of an older version may hold a client's
        elif deferred.message.expires_ms and deferred.message.expires_ms <= self.now_ms:
            self.count(DELIVERY_DROPPED)
            self.count(DELIVERY_DROPPED_EXPIRED)
        elif not self.try_publish(deferred.message, self.sessions.get(deferred.message.client_id), deferred.lookups):
            return False
        self.delays.remove(deferred)
        return True

    def forget_delayed(self, Deferred deferred not None) -> None:
        """Deletes a delayed message on request of an operator."""
        self.delays.remove(deferred)
        if deferred.number:
            self.recorder.deferred_done(deferred.number)
            deferred.number = 0

    # --- shared subscriptions ------------------------------------------------------------------------------------------------

    cdef int deliver_shared(self, tuple group, Publication publication, Session publisher, uint8_t attempts, tuple failed) except -1:
        """To one member of (name, filter, members); to another if the member chosen is not there any more."""
        cdef dict memory
        cdef bytes publisher_id
        cdef tuple chosen
        if publisher is not None:
            if publisher.share_memory is None:
                publisher.share_memory = {}
            memory = publisher.share_memory
            publisher_id = publisher.client_id
        else:
            memory = {}
            publisher_id = publication.client_id or b""
        topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
        while attempts < SHARED_ATTEMPTS:
            if failed is not None:
                group = (group[0], group[1], tuple([member for member in group[2] if member != failed]))
            if not group[2]:
                break
            chosen = self.picker.pick(group, topic, publisher_id, memory)
            if chosen[0] != self.own_destination:
                self.forward_shared(chosen[0], chosen[1], group, publication, attempts)
                return 0
            if self.deliver_to_member(group[0], group[1], chosen[1], publication):
                return 0
            attempts += 1
            failed = chosen
        self.count(MESSAGES_DROPPED)
        self.count(MESSAGES_DROPPED_NO_SUBSCRIBERS)
        if self.watch:
            self.watcher.dropped(None, publication.topic, publication.topic_size, "no_member")
        if self.hooks & HOOK_MESSAGE_DROPPED:
            self.hooked.message_dropped(publication, "no_subscribers")
        return 0

    cdef bint deliver_to_member(self, bytes group, bytes filter, uint64_t member, Publication publication) except -1:
        cdef Subscription subscription = self.table.shared_member(group, filter, member)
        if subscription is None:
            return False
        # [MQTT-4.8.2-3]: the QoS granted to the client chosen.
        subscription.subscriber.deliver(
            publication, subscription.qos, publication.retain and subscription.flags & OPTION_RETAIN_AS_PUBLISHED != 0,
            encode_identifier(subscription.identifier) or None, (group, filter),
        )
        return True

    # --- what leaves this worker ----------------------------------------------------------------------------------------------------

    cdef bint room_for(self, TopicEntry entry, uint64_t size) except -1:
        if self.disk_full and self.would_record(entry):
            return False
        return not entry.leaves or self.outlets.room_for(entry, size)

    cdef bint would_record(self, TopicEntry entry) noexcept:
        """Whether a message for these would be written into the journal."""
        cdef uint32_t i
        if entry.captured or entry.groups:
            return True
        for i in range(entry.target_count):
            if (<Session>entry.targets[i].subscriber).logged:
                return True
        return False

    cdef int forward(self, long destination, Publication publication) except -1:
        """To another worker; deferred if its ring is full: room_for() was asked, but not by what the broker itself publishes."""
        if not self.outlets.forward(destination, publication):
            self.defer(defer_for_ring(publication.keep(), destination, RECORD_PUBLISH, 0, 0, b"", b""))
        return 0

    cdef int forward_shared(self, long destination, uint64_t member, tuple group, Publication publication, uint8_t attempts) except -1:
        """Likewise; room_for() cannot ask room for more shared groups than a ring has room for at all."""
        if not self.outlets.forward_shared(destination, member, group, publication, attempts):
            self.defer(defer_for_ring(publication.keep(), destination, RECORD_SHARED, member, attempts, <bytes>group[0], <bytes>group[1]))
        return 0

    # --- sessions -----------------------------------------------------------------------------------------------------------

    cdef Session open_session(self, object channel, bytes client_id, bint clean_start, uint64_t expiry_ms, bint* present):
        """Returns the session for an accepted CONNECT (MQTT 5.0 §3.1.2.4); an earlier connection has been closed."""
        cdef Session session = self.sessions.get(client_id)
        present[0] = False
        if session is not None:
            if session.link is not None:
                holder = session.link
                if self.hooks & HOOK_SESSION_TAKENOVER:
                    self.hooked.session("session.takenover", session, holder)
                holder.taken_over()
                self.count(SESSION_TAKENOVER)
                session = self.sessions.get(client_id)
        if session is not None and session.link is None:
            # Timers fire late, above all after a start: what was due before this CONNECT has happened.
            if session.will is not None and session.will_at_ms and self.now_ms >= session.will_at_ms:
                self.publish_will(session)
            if session.expires_at_ms and self.now_ms >= session.expires_at_ms:
                self.end_session(session, True)
                session = None
        if session is not None and clean_start:
            self.count(SESSION_DISCARDED)
            if self.hooks & HOOK_SESSION_DISCARDED:
                self.hooked.session("session.discarded", session, channel)
            (<ClientOutput>channel).promised = True                # its CONNACK says that the old one is gone
            self.end_session(session, False)               # [MQTT-3.1.2-4]
            session = None
        if session is None:
            self.next_key += 1
            session = Session(self, self.next_key, client_id)
            self.sessions[client_id] = session
            self.by_key[session.key] = session
            self.count(SESSION_CREATED)
            self.gauge(SESSIONS_COUNT, 1)
        else:
            present[0] = True
            self.count(SESSION_RESUMED)
        session.expiry_ms = expiry_ms
        if present[0]:
            if self.hooks & HOOK_SESSION_RESUMED:
                self.hooked.session("session.resumed", session, channel)
        elif self.hooks & HOOK_SESSION_CREATED:
            self.hooked.session("session.created", session, channel)
        if session.will is not None:
            session.will = None                            # its delay has not passed: it is not sent [MQTT-3.1.3-9]
            if session.known:
                self.recorder.will_cleared(session, WILL_DISCARDED)
        session.will_at_ms = 0
        return session

    cdef int client_gone(self, Session session, int reason_code, bint keep_will) except -1:
        """The connection is over. The will waits for its delay, the session for its expiry, whichever ends first."""
        cdef uint64_t delay_ms
        session.detach()
        if not keep_will and session.will is not None:
            session.will = None                            # [MQTT-3.1.2-10] [MQTT-3.14.4-3]
            if session.known:
                self.recorder.will_cleared(session, WILL_DISCARDED)
        if session.expiry_ms == 0:
            return self.end_session(session, True)
        session.expires_at_ms = 0 if session.expiry_ms == NEVER else self.now_ms + session.expiry_ms
        if session.known:
            self.recorder.away(session, reason_code, session.expires_at_ms)
        if session.will is not None:
            delay_ms = <uint64_t>session.will.delay_s * 1000
            if delay_ms == 0:
                self.publish_will(session)
            else:
                session.will_at_ms = self.now_ms + delay_ms
                if session.known:
                    self.recorder.will_delayed(session, session.will_at_ms)
        session.set_deadline()
        return 0

    cdef int will_due(self, object session) except -1:
        return self.publish_will(<Session>session)

    cdef int session_expired(self, object session) except -1:
        return self.end_session(<Session>session, True)

    cdef int publish_will(self, Session session) except -1:
        cdef Will will = session.will
        cdef Publication stamped = Publication.__new__(Publication)
        session.will = None
        if will is None:
            return 0
        if session.known:
            self.recorder.will_cleared(session, WILL_PUBLISHED)
        self.stamp(stamped)
        will.message.id_high = stamped.id_high
        will.message.id_low = stamped.id_low
        if self.access_gate is not None and will.origin is not None:
            self.access_type.of_will(self, session.client_id, will.origin).check_will(will)
            return 0
        return self.release_will(will, session, False)

    cdef int release_will(self, Will will, Session session, bint denied) except -1:
        cdef Message message = will.message
        cdef bytes topic
        cdef uint64_t at_ms
        cdef str reason = None
        username = None if will.origin is None else will.origin.get("username")
        try:
            topic = self.admit(message, None if username is None else username.encode(), &at_ms)
            reason = self.no_delay() if at_ms else None
        except MqttError as error:
            reason = str(error)
        if denied or reason is not None:
            # What was right at CONNECT is not any more: a rule, a setting, or as many delayed messages wait as may.
            self.count_outdated()
            if reason is not None:
                self.log("warning", log_line("will dropped", client_id=message.client_id or b"", reason=reason))
            return 0
        message.expires_ms = self.expires_ms(will.has_expiry, will.expiry_s)
        if topic != message.topic:
            message = make_message(
                topic, message.payload, message.properties, message.client_id, id_of(message), message.expires_ms, message.qos,
                message.retain, message.payload_format, 0)
        return self.publish_message(message, session, at_ms)

    cdef int end_session(self, Session session, bint redispatch) except -1:
        """Takes the session out of everything. `redispatch`: its part of shared groups goes to other members."""
        if self.hooks & HOOK_SESSION_TERMINATED:
            self.hooked.terminated(session, "discarded" if not redispatch else "expired" if session.expiry_ms else "disconnected")
        cdef list leftovers = session.shared_leftovers() if redispatch else []
        self.reporter.note_session(session)
        cdef Subscription subscription
        if session.subscription_count() > LEAVE_BATCH:
            # Too many for one pass. Until they are removed they lead to a session that accepts nothing more.
            later = []
            for subscription in session.all_subscriptions():
                if subscription.group is None:
                    later.append(subscription)
                else:
                    self.drop_subscription(session.pop_subscription(subscription.wire_filter), 0)   # or it would be chosen
            self.leaving.append((session, later))
        else:
            for subscription in session.all_subscriptions():
                self.drop_subscription(session.pop_subscription(subscription.wire_filter), REMOVAL_DELAY_MS)
        if session.will is not None:
            self.publish_will(session)                     # the session ends before the delay does [MQTT-3.1.2-8]
        if session.known:
            self.recorder.ended(
                session, ENDED_CLEAN_START if not redispatch else ENDED_EXPIRED if session.expiry_ms else ENDED_DISCONNECTED)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        self.by_key.pop(session.key, None)
        session.end()
        self.count(SESSION_TERMINATED)
        self.gauge(SESSIONS_COUNT, -1)
        for share, message, _ in leftovers:
            # What a member of a shared group did not finish goes to another one.
            if not self.hand_on(share[0], share[1], message, 0, 0, None):
                self.defer(defer_for_group(message, share[0], share[1], 0, 0))
        return 0

    cdef bint hand_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1:
        try:
            return self.pass_on(group_name, filter, message, attempts, failed, holder)
        except Exception as error:
            self.drop_failed("shared group", message.topic, error)
            return True

    cdef bint pass_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1:
        cdef TopicEntry entry = self.resolve(message.block, message.topic_size, holder)
        cdef Publication publication
        if entry is None or not self.room_for(entry, <uint64_t>message.topic_size + message.properties_size + message.payload_size):
            return False
        publication = Publication.__new__(Publication)
        publication.borrow(message)
        publication.unrepeatable = True    # the worker that had it has acknowledged it
        for group in entry.groups:
            if group[0] == group_name and group[1] == filter:
                self.deliver_shared(group, publication, None, attempts, (self.own_destination, failed) if failed else None)
        return True

    # --- subscriptions ------------------------------------------------------------------------------------------------------

    def keep_exclusive(self, owners) -> list[Claim]:
        """Claims exclusive subscriptions in `owners` from now on, first those of existing sessions. What another session has got
        meanwhile ends; returns it."""
        cdef Session session
        cdef Subscription subscription
        claims = []
        for session in self.sessions.values():
            for subscription in session.all_subscriptions():
                if subscription.flags & OPTION_EXCLUSIVE:
                    claims.append(Claim(subscription.filter, self.own_destination, session.key, session.client_id))
        lost = owners.replace(self.own_destination, claims)
        for claim in lost:
            session = self.sessions[claim.client_id]
            self.unsubscribe(session, claim.filter, 0)
            if session.logged:
                self.recorder.unsubscribed(session, claim.filter)
        self.owners = owners
        return lost

    cdef bint claim(self, Session session, bytes filter) except -1:
        cdef Session holder
        wanted = Claim(filter, self.own_destination, session.key, session.client_id)
        ended = 0
        found = self.owners.owner(filter)
        if found is not None and found.destination == self.own_destination:
            holder = self.by_key.get(found.session)
            if holder is None or holder.ended or filter in self.releasing:
                ended = found.session      # its many subscriptions are still being taken out, or the release waits for the journal
        try:
            if not self.owners.claim(wanted, ended):
                return False
        except ExclusiveTableFull:
            return False
        self.releasing.pop(filter, None)   # the same journal has both, in this order
        return True

    cdef int end_exclusive(self, uint64_t session, bytes filter) except -1:
        """The filter is released once the journal has the end of this subscription."""
        self.releasing.pop(filter, None)   # it has a place behind those that have ended before
        self.releasing[filter] = (session, None)
        return 0

    cdef int release_some(self, uint64_t next_sequence, uint64_t durable) except -1:
        """Releases exclusive subscriptions whose end is in the journal, up to the position `durable`: RELEASES_A_PASS at most.

        A worker that releases one earlier and is killed would hold it again, beside the client that was granted it meanwhile.
        `next_sequence`: position of the next record; what has ended since the last call is recorded before it.
        """
        cdef list due = []
        for filter in reversed(self.releasing):
            session, position = self.releasing[filter]
            if position is not None:
                break
            self.releasing[filter] = (session, next_sequence)
        if self.now_ms < self.releases_due_ms:
            return 0
        for filter, (session, position) in self.releasing.items():
            if position > durable or len(due) >= RELEASES_A_PASS:
                break
            due.append((filter, session))
        self.releases_due_ms = 0
        return self.release(due) if due else 0

    cdef int release(self, list due) except -1:
        """Releases these in one transaction; they are kept for another try while the table has no room for the change."""
        try:
            self.owners.release(due)
        except ExclusiveTableFull as error:
            if not self.releases_refused:
                self.log("error", log_line("exclusive subscription not released", filter=due[0][0], reason=error))
            self.releases_refused = True
            self.releases_due_ms = self.now_ms + RELEASE_RETRY_MS
            return 0
        self.releases_refused = False
        for filter, _ in due:
            del self.releasing[filter]
        if len(due) >= RELEASES_A_PASS:
            self.releases_due_ms = self.now_ms + 1
        return 0

    cdef int subscribe(self, Session session, Subscription subscription) except -1:
        cdef size_t before = self.table.count
        session.put_subscription(subscription)
        if session.logged:
            self.recorder.subscribed(session, subscription)
        if self.table.add(subscription):
            self.route_changed(subscription, True, 0)
        self.invalidate(subscription.filter)
        if self.table.count > before:
            self.gauge(SUBSCRIPTIONS_SHARED_COUNT if subscription.group is not None else SUBSCRIPTIONS_COUNT, 1)
        return 0

    cdef int leave_some(self) except -1:
        """A part of the subscriptions that sessions with very many have left behind; called once a pass."""
        cdef list subscriptions
        cdef int _
        if not self.leaving:
            return 0
        subscriptions = self.leaving[0][1]
        for _ in range(min(LEAVE_BATCH, len(subscriptions))):
            try:
                self.drop_subscription(<Subscription>subscriptions.pop(), 0)
            except Exception as error:
                self.log_failure(log_line("subscription not removed"), error)
        if not subscriptions:
            self.leaving.pop(0)
        return 0

    cdef bint unsubscribe(self, Session session, bytes wire_filter, uint64_t delay_ms) except -1:
        cdef Subscription subscription = session.pop_subscription(wire_filter)
        if subscription is None:
            return False
        if self.hooks & HOOK_SESSION_UNSUBSCRIBED:
            self.hooked.unsubscribed(session, wire_filter)
        return self.drop_subscription(subscription, delay_ms)

    cdef bint drop_subscription(self, Subscription subscription, uint64_t delay_ms) except -1:
        if subscription.flags & OPTION_EXCLUSIVE and self.owners is not None:
            self.end_exclusive(subscription.subscriber.key, subscription.filter)
        if self.table.remove(subscription):
            self.route_changed(subscription, False, delay_ms)
        self.invalidate(subscription.filter)
        self.gauge(SUBSCRIPTIONS_SHARED_COUNT if subscription.group is not None else SUBSCRIPTIONS_COUNT, -1)
        return True

    cdef int route_changed(self, Subscription subscription, bint add, uint64_t delay_ms) except -1:
        """Takes note; the change is committed at the end of the pass, or after `delay_ms` if nothing is more urgent."""
        cdef bint shared = subscription.group is not None
        cdef tuple route = (
            subscription.filter, subscription.group if shared else b"", subscription.subscriber.key if shared else 0)
        before = self.route_changes.get(route)
        if before is not None and before != add:
            del self.route_changes[route]              # the table is right as it is
            return 0
        self.route_changes[route] = add
        if shared:
            delay_ms = 0                               # a member that is gone would be chosen
        elif delay_ms and self.few_removals():
            delay_ms = 0
        if not self.routes_due_ms or self.routes_due_ms > self.now_ms + delay_ms:
            self.routes_due_ms = self.now_ms + delay_ms
        return 0

    cdef bint few_removals(self) noexcept:
        """Whether this one is among the first PROMPT_REMOVALS of its REMOVAL_DELAY_MS: only a crowd has to wait."""
        if self.now_ms >= self.removals_since_ms + <uint64_t>REMOVAL_DELAY_MS:
            self.removals_since_ms = self.now_ms
            self.removals = 0
        self.removals += 1
        return self.removals <= <uint32_t>PROMPT_REMOVALS

    cdef void invalidate(self, bytes filter) noexcept:
        self.local_epochs[bucket_of(<const uint8_t*>PyBytes_AS_STRING(filter), PyBytes_GET_SIZE(filter))] += 1

    # --- retained messages -----------------------------------------------------------------------------------------------------

    cdef int retain(self, Publication publication) except -1:
        """Takes note of a retained message or of its deletion; commit() stores it."""
        cdef bytes topic
        if self.retained is None:
            return 0
        if publication.unrepeatable and publication.qos and self.recorder is not None:
            self.outlets.put_retained(publication)
        topic = PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size)
        if self.retained_retry_ms:
            self.retained_waiting += RETAINED_BYTES + publication.topic_size + publication.properties_size + publication.payload_size
        if publication.payload_size == 0:
            self.retained_changes.append(topic)            # [MQTT-3.3.1-6] [MQTT-3.3.1-7]
            return 0
        if self.retainer.max_payload_size and publication.payload_size > self.retainer.max_payload_size:
            self.count(RETAINED_DROPPED)
            return 0
        self.retained_changes.append(RetainedMessage(
            topic=topic,
            payload=PyBytes_FromStringAndSize(<const char*>publication.payload, publication.payload_size),
            qos=publication.qos,
            properties=PyBytes_FromStringAndSize(<const char*>publication.properties, publication.properties_size),
            message_id=publication.id_high.to_bytes(8, "big") + publication.id_low.to_bytes(8, "big"),
            created_ms=self.now_ms,
            expires_ms=publication.expires_ms,
            client_id=publication.client_id or b"",
        ))
        return 0

    cdef int replay_some(self) except -1:
        """A batch of retained messages for each session that waits for some; called once a pass."""
        cdef list sessions = self.replaying
        cdef int _
        self.replays_moved = False
        for _ in range(len(sessions)):
            session = sessions.pop(0)
            try:
                more = self.replay_session(<Session>session)
            except Exception as error:     # the client subscribes again, or nothing would tell it what it has missed
                more = False
                (<Session>session).replays = None
                if (<Session>session).link is not None:
                    (<Session>session).link.failed(error)
            if more:
                sessions.append(session)
            if self.step_is_over():
                break                      # whose turn it would be is the first of the next pass
        return 0

    cdef bint replay_session(self, Session session) except -1:
        """False when nothing is left to replay for it."""
        cdef Message message
        cdef Publication publication
        cdef Subscription subscription
        if session.link is None or not session.replays:
            session.replays = None
            return False
        if not session.idle_for_replay():
            return True
        subscription, cursor = session.replays[0]
        room = session.window_size() - session.inflight if subscription.qos else REPLAY_BATCH
        # No more than its output has room for: QoS 0 would be dropped.
        bytes_left = min(REPLAY_BATCH_BYTES, self.max_output_bytes - session.link.out.pending() + 1)
        found, cursor = self.retained.scan(subscription.filter, cursor, min(REPLAY_BATCH, room), bytes_left, self.now_ms)
        self.replays_moved = True
        publication = Publication.__new__(Publication)
        for stored in found:
            message = make_message(
                stored.topic, stored.payload, stored.properties, stored.client_id, stored.message_id, stored.expires_ms, stored.qos,
                True, 0, 0)
            publication.borrow(message)
            try:
                # Kept RETAIN: it is sent because of a new subscription [MQTT-3.3.1-8].
                session.deliver(publication, subscription.qos, True, encode_identifier(subscription.identifier) or None, None)
            except Exception as error:
                self.drop_failed("retained", stored.topic, error)
        if cursor is None:
            session.replays.pop(0)
        else:
            session.replays[0] = (subscription, cursor)
        if not session.replays:
            session.replays = None
        return session.replays is not None

    # --- end of a pass -----------------------------------------------------------------------------------------------------------

    cdef int commit(self, bint now) except -1:
        """What is due becomes visible to every worker, then SUBACKs may go out. With `now` everything is due."""
        cdef bint full = False
        if self.route_changes and (now or self.now_ms >= self.routes_due_ms):
            full = self.commit_routes()
        if self.retained_changes and self.now_ms >= self.retained_retry_ms:
            self.commit_retained()
        if self.subacks:
            subacks = self.subacks
            self.subacks = []
            for suback in subacks:
                try:
                    self.answer_subscribe(<tuple>suback, full)
                except Exception as error:
                    (<ClientOutput>(<tuple>suback)[1]).failed(error)
        if self.notifications and self.announcer.any_noted:
            self.announcer.publish()
        return 0

    cdef int due_in_ms(self, int wait_ms) except -1:
        cdef uint64_t due_ms = self.now_ms + <uint64_t>wait_ms
        if self.route_changes:
            due_ms = min(due_ms, self.routes_due_ms)
        if self.releasing and self.releases_due_ms:
            due_ms = min(due_ms, self.releases_due_ms)
        return <int>(due_ms - self.now_ms) if due_ms > self.now_ms else 0

    cdef int answer_subscribe(self, tuple suback, bint full) except -1:
        answer, channel, packet_id, codes, subscribed, replays = suback
        if full:
            codes = self.undo_subscribe(channel, codes, subscribed)
            replays = []
        answer(channel, packet_id, codes, replays)
        if self.notifications & NOTIFY_SUBSCRIBED and not full:
            for _, subscription in subscribed:
                channel.publish_event(NOTIFY_SUBSCRIBED, event_messages.subscribed(subscription.filter, subscription.options()))
        return 0

    cdef int commit_retained(self) except -1:
        cdef list operations = self.retained_changes
        self.retained_changes = []
        try:
            self.gauge(RETAINED_DROPPED, self.retained.update(operations))
        except RetainedStoreRefused as error:
            self.retained_retry_ms = self.now_ms + RETAINED_RETRY_MS
            if self.keeps_refused(error.number):
                self.retained_changes = operations
            else:
                self.gauge(RETAINED_DROPPED, len(operations))
            return 0
        if self.retained_retry_ms:
            self.retained_retry_ms = self.retained_waiting = 0
            self.counters[<int>RETAINED_ERRNO_COUNT] = 0
            self.check_disk()
        return 0

    cdef bint keeps_refused(self, int error) except -1:
        self.counters[<int>RETAINED_ERRNO_COUNT] = <uint64_t>error
        if self.recorder is None or self.disk is None:
            return False
        self.check_disk()
        return not self.disk.goes_on

    cdef int check_disk(self) except -1:
        if self.disk is not None and self.recorder is not None:
            self.disk_full = self.disk.stage == DISK_LIMIT or self.retained_waiting > self.disk.limit
        return 0

    cdef bint commit_routes(self) except -1:
        """All changes in one transaction, then the epochs. True if the table has no room for them; removals are tried again."""
        cdef dict changes = self.route_changes
        cdef long own = self.own_destination
        cdef list adds = [], removals = []
        cdef bytes filter
        self.route_changes = {}
        self.routes_due_ms = 0
        for (filter, group, member), add in changes.items():
            if add:
                adds.append((add, filter, own, group, member))
            elif len(removals) < REMOVALS_A_PASS:
                removals.append((add, filter, own, group, member))
            else:
                self.route_changes[(filter, group, member)] = False
                self.routes_due_ms = self.now_ms
        try:
            self.routes.update(removals + adds)
        except RouteTableFull:
            self.full_tables += 1
            for _, filter, _, group, member in removals:
                self.route_changes[(filter, group, member)] = False
            self.routes_due_ms = self.now_ms + REMOVAL_DELAY_MS if self.route_changes else 0
            return True
        for change in changes:
            if change in self.route_changes:
                continue
            filter = change[0]
            if self.epochs is not None:
                self.epochs.bump(bucket_of(<const uint8_t*>PyBytes_AS_STRING(filter), PyBytes_GET_SIZE(filter)))
            else:
                self.invalidate(filter)
        return False

    def undo_subscribe(self, channel, bytes codes, list subscribed) -> bytes:
        """The route table has no room: none of these subscriptions holds, and the client is told so (0x97)."""
        session = channel.session
        if session is not None:
            for wire_filter, _ in subscribed:
                if self.unsubscribe(session, wire_filter, 0) and (<Session>session).logged:
                    self.recorder.unsubscribed(session, wire_filter)
        return bytes(code if code >= FAILURE else QUOTA_EXCEEDED for code in codes)

    def start_replay(self, Session session, list replays) -> None:
        """Retained messages of these subscriptions are to be sent, batch by batch."""
        if self.retained is None or not replays:
            return
        if self.retained.holds_only_sys():
            replays = [subscription for subscription in replays if subscription.filter.startswith(b"$SYS/")]
            if not replays:
                return
        if session.replays is None:
            session.replays = []
            self.replaying.append(session)
        session.replays.extend([(subscription, None) for subscription in replays])


cdef bint is_text(const uint8_t* payload, uint32_t size):
    try:
        PyUnicode_DecodeUTF8(<const char*>payload, size, "strict")
    except UnicodeDecodeError:
        return False
    return True
