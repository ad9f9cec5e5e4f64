"""The protocol core of one worker; see router.pxd."""

import random

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t

from shardbroker.hooks.masks cimport (
    HOOK_MESSAGE_DROPPED, HOOK_MESSAGE_PUBLISH, HOOK_SESSION_CREATED, HOOK_SESSION_DISCARDED,
    HOOK_SESSION_RESUMED, HOOK_SESSION_TAKENOVER, HOOK_SESSION_TERMINATED,
)
from shardbroker.pubsub.message cimport make_message
from shardbroker.pubsub.subscriptions cimport OPTION_RETAIN_AS_PUBLISHED, Subscriber, Subscription, SubscriptionTable
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.worker.admission cimport is_own
from shardbroker.worker.features.delayed cimport id_of
from shardbroker.worker.deferred cimport (
    DEFERRED_FOR_ALL, DEFERRED_FOR_GROUP, DEFERRED_FOR_TIME, Deferred, defer_for_all, defer_for_group, defer_for_ring,
)
from shardbroker.pubsub.topic_cache cimport FED, OWN_NONE, OWN_SAME, Lookup, Target, encode_identifier
from shardbroker.session.context cimport NOTIFY_DROPPED
from shardbroker.session.place cimport TAKEN
from shardbroker.session.journaling cimport (
    ENDED_CLEAN_START, ENDED_DISCONNECTED, ENDED_EXPIRED, WILL_DISCARDED, WILL_PUBLISHED,
)
from shm.counters cimport (
    DELIVERY_DROPPED, DELIVERY_DROPPED_EXPIRED, DELIVERY_DROPPED_NO_LOCAL, EVENTS_DROPPED, MESSAGES_DROPPED,
    MESSAGES_DROPPED_NO_SUBSCRIBERS, MESSAGES_DROPPED_OUTDATED, SESSION_CREATED, SESSION_DISCARDED, SESSION_RESUMED,
    SESSION_TAKENOVER, SESSION_TERMINATED, SESSIONS_COUNT,
)
from shm.destinations cimport number_of
from shm.records cimport FLAG_ANSWERED, RECORD_PUBLISH, RECORD_SHARED

from shardbroker.logs.phrases import log_line
from shardbroker.mqtt.errors import MqttError
from shardbroker.worker.features import event_messages
from shardbroker.worker.features.rewrite import AutoTopics

__all__ = ["Router"]

SHARED_ATTEMPTS = 8
"""Members of a shared group that are tried before a message for it is given up."""

cdef enum:
    GROUP_COST = 8                         # of the budget, for the choice of a shared group's member: some 2 µs
    UNRESOLVED_BUDGET = 4096               # units of work in a pass for messages from other workers that were set aside
    LOOKUP_BUDGET = 4096                   # for the look-up of one of them, out of its turn: 512 visits, 1 ms

NEVER = 0xFFFFFFFFFFFFFFFF


