"""Retained messages on the way to new subscriptions; see retained_replays.pxd."""

from cython cimport final
from shardbroker.pubsub.message cimport Message, Publication, make_message
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.pubsub.topic_cache cimport encode_identifier

__all__ = ["RetainedReplays"]

BATCH = 64
"""Retained messages read from the store at a time, for one session."""

BATCH_BYTES = 1 << 18
"""Bytes of retained messages read at a time, for one session."""


@final
cdef class RetainedReplays:
    """context: clock, settings and log. store: None without retained messages."""

    def __init__(self, WorkerContext context not None, store):
        self.context = context
        self.store = store
        self.sessions = []

    cdef int start(self, Session session, list subscriptions) except -1:
        if self.store is None or not subscriptions:
            return 0
        if self.store.holds_only_sys():
            subscriptions = [subscription for subscription in subscriptions if subscription.filter.startswith(b"$SYS/")]
            if not subscriptions:
                return 0
        if session.replays is None:
            session.replays = []
            self.sessions.append(session)
        session.replays.extend([(subscription, None) for subscription in subscriptions])
        return 0

    cdef int go_on(self) except -1:
        cdef list sessions = self.sessions
        cdef int _
        self.moved = False
        for _ in range(len(sessions)):
            session = sessions.pop(0)
            try:
                more = self.replay(<Session>session)
            except Exception as error:     # its connection ends: the client subscribes again and misses nothing
                more = False
                (<Session>session).replays = None
                if (<Session>session).link is not None:
                    (<Session>session).link.failed(error)
            if more:
                sessions.append(session)
            if self.context.step_is_over():
                break                      # the session whose turn is next is the first of the next pass
        return 0

    cdef bint replay(self, Session session) except -1:
        cdef Message message
        cdef Publication publication
        cdef Subscription subscription
        if session.link is None or not session.replays:
            session.replays = None
            return False
        if not session.idle_for_replay():
            return True
        subscription, cursor = session.replays[0]
        room = session.window_size() - session.inflight if subscription.qos else BATCH
        # No more than its output has room for: QoS 0 would be dropped.
        bytes_left = min(BATCH_BYTES, self.context.max_output_bytes - session.link.out.pending() + 1)
        found, cursor = self.store.scan(subscription.filter, cursor, min(BATCH, room), bytes_left, self.context.now_ms)
        self.moved = True
        publication = Publication.__new__(Publication)
        publication.stored = True
        for stored in found:
            message = make_message(
                stored.topic, stored.payload, stored.properties, stored.client_id, stored.message_id, stored.expires_ms, stored.qos,
                True, 0, 0)
            publication.borrow(message)
            try:
                # Kept RETAIN: it is sent because of a new subscription [MQTT-3.3.1-8].
                session.deliver(publication, subscription.qos, True, encode_identifier(subscription.identifier) or None, None)
            except Exception as error:
                self.context.drop_failed("retained", stored.topic, error)
        if cursor is None:
            session.replays.pop(0)
        else:
            session.replays[0] = (subscription, cursor)
        if not session.replays:
            session.replays = None
        return session.replays is not None
