"""The subscriptions of a worker's sessions; see subscriptions.pxd."""

from cython cimport final
from shardbroker.hooks.masks cimport HOOK_SESSION_UNSUBSCRIBED
from shardbroker.mqtt.spec cimport FAILURE, QUOTA_EXCEEDED
from shardbroker.pubsub.subscriptions cimport OPTION_EXCLUSIVE, ReplaySubscription
from shardbroker.worker.route_changes cimport REMOVAL_DELAY_MS
from shm.counters cimport SUBSCRIPTIONS_COUNT, SUBSCRIPTIONS_SHARED_COUNT

from shardbroker.logs.phrases import log_line
from shardbroker.stores.exclusive import Claim

__all__ = ["Subscriptions"]

LEAVE_BATCH = 128
"""Subscriptions of an ended session that one pass takes out: about 1 ms, the commit included."""


@final
cdef class Subscriptions:
    """context: counters, hooks and recorder. table: what the resolver finds them in."""

    def __init__(
        self, WorkerContext context not None, SubscriptionTable table not None, TopicResolver resolver not None,
        RouteChanges route_changes not None, ExclusiveSubscriptions exclusive not None,
    ):
        self.context = context
        self.table = table
        self.resolver = resolver
        self.route_changes = route_changes
        self.exclusive = exclusive
        self.leaving = []

    def keep_exclusive(self, owners, dict sessions not None) -> list[Claim]:
        """Claims exclusive subscriptions in `owners` from now on, first those of existing sessions (client id -> Session). Ends those
        whose filter another session has got meanwhile; returns them."""
        cdef Session session
        lost = self.exclusive.take_over(owners, sessions.values())
        for claim in lost:
            session = sessions[claim.client_id]
            self.unsubscribe(session, claim.filter, 0)
            if session.logged:
                self.context.recorder.unsubscribed(session, claim.filter)
        self.exclusive.owners = owners
        return lost

    cdef int subscribe(self, Session session, Subscription subscription) except -1:
        cdef size_t before = self.table.count
        if isinstance(subscription, ReplaySubscription):
            return self.subscribe_replay(session, <ReplaySubscription>subscription)
        session.put_subscription(subscription)
        if session.logged:
            self.context.recorder.subscribed(session, subscription)
        if self.table.add(subscription):
            self.route_changes.note(subscription, True, 0)
        self.resolver.invalidate(subscription.filter)
        if self.table.count > before:
            self.context.gauge(SUBSCRIPTIONS_SHARED_COUNT if subscription.group is not None else SUBSCRIPTIONS_COUNT, 1)
        return 0

    cdef int subscribe_replay(self, Session session, ReplaySubscription replay) except -1:
        """One that is there goes on: clients subscribe again after each connect."""
        previous = session.find_subscription(replay.wire_filter)
        if previous is None:
            self.context.gauge(SUBSCRIPTIONS_COUNT, 1)
        elif not (<ReplaySubscription>previous).over:
            replay.adopt(<ReplaySubscription>previous)
        session.replaying = True
        session.put_subscription(replay)
        if session.logged:
            self.context.recorder.subscribed(session, replay)
            self.context.recorder.replayed(replay)
        return 0

    cdef bint unsubscribe(self, Session session, bytes wire_filter, uint64_t delay_ms) except -1:
        cdef Subscription subscription = session.pop_subscription(wire_filter)
        if subscription is None:
            return False
        if session.fetching:
            self.context.ends_lookups(session, wire_filter)
        if self.context.hooks & HOOK_SESSION_UNSUBSCRIBED:
            self.context.hooked.unsubscribed(session, wire_filter)
        self.drop(subscription, delay_ms)
        return True

    cdef int drop(self, Subscription subscription, uint64_t delay_ms) except -1:
        if isinstance(subscription, ReplaySubscription):
            self.context.gauge(SUBSCRIPTIONS_COUNT, -1)
            return 0
        if subscription.flags & OPTION_EXCLUSIVE and self.exclusive.owners is not None:
            self.exclusive.end(subscription.subscriber.key, subscription.filter)
        if self.table.remove(subscription):
            self.route_changes.note(subscription, False, delay_ms)
        self.resolver.invalidate(subscription.filter)
        self.context.gauge(SUBSCRIPTIONS_SHARED_COUNT if subscription.group is not None else SUBSCRIPTIONS_COUNT, -1)
        return 0

    cdef int end_all(self, Session session) except -1:
        cdef Subscription subscription
        cdef list later = []
        if session.fetching:
            self.context.ends_lookups(session, None)
        if session.subscription_count() <= LEAVE_BATCH:
            for subscription in session.all_subscriptions():
                self.drop(session.pop_subscription(subscription.wire_filter), REMOVAL_DELAY_MS)
            return 0
        # Too many for one pass. Until they are removed they lead to a session that accepts nothing more.
        for subscription in session.all_subscriptions():
            if subscription.group is None:
                later.append(subscription)
            else:
                self.drop(session.pop_subscription(subscription.wire_filter), 0)   # or it would be chosen
        self.leaving.append((session, later))
        return 0

    cdef int go_on(self) except -1:
        cdef list subscriptions
        cdef int _
        if not self.leaving:
            return 0
        subscriptions = self.leaving[0][1]
        for _ in range(min(LEAVE_BATCH, len(subscriptions))):
            try:
                self.drop(<Subscription>subscriptions.pop(), 0)
            except Exception as error:
                self.context.log_failure(log_line("subscription not removed"), error)
        if not subscriptions:
            self.leaving.pop(0)
        return 0

    cdef bytes undo(self, Session session, bytes codes, list subscribed):
        if session is not None:
            for wire_filter, _ in subscribed:
                if self.unsubscribe(session, wire_filter, 0) and session.logged:
                    self.context.recorder.unsubscribed(session, wire_filter)
        return bytes([code if code >= FAILURE else QUOTA_EXCEEDED for code in codes])
