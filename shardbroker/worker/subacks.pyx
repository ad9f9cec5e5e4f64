"""SUBACKs that wait; see subacks.pxd."""

import os

from cython cimport final
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.session.context cimport NOTIFY_SUBSCRIBED
from shardbroker.session.session cimport Session
from shm.counters cimport SUBACK_LATE

from shardbroker.link.subacks import MESSAGE_BYTES, decode_answer, encode_request
from shardbroker.logs.phrases import log_line
from shardbroker.worker.features import event_messages

__all__ = ["GIVE_UP_MS", "Subacks"]

GIVE_UP_MS = 200
"""A SUBACK waits no longer for link-0, whose own limit is half of it (cluster/rlog.py): it has died, or its successor does not know it."""

ANSWERS_A_PASS = 256
"""Answers of link-0 that one call takes: a commit has one, so there are seldom more than a few."""


@final
cdef class Subacks:
    """context: clock and counters. route_changes: committed before committed() is called."""

    def __init__(self, WorkerContext context not None, Subscriptions subscriptions not None, RouteChanges route_changes not None):
        self.context = context
        self.subscriptions = subscriptions
        self.route_changes = route_changes
        self.waiting = []
        self.routed = []
        self.link = -1
        self.held = {}

    def wait_for_peers(self, int link) -> None:
        """Holds SUBACKs from now on until the peers have their routes. link: the worker's end of its channel to link-0."""
        self.link = link
        # An answer to a worker that died may still arrive: the tickets of its successor are larger.
        self.last_ticket = self.context.now_ms << 20

    cdef int committed(self, bint full) except -1:
        cdef list subacks = self.waiting
        cdef list routed = self.routed
        self.waiting, self.routed = [], []
        # Also without a change of routes: another session has made it, and the peers may not have it yet.
        if self.link >= 0 and not full and self.route_changes.position > self.reached and self.hold(subacks, routed):
            return 0
        self.answer_all(subacks, full)
        return self.call_routed(routed)

    # --- other nodes --------------------------------------------------------------------------------------------------------

    cdef bint hold(self, list subacks, list routed) except -1:
        """Holds the SUBACKs of one commit. False: link-0 takes no request, so they are sent at once."""
        cdef uint64_t position = self.route_changes.position
        self.last_ticket += 1
        try:
            os.write(self.link, encode_request(self.last_ticket, position))
        except OSError:
            self.context.count(SUBACK_LATE)
            return False
        self.held[self.last_ticket] = (subacks, routed, position, self.context.now_ms + GIVE_UP_MS)
        return True

    cdef int take_answers(self) except -1:
        cdef int _
        for _ in range(ANSWERS_A_PASS):
            try:
                message = os.read(self.link, MESSAGE_BYTES)
            except (BlockingIOError, InterruptedError):
                return 0
            ticket, _late = decode_answer(message)     # link-0 has counted it
            self.release(ticket)
        return 0

    cdef int give_up(self) except -1:
        for ticket, (_, _, _, due_ms) in [*self.held.items()]:
            if self.context.now_ms < due_ms:
                break
            self.context.count(SUBACK_LATE)
            self.release(ticket)
        return 0

    cdef uint64_t due_ms(self) except? 0:
        return next(iter(self.held.values()))[3]

    cdef int release(self, object ticket) except -1:
        cdef uint64_t position
        cdef Session session
        cdef Subscription subscription
        held = self.held.pop(ticket, None)
        if held is None:
            return 0                       # given up, or held by a worker that died
        subacks, routed, position, _ = held
        self.reached = max(self.reached, position)
        for answer, channel, packet_id, codes, subscribed, replays in subacks:
            session = channel.session
            # The client may have unsubscribed since.
            replays = [] if session is None else [
                subscription for subscription in replays if session.find_subscription(subscription.wire_filter) is not None]
            self.answer_all([(answer, channel, packet_id, codes, subscribed, replays)], False)
        return self.call_routed(routed)

    cdef int call_routed(self, list routed) except -1:
        for function in routed:
            try:
                function()
            except Exception as error:
                self.context.log_failure(log_line("session not moved", step="routed"), error)
        return 0

    # --- answers ------------------------------------------------------------------------------------------------------------

    cdef int answer_all(self, list subacks, bint full) except -1:
        for suback in subacks:
            try:
                self.answer(<tuple>suback, full)
            except Exception as error:
                (<ClientOutput>(<tuple>suback)[1]).failed(error)
        return 0

    cdef int answer(self, tuple suback, bint full) except -1:
        answer, channel, packet_id, codes, subscribed, replays = suback
        if full:
            codes = self.subscriptions.undo(channel.session, codes, subscribed)
            replays = []
        answer(channel, packet_id, codes, replays)
        if self.context.notifications & NOTIFY_SUBSCRIBED and not full:
            for _, subscription in subscribed:
                channel.publish_event(NOTIFY_SUBSCRIBED, event_messages.subscribed(subscription.filter, subscription.options()))
        return 0
