"""Look-ups in databases; see lookups.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython cimport final
from libc.string cimport memcmp, memcpy

from shardbroker.pubsub.message cimport make_message
from shardbroker.pubsub.subscriptions cimport OPTION_FETCHING, OPTION_NO_LOCAL
from shardbroker.pubsub.topic_cache cimport encode_identifier
from shardbroker.session.delivery cimport Delivery, DeliveryRing
from shm.records cimport ReplayPlace, record_size

from collections import deque

from shardbroker.mqtt.topics import filter_has_wildcard, matches
from shm.records import FOUND_END, FOUND_MESSAGE, FOUND_NONE_RETAINED, FOUND_PAGE_END, FOUND_RETAINED
from shm.replays import encode

__all__ = ["DatabaseLookups"]

RUNNING = 64
"""Look-ups of a worker that have a request at a process flows, each with a page of at most some PAGE_BYTES."""
RUNNING_A_SESSION = 4
"""Of these, of one session: a client that subscribes to many topics leaves room for others."""
PAGE_BYTES = 256 << 10
"""A page should have no more: the number of its messages follows from the size of those in the page before."""
FIRST_PAGE, PAGE_MAX = 10, 100
"""Messages of the first page, and of any."""
SEEN_MAX = 4096
"""Ids that are remembered for a look-up: of messages around its begin, and of those that the session had."""
RETAINED_WAIT_MS = 5000
"""Longest wait for the database while the broker has a retained message itself."""
TAG = 1 << 63
"""In numbers of look-ups: those of replays are smaller."""
US = 1000


@final
cdef class Lookup:
    pass


@final
cdef class SessionLookups:
    pass


@final
cdef class DatabaseLookups:
    """context: clock, settings and log. channels: to the processes flows. store: None without retained messages."""

    def __init__(self, WorkerContext context not None, JournalReplays channels not None, store):
        self.context = context
        self.channels = channels
        self.store = store
        self.sessions = {}
        self.turns = {}
        self.running = {}
        self.retaining = {}
        # Different from those of a worker that was killed, whose records may be in the ring.
        self.last = TAG | context.now_ms << 20

    def configure(self, source) -> None:
        """Applies the settings. Look-ups that run go on."""
        self.source = source

    # --- subscriptions -----------------------------------------------------------------------------------------------------------

    cdef bint fetches(self, bytes filter) except -1:
        return self.source is not None and wants(self.source.fetch, filter)

    cdef bint retains(self, bytes filter) except -1:
        return self.source is not None and wants(self.source.retain_lookup, filter)

    cdef int note(self, Session session, Subscription subscription, bint fetches, bint retains) except -1:
        cdef SessionLookups found = self.of_session(session)
        cdef Lookup lookup = found.all.get(subscription.wire_filter)
        if lookup is None:
            lookup = Lookup.__new__(Lookup)
            lookup.session = session
            lookup.after = b""
            lookup.seen = set()
            lookup.limit = FIRST_PAGE
            found.all[subscription.wire_filter] = lookup
        elif retains and lookup.number and not lookup.retains:
            self.halt(lookup)              # its next request asks for both
        found.noted[subscription.wire_filter] = lookup
        lookup.subscription = subscription
        lookup.fetches = fetches
        if retains:
            lookup.noted_ms = self.context.now_ms
            self.retaining.pop(lookup, None)
            self.retaining[lookup] = None
        lookup.retains = retains
        return 0

    cdef SessionLookups of_session(self, Session session):
        cdef SessionLookups found = self.sessions.get(session.key)
        if found is None:
            found = SessionLookups.__new__(SessionLookups)
            found.session = session
            found.all = {}
            found.queued = {}
            found.noted = {}
            self.sessions[session.key] = found
            session.fetching = True
        return found

    cdef int start(self, Session session) except -1:
        cdef SessionLookups found = self.sessions.get(session.key)
        return 0 if found is None else self.queue_these(found, found.noted)

    cdef int queue_these(self, SessionLookups found, dict lookups) except -1:
        cdef Lookup lookup
        found.noted = {}
        for lookup in list(lookups.values()):
            if found.all.get(lookup.subscription.wire_filter) is not lookup:
                continue
            if not is_wanted(lookup):
                self.remove(lookup)
            elif not lookup.number:
                # Ids have whole ms: those of this one may be before SUBACK or behind it, and `seen` has those that are delivered live.
                lookup.before_us = lookup.before_us or (self.context.now_ms + 1) * US
                self.queue(lookup)
        return 0

    cdef int queue(self, Lookup lookup) except -1:
        cdef SessionLookups found = self.sessions[lookup.session.key]
        found.queued[lookup.subscription.wire_filter] = lookup
        self.turns[lookup.session.key] = found
        self.active = True
        return 0

    cdef int resume(self, Session session) except -1:
        cdef Subscription subscription
        cdef SessionLookups found = self.sessions.get(session.key)
        for subscription in session.all_subscriptions():
            if subscription.flags & OPTION_FETCHING and (found is None or subscription.wire_filter not in found.all):
                # Of a worker that was killed: what the session has by now is not delivered to it again.
                self.note(session, subscription, True, False)
                found = self.sessions[session.key]
                (<Lookup>found.all[subscription.wire_filter]).seen = ids_of(session)
        if found is None:
            session.fetching = False
            return 0
        return self.queue_these(found, found.all)

    cdef int forget(self, Session session, bytes wire_filter) except -1:
        cdef SessionLookups found = self.sessions.get(session.key)
        cdef Lookup lookup
        if found is None:
            return 0
        for lookup in list(found.all.values()) if wire_filter is None else [found.all.get(wire_filter)]:
            if lookup is not None:
                self.remove(lookup)
        return 0

    cdef int remove(self, Lookup lookup) except -1:
        cdef SessionLookups found = self.sessions.get(lookup.session.key)
        if lookup.number:
            self.halt(lookup)
        self.retaining.pop(lookup, None)
        if found is None:
            return 0
        if found.all.get(lookup.subscription.wire_filter) is lookup:
            del found.all[lookup.subscription.wire_filter]
            found.queued.pop(lookup.subscription.wire_filter, None)
        if not found.queued:
            self.turns.pop(lookup.session.key, None)
        if not found.all:
            del self.sessions[lookup.session.key]
            lookup.session.fetching = False
        return 0

    # --- deliveries another way --------------------------------------------------------------------------------------------------

    cdef int saw(self, Session session, Publication publication) except -1:
        """A message that was published before SUBACK, and is delivered because its topic was looked up behind it."""
        cdef SessionLookups found
        cdef Lookup lookup
        if self.delivering:
            return 0
        found = self.sessions.get(session.key)
        if found is None:
            return 0
        for lookup in found.all.values() if len(found.all) < 8 else one_of(found, publication):
            if lookup.fetches and (not lookup.before_us or publication.id_high < lookup.before_us) and len(lookup.seen) < SEEN_MAX and (
                    is_of(publication, lookup.subscription.filter)):
                lookup.seen.add(id_from(publication.id_high, publication.id_low))
        return 0

    def holds_back(self, bytes client_id not None, bytes topic not None, bytes id not None) -> bool:
        """Returns whether an acknowledgement of a message says nothing of those before it: some are still to be delivered."""
        cdef SessionLookups found
        cdef Lookup lookup
        if not self.sessions:
            return False
        session = (<object>self.context).sessions.get(client_id)
        found = None if session is None else self.sessions.get((<Session>session).key)
        lookup = None if found is None else found.all.get(topic)
        return lookup is not None and lookup.fetches and id > lookup.after

    # --- requests ----------------------------------------------------------------------------------------------------------------

    cdef int begin_some(self) except -1:
        cdef SessionLookups found
        cdef Lookup lookup
        cdef Py_ssize_t left = len(self.turns)
        while left > 0 and self.turns and len(self.running) < RUNNING and self.channels.channels:
            key = next(iter(self.turns))
            found = self.turns.pop(key)
            if found.session.link is None:  # until it connects again
                found.queued.clear()
                left -= 1
                continue
            if found.running >= <uint32_t>RUNNING_A_SESSION:
                self.turns[key] = found
                left -= 1
                continue
            left = len(self.turns)
            lookup = found.queued.pop(next(iter(found.queued)))
            if found.queued:
                self.turns[key] = found    # behind those of other sessions
            if not is_wanted(lookup):
                self.remove(lookup)
            elif not lookup.number:
                self.begin(lookup)
        return 0

    cdef int begin(self, Lookup lookup) except -1:
        self.last += 1
        lookup.number = self.last
        lookup.waiting = deque()
        lookup.page_bytes = lookup.page_count = 0
        self.running[lookup.number] = lookup
        (<SessionLookups>self.sessions[lookup.session.key]).running += 1
        if self.source is not None:
            return self.request(lookup)
        lookup.waiting.extend([(FOUND_NONE_RETAINED, None, b""), (FOUND_END, None, b"")])      # the settings have changed
        return 0

    cdef int request(self, Lookup lookup) except -1:
        if self.source is None:
            lookup.waiting.append((FOUND_END, None, b""))
            return 0
        before = id_from(lookup.before_us, 0)
        return self.channels.post(lookup.number % <uint64_t>len(self.channels.channels), encode(
            "lookup", lookup.number, self.source.database, lookup.session.client_id, lookup.subscription.filter, lookup.after, before,
            lookup.limit if lookup.fetches else 0, bool(lookup.retains), self.source.connector, self.source.actions, self.source.positions,
            self.source.time_range_s))

    cdef int halt(self, Lookup lookup) except -1:
        """Nothing more of its request is used."""
        self.channels.post(lookup.number % <uint64_t>len(self.channels.channels), encode("lookup_end", lookup.number))
        self.running.pop(lookup.number, None)
        lookup.number = 0
        lookup.waiting = None
        found = self.sessions.get(lookup.session.key)
        if found is not None:
            (<SessionLookups>found).running -= 1
        return 0

    cdef int finish(self, Lookup lookup) except -1:
        """All is delivered that was looked for."""
        cdef Subscription subscription = lookup.subscription
        if subscription.flags & OPTION_FETCHING:
            subscription.flags &= ~<int>OPTION_FETCHING
            if lookup.session.logged:
                self.context.recorder.subscribed(lookup.session, subscription)
        lookup.fetches = False
        return self.remove(lookup)

    def restarted(self, int process) -> None:
        """A process flows has started: what it was asked before is asked again."""
        cdef Lookup lookup
        for lookup in list(self.running.values()):
            if lookup.number % <uint64_t>len(self.channels.channels) == <uint64_t>process:
                self.halt(lookup)
                self.queue(lookup)

    # --- answers -----------------------------------------------------------------------------------------------------------------

    cdef bint take(self, const RecordHeader* header, const uint8_t* names, Publication publication) except -1:
        cdef ReplayPlace place
        cdef Lookup lookup
        if not header.member & <uint64_t>TAG:
            return False
        lookup = self.running.get(header.member)
        if lookup is None or header.group_size != sizeof(place):
            return True                    # of one that has ended
        memcpy(&place, names, sizeof(place))
        lookup.page_bytes += record_size(header)
        lookup.waiting.append((
            <int>place.journal, publication.keep() if header.topic_size else None, id_from(place.position, place.incarnation)))
        return True

    cdef int go_on(self) except -1:
        cdef Lookup lookup
        cdef Publication publication = None
        self.moved = False
        if self.retaining:
            self.retained_without_database()
        for number, one in list(self.running.items()):
            lookup = one
            if lookup.number != <uint64_t>number:
                continue                   # of a session that has ended in this loop
            if lookup.session.link is None:
                self.halt(lookup)          # until it connects again
                if not lookup.fetches:
                    self.remove(lookup)
                continue
            if not is_wanted(lookup):
                self.remove(lookup)
                continue
            if not lookup.waiting:
                continue
            self.running[number] = self.running.pop(number)    # behind those that this step may be too short for
            if publication is None:
                publication = Publication.__new__(Publication)
            try:
                self.deliver_some(lookup, publication)
            except Exception as error:     # the client connects again, and the look-up continues
                self.halt(lookup)
                if lookup.session.link is not None:
                    lookup.session.link.failed(error)
            if self.context.step_is_over():
                break
        if self.turns:
            self.begin_some()
        self.active = bool(self.running) or bool(self.turns) or bool(self.retaining)
        return 0

    cdef int deliver_some(self, Lookup lookup, Publication publication) except -1:
        cdef Session session = lookup.session
        cdef Message message
        if session.logged and self.context.disk_full:
            return 0
        while lookup.number and lookup.waiting and session.idle_for_replay():
            what, message, id = lookup.waiting.popleft()
            if what == FOUND_RETAINED or what == FOUND_NONE_RETAINED:
                self.deliver_retained(lookup, message, publication)
            elif what == FOUND_MESSAGE:
                lookup.page_count += 1
                if id > lookup.after and id not in lookup.seen:
                    self.deliver_one(lookup, message, False, publication)
                lookup.after = max(lookup.after, id)
            elif what == FOUND_PAGE_END:
                lookup.after = max(lookup.after, id)       # messages that cannot be delivered are left out
                if lookup.page_count:
                    lookup.limit = <uint32_t>max(1, min(PAGE_MAX, PAGE_BYTES * lookup.page_count // max(lookup.page_bytes, 1)))
                lookup.page_bytes = lookup.page_count = 0
                self.request(lookup)
            else:
                self.finish(lookup)
        publication.release()
        if lookup.number and lookup.waiting and session.idle_for_replay():
            self.moved = True
        return 0

    cdef int deliver_one(self, Lookup lookup, Message message, bint retained, Publication publication) except -1:
        cdef Subscription subscription = lookup.subscription
        if not retained and subscription.flags & OPTION_NO_LOCAL and message.client_id == lookup.session.client_id:
            return 0                       # [MQTT-3.8.3-3]
        publication.borrow(message)
        self.delivering = True
        try:
            lookup.session.deliver(
                publication, subscription.qos, retained, encode_identifier(subscription.identifier) or None, None)
        except Exception as error:
            self.context.drop_failed("lookup", subscription.filter, error)
        finally:
            self.delivering = False
        return 0

    # --- the retained message ----------------------------------------------------------------------------------------------------

    cdef int deliver_retained(self, Lookup lookup, Message stored, Publication publication) except -1:
        """Delivers the newer one of the database's and the broker's own."""
        cdef Message own
        if not lookup.retains:
            return 0                       # delivered without the database
        lookup.retains = False
        self.retaining.pop(lookup, None)
        own = self.own_retained(lookup)
        if stored is None or (own is not None and (own.id_high, own.id_low) >= (stored.id_high, stored.id_low)):
            stored = own
        if stored is None:
            return 0
        if lookup.fetches and len(lookup.seen) < SEEN_MAX:
            lookup.seen.add(id_from(stored.id_high, stored.id_low))
        return self.deliver_one(lookup, stored, True, publication)

    cdef Message own_retained(self, Lookup lookup):
        if self.store is None:
            return None
        found = self.store.get(lookup.subscription.filter)
        if found is None or 0 < found.expires_ms <= self.context.now_ms:
            return None
        return make_message(
            found.topic, found.payload, found.properties, found.client_id, found.message_id, found.expires_ms, found.qos, True, 0, 0)

    cdef int retained_without_database(self) except -1:
        """Delivers the broker's own ones where the database has not answered in time."""
        cdef Lookup lookup
        cdef Publication publication = Publication.__new__(Publication)
        for one in list(self.retaining):
            lookup = one
            if lookup.noted_ms + <uint64_t>RETAINED_WAIT_MS > self.context.now_ms:
                break
            if lookup.session.link is None or not is_wanted(lookup):
                self.retaining.pop(lookup)
                lookup.retains = False
            elif lookup.session.idle_for_replay() and lookup.before_us and self.own_retained(lookup) is not None:
                self.deliver_retained(lookup, None, publication)
                publication.release()
                if not lookup.fetches:
                    self.remove(lookup)
            else:                          # one of the database may still arrive
                self.retaining.pop(lookup)
                lookup.noted_ms = self.context.now_ms
                self.retaining[lookup] = None
            if self.context.step_is_over():
                break
        return 0