cdef class Router(WorkerContext):
    """settings: the whole configuration. routes, retained, epochs, slot: the shared parts (shm), or stand-ins of the same shape."""

    def __init__(self, settings, uint64_t now_ms, slot, routes, retained, Epochs epochs, long own_destination, int node_id=0,
                 seed=None):
        cdef SubscriptionTable table = SubscriptionTable.__new__(SubscriptionTable)
        WorkerContext.__init__(self, settings.mqtt, now_ms, slot)
        self.sessions = {}
        self.by_key = {}
        self.reporter = Reporter.__new__(Reporter)
        self.epochs = epochs
        self.retaining = RetainedChanges(self, retained, settings.retainer)
        self.replays = RetainedReplays(self, retained)
        self.journal_replays = JournalReplays(self)
        self.lookups = DatabaseLookups(self, self.journal_replays, retained)
        self.journal_replays.lookups = self.lookups
        self.auth, self.acl = settings.auth, settings.acl
        self.own_destination = own_destination
        self.picker = GroupPicker(settings.mqtt.shared_subscription_strategy, self.turn, own_destination, seed)
        self.publication = Publication.__new__(Publication)
        self.publication.answered = FLAG_ANSWERED
        self.exclusive = ExclusiveSubscriptions(self, self.by_key, own_destination)
        self.retries = Retries(self, settings.delayed)
        self.admission = Admission(self, self.retries.delays)
        self.resolver = TopicResolver(self, table, routes, epochs, self.admission, own_destination)
        self.route_changes = RouteChanges(self, self.resolver, routes, own_destination)
        self.subscriptions = Subscriptions(self, table, self.resolver, self.route_changes, self.exclusive)
        self.subacks = Subacks(self, self.subscriptions, self.route_changes)
        self.set_outlets(Outlets.__new__(Outlets))
        self.announce_events(settings)
        # Keys are unique on the node and differ from those of a worker that died: worker | start second | count.
        self.next_key = ((<uint64_t>number_of(own_destination) & 0xFFFF) << 52) | ((now_ms // 1000 & 0xFFFFFFFF) << 20)
        # A random number: a container may use the same process identifier again, behind a clock that was set back.
        self.id_low_base = ((<uint64_t>node_id & 0xFFFF) << 48) | (<uint64_t>random.SystemRandom().getrandbits(32) << 16)

    cdef int set_outlets(self, Outlets outlets) except -1:
        self.outlets = self.resolver.outlets = self.retaining.outlets = outlets
        return 0

    def turn(self, hash) -> int:
        """Next number of a node-wide round robin counter."""
        return self.epochs.next_turn(hash) if self.epochs is not None else random.getrandbits(32)

    def log(self, str level, str text) -> None:
        self.reporter.log(level, text)

    cdef int delivers_live(self, object session, Publication publication) except -1:
        return self.lookups.saw(<Session>session, publication)

    cdef int ends_lookups(self, object session, bytes wire_filter) except -1:
        return self.lookups.forget(<Session>session, wire_filter)

    cdef int queued_by(self, bytes client_id, uint64_t size) except -1:
        return self.memory.note(client_id, size) if client_id and self.memory is not None else 0

    def apply_settings(self, settings) -> None:
        """Applies the settings that can change while the worker runs."""
        self.configure(settings.mqtt)
        self.retaining.configure(settings.retainer)
        self.resolver.capture_topics(settings.journal.capture)
        self.journal_replays.configure(settings)
        self.lookups.configure(settings.persistence.lookups())
        self.change_topics(settings)
        self.retries.delays.settings = settings.delayed
        self.announce_events(settings)
        if self.watcher is not None:
            self.watcher.configure(settings)

    def change_topics(self, settings) -> None:
        """Applies rewrite.rules and auto_subscribe.topics; existing subscriptions stay as they are."""
        topics = settings.auto_subscribe.topics
        if self.admission.configure(settings.rewrite.rules):
            self.resolver.invalidate_all()     # the cache entry of a topic has its rule
        self.auto_topics = AutoTopics(topics) if topics else None

    # --- publishing -----------------------------------------------------------------------------------------------------

    cdef int stamp(self, Publication publication) noexcept:
        """A new message id: µs since the epoch, node, process, sequence."""
        self.id_sequence += 1
        publication.id_high = self.now_ms * 1000
        publication.id_low = self.id_low_base | self.id_sequence
        return 0

    cdef bint publish(self, TopicEntry entry, Publication publication, Session publisher) except -1:
        if entry.captured:
            self.capture(entry, publication, publisher)
        if publication.retain:
            self.retaining.retain(publication)
        if entry.is_empty():
            if is_own(publication.topic, publication.topic_size):
                return False           # a message of the broker, such as an alarm, is no loss without a subscriber
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

    cdef int capture(self, TopicEntry entry, Publication publication, Session publisher) except -1:
        if entry.captured & FED and publisher is not None and publisher.link is not None:
            self.recorder.published_by(publisher)
        return self.recorder.captured(publication, entry.captured)

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
            return self.retries.delay(publication, at_ms)
        if not self.try_publish(message, publisher, None, 0):
            self.retries.defer(defer_for_all(message, 0))
        return 0

    cdef bint publish_in_order(self, Message message, Session publisher, uint8_t answered) except -1:
        if not self.retries.waiting and self.try_publish(message, publisher, None, answered):
            return True
        self.retries.defer(defer_for_all(message, answered))
        return False

    cdef bint try_publish(self, Message message, Session publisher, list holder, uint8_t answered) except -1:
        try:
            return self.publish_held(message, publisher, holder, answered)
        except MqttError:
            self.count_outdated()          # fewer levels are allowed than when it came
        except Exception as error:
            self.drop_failed("publish", message.topic, error)
        return True

    cdef bint publish_held(self, Message message, Session publisher, list holder, uint8_t answered) except -1:
        cdef TopicEntry entry = self.resolver.resolve(message.block, message.topic_size, holder)
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
        publication.answered = answered
        self.publish(entry, publication, publisher)
        return True

    # --- what waits for room in a ring ---------------------------------------------------------------------------------------

    cdef int run_retries(self) except -1:
        """Each tries again, in order."""
        cdef list waiting = self.retries.waiting
        cdef Deferred deferred
        cdef bint done
        self.retries.waiting = []
        for deferred in waiting:
            try:
                done = self.try_again(deferred)
            except Exception as error:
                self.drop_failed("retry", deferred.message.topic, error)
                self.retries.delays.remove(deferred)
                done = True
            if not done:
                self.retries.waiting.append(deferred)
            elif deferred.number:
                self.recorder.deferred_done(deferred.number)
        if not self.retries.waiting and self.hooked is not None:
            self.hooked.go_on()
        return self.retries.take_due()

    cdef bint try_again(self, Deferred deferred) except -1:
        if deferred.lookups is None:
            deferred.lookups = []
        if deferred.purpose == DEFERRED_FOR_ALL:
            return self.try_publish(
                deferred.message, self.sessions.get(deferred.message.client_id), deferred.lookups, deferred.answered)
        if deferred.purpose == DEFERRED_FOR_TIME:
            return self.publish_delayed(deferred)
        if deferred.purpose == DEFERRED_FOR_GROUP:
            return self.hand_on(deferred.group, deferred.filter, deferred.message, deferred.attempts, deferred.member, deferred.lookups)
        return self.outlets.put_deferred(deferred)

    cdef int deliver_unresolved(self) except -1:
        cdef dict unresolved = self.retries.unresolved
        cdef bint looked_further = False
        cdef Deferred deferred
        self.budget = UNRESOLVED_BUDGET
        for client_id in list(unresolved):
            if self.budget <= 0:
                break
            queue = unresolved[client_id]
            while queue and self.budget > 0:
                deferred = queue[0]
                self.budget -= 1
                try:
                    if not self.deliver_late(deferred, &looked_further):
                        break
                except Exception as error:
                    self.drop_failed("ring", deferred.message.topic, error)
                self.retries.resolved(client_id)
            if queue:
                unresolved[client_id] = unresolved.pop(client_id)      # behind those that had no share of this budget
        return 0

    cdef bint deliver_late(self, Deferred deferred, bint* looked_further) except -1:
        cdef Message message = deferred.message
        cdef Publication publication
        cdef TopicEntry entry
        cdef Lookup lookup
        if deferred.lookups is None:
            deferred.lookups = []
        for lookup in deferred.lookups:
            if lookup.entry is None and lookup.error is None and not looked_further[0]:
                self.resolver.look_further(deferred.lookups, LOOKUP_BUDGET)
                looked_further[0] = True
            if lookup.entry is None and lookup.error is None:
                return False               # not resolve(): it would end the budget of the others
        entry = self.resolver.resolve(message.block, message.topic_size, deferred.lookups)
        if entry is None or (self.disk_full and self.would_record(entry)):
            return False
        publication = Publication.__new__(Publication)
        publication.borrow(message)
        publication.answered = deferred.answered
        self.deliver_locally(entry, publication, None)
        return True

    # --- events as messages -------------------------------------------------------------------------------------------------

    def announce_events(self, settings) -> None:
        """The events of these settings are published from now on."""
        if self.announcer is not None:
            self.announcer.publish()
        self.announcer = event_messages.EventMessages(self, settings)
        self.notifications = self.announcer.mask

    def has_subscribers(self, bytes topic not None) -> bool:
        cdef TopicEntry entry = self.resolver.resolve(<const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic), None)
        return entry is None or not entry.is_empty()         # None: so many filters lead near it that one turn was too short

    def publish_own(self, bytes topic not None, bytes payload not None) -> None:
        """A message of the broker's own; dropped if a ring is full, or if its topic cannot be looked up at once."""
        cdef Publication stamped = Publication.__new__(Publication)
        self.stamp(stamped)
        id = stamped.id_high.to_bytes(8, "big") + stamped.id_low.to_bytes(8, "big")
        if not self.try_publish(make_message(topic, payload, b"", None, id, 0, 0, False, 0, 0), None, None, 0):
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

    cdef int count_outdated(self) except -1:
        self.count(MESSAGES_DROPPED)
        self.count(MESSAGES_DROPPED_OUTDATED)
        return 0

    cdef int messages_due(self) except -1:
        return self.retries.take_due()

    cdef Message stamped_again(self, Message message):
        """Returns a copy with an id of this moment."""
        cdef Publication stamped = Publication.__new__(Publication)
        self.stamp(stamped)
        id = stamped.id_high.to_bytes(8, "big") + stamped.id_low.to_bytes(8, "big")
        return make_message(
            message.topic, message.payload, message.properties, message.client_id, id, message.expires_ms, message.qos, message.retain,
            message.payload_format, 0)

    cdef bint publish_delayed(self, Deferred deferred) except -1:
        cdef Message message
        if not self.retries.delays.has(deferred):
            return True                    # deleted since it was due
        if is_own(deferred.message.block, deferred.message.topic_size):
            self.count_outdated()          # a journal of an older version may hold a client's
        elif deferred.message.expires_ms and deferred.message.expires_ms <= self.now_ms:
            self.count(DELIVERY_DROPPED)
            self.count(DELIVERY_DROPPED_EXPIRED)
        else:
            # A session that has moved meanwhile would take an id of then for one that its former node has dealt with.
            message = deferred.message if self.passed is None else self.stamped_again(deferred.message)
            if not self.try_publish(message, self.sessions.get(deferred.message.client_id), deferred.lookups, 0):
                return False
        self.retries.delays.remove(deferred)
        return True

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
        cdef Subscription subscription = self.subscriptions.table.shared_member(group, filter, member)
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
            self.defer_record(publication, destination, RECORD_PUBLISH, 0, 0, b"", b"")
        return 0

    cdef int forward_shared(self, long destination, uint64_t member, tuple group, Publication publication, uint8_t attempts) except -1:
        """Likewise; room_for() cannot ask room for more shared groups than a ring has room for at all."""
        if not self.outlets.forward_shared(destination, member, group, publication, attempts):
            self.defer_record(publication, destination, RECORD_SHARED, member, attempts, <bytes>group[0], <bytes>group[1])
        return 0

    cdef int defer_record(
        self, Publication publication, long destination, int record, uint64_t member, int attempts, bytes group, bytes filter,
    ) except -1:
        cdef Deferred deferred = defer_for_ring(publication.keep(), destination, record, member, attempts, group, filter)
        deferred.answered = publication.answered
        return self.retries.defer(deferred)

    # --- sessions -----------------------------------------------------------------------------------------------------------

    cdef Session open_session(self, object channel, bytes client_id, bint clean_start, uint64_t expiry_ms, bint* present):
        """Returns the session for an accepted CONNECT (MQTT 5.0 §3.1.2.4); an earlier connection has been closed."""
        cdef Session session = self.previous_session(client_id)
        present[0] = False
        if session is not None and clean_start and session is not self.granted:
            self.count(SESSION_DISCARDED)
            if self.hooks & HOOK_SESSION_DISCARDED:
                self.hooked.session("session.discarded", session, channel)
            (<ClientOutput>channel).promised = True                # its CONNACK says that the old one is gone
            self.end_session(session, False)               # [MQTT-3.1.2-4]
            session = None
        if session is None:
            session = self.create_session(client_id)
        elif session is not self.granted:
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

    cdef Session previous_session(self, bytes client_id):
        cdef Session session = self.sessions.get(client_id)
        if session is not None and session.link is not None:
            self.disconnect_taken(session)
            session = self.sessions.get(client_id)
        if session is not None and session.link is None:
            # Timers fire late, above all after a start: what was due before this CONNECT has happened.
            if session.will is not None and session.will_at_ms and self.now_ms >= session.will_at_ms:
                self.publish_will(session)
            if session.expires_at_ms and self.now_ms >= session.expires_at_ms:
                self.end_session(session, True)
                session = None
        return session

    cdef int disconnect_taken(self, Session session) except -1:
        holder = session.link
        if self.hooks & HOOK_SESSION_TAKENOVER:
            self.hooked.session("session.takenover", session, holder)
        holder.taken_over()
        self.count(SESSION_TAKENOVER)
        return 0

    cdef Session create_session(self, bytes client_id):
        cdef Session session
        self.next_key += 1
        session = Session(self, self.next_key, client_id)
        self.sessions[client_id] = session
        self.by_key[session.key] = session
        self.count(SESSION_CREATED)
        self.gauge(SESSIONS_COUNT, 1)
        return session

    cdef int client_gone(self, Session session, int reason_code, bint keep_will) except -1:
        """The connection is over. The will waits for its delay, the session for its expiry, whichever ends first."""
        cdef uint64_t delay_ms
        session.detach()
        if self.claims is not None:
            self.claims.disconnected(session)
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

    cdef int takes(self, object session, Publication publication, int qos) except -1:
        return TAKEN if self.claims is None else self.claims.takes(<Session>session, publication, qos)

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
            topic = self.admission.admit(message, None if username is None else username.encode(), &at_ms)
            reason = self.retries.refusal() if at_ms else None
        except MqttError as error:
            reason = str(error)
        if denied or reason is not None:
            # What was right at CONNECT is not any more: a rule, a setting, or as many delayed messages wait as may.
            self.count_outdated()
            if reason is not None:
                self.log("warning", log_line("will dropped", client_id=message.client_id or b"", reason=reason))
            return 0
        message.expires_ms = self.admission.expires_ms(will.has_expiry, will.expiry_s)
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
        self.subscriptions.end_all(session)
        if session.will is not None:
            self.publish_will(session)                     # the session ends before the delay does [MQTT-3.1.2-8]
        if session.known:
            self.recorder.ended(
                session, ENDED_CLEAN_START if not redispatch else ENDED_EXPIRED if session.expiry_ms else ENDED_DISCONNECTED)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        if self.claims is not None:
            self.claims.ended(session)
        self.by_key.pop(session.key, None)
        session.end()
        self.count(SESSION_TERMINATED)
        self.gauge(SESSIONS_COUNT, -1)
        for share, message, _ in leftovers:
            # What a member of a shared group did not finish goes to another one.
            if not self.hand_on(share[0], share[1], message, 0, 0, None):
                self.retries.defer(defer_for_group(message, share[0], share[1], 0, 0))
        return 0

    cdef bint hand_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1:
        try:
            return self.pass_on(group_name, filter, message, attempts, failed, holder)
        except Exception as error:
            self.drop_failed("shared group", message.topic, error)
            return True

    cdef bint pass_on(self, bytes group_name, bytes filter, Message message, int attempts, uint64_t failed, list holder) except -1:
        cdef TopicEntry entry = self.resolver.resolve(message.block, message.topic_size, holder)
        cdef Publication publication
        if entry is None or not self.room_for(entry, <uint64_t>message.topic_size + message.properties_size + message.payload_size):
            return False
        publication = Publication.__new__(Publication)
        publication.borrow(message)
        publication.unrepeatable = True    # the worker that had it has acknowledged it
        publication.answered = FLAG_ANSWERED
        for group in entry.groups:
            if group[0] == group_name and group[1] == filter:
                self.deliver_shared(group, publication, None, attempts, (self.own_destination, failed) if failed else None)
        return True

    # --- end of a pass -----------------------------------------------------------------------------------------------------------

    cdef int commit(self, bint now) except -1:
        """What is due becomes visible to every worker, then SUBACKs may go out. With `now` everything is due."""
        cdef bint full = False
        if self.route_changes.changes and (now or self.now_ms >= self.route_changes.due_ms):
            full = self.route_changes.commit()
        if self.retaining.changes:
            self.retaining.commit()
        if self.subacks.waiting or self.subacks.routed:
            self.subacks.committed(full)
        if self.subacks.held:
            self.subacks.give_up()
        if self.notifications and self.announcer.any_noted:
            self.announcer.publish()
        return 0

    cdef int due_in_ms(self, int wait_ms) except -1:
        cdef uint64_t due_ms = self.now_ms + <uint64_t>wait_ms
        if self.route_changes.changes:
            due_ms = min(due_ms, self.route_changes.due_ms)
        if self.exclusive.releasing and self.exclusive.due_ms:
            due_ms = min(due_ms, self.exclusive.due_ms)
        if self.subacks.held:
            due_ms = min(due_ms, self.subacks.due_ms())
        return <int>(due_ms - self.now_ms) if due_ms > self.now_ms else 0