cdef bint wants(tuple filters, bytes topic) except -1:
    return bool(filters) and not filter_has_wildcard(topic) and any([matches(filter, topic) for filter in filters])


cdef bint is_wanted(Lookup lookup) except -1:
    """Whether its subscription is still there, and there is something to look for."""
    return not lookup.session.ended and (lookup.fetches or lookup.retains) and (
        lookup.session.find_subscription(lookup.subscription.wire_filter) is lookup.subscription)


cdef bint is_of(Publication publication, bytes topic) noexcept:
    return publication.topic_size == <size_t>PyBytes_GET_SIZE(topic) and not memcmp(
        publication.topic, PyBytes_AS_STRING(topic), publication.topic_size)


cdef tuple one_of(SessionLookups found, Publication publication):
    lookup = found.all.get(PyBytes_FromStringAndSize(<const char*>publication.topic, publication.topic_size))
    return () if lookup is None else (lookup,)


cdef bytes id_from(uint64_t high, uint64_t low):
    return (<object>high << 64 | low).to_bytes(16, "big")


cdef set ids_of(Session session):
    """Returns the ids of messages in the window and in the queue of a session, SEEN_MAX at most."""
    cdef set found = set()
    cdef Delivery* slot
    cdef Message message
    cdef uint32_t i
    rings = [] if session.window is None else [session.window]
    if session.queue is not None and session.queue.lanes is not None:
        rings += [ring for _, ring in session.queue.lanes]
    for ring in rings:
        for i in range((<DeliveryRing>ring).count):
            slot = (<DeliveryRing>ring).at(i)
            if slot.message != NULL and len(found) < SEEN_MAX:
                message = <Message>slot.message
                found.add(id_from(message.id_high, message.id_low))
    return found
