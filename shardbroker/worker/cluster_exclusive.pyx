"""Exclusive subscriptions in a cluster; see cluster_exclusive.pxd."""

from libc.stdint cimport uint64_t

from shardbroker.pubsub.subscriptions cimport OPTION_EXCLUSIVE, Subscription
from shardbroker.worker.channel cimport CONNECTED
from shardbroker.worker.exclusive cimport CLAIM_GRANTED, CLAIM_REFUSED, CLAIM_WAITS

from collections import deque
from contextlib import suppress

import cbor2

from shardbroker.cluster.claims import CLAIM_MS, EXCLUSIVE, TAKE_MS, exclusive_holding
from shardbroker.cluster.messages import Key
from shardbroker.cluster.outputs import Accepted, Create, EndSession, Rejected
from shardbroker.cluster.plain import from_plain, records_of, to_plain
from shardbroker.cluster.registry import filter_key
from shardbroker.logs.phrases import log_line
from shardbroker.stores.exclusive import Claim, ExclusiveTableFull

__all__ = ["ClusterExclusive"]

WANTED_MAX = 10_000
"""SUBSCRIBEs of one worker that wait for claims; above it they are refused."""
WANTED_BYTES_MAX = 16 << 20
"""Bytes of their filters."""
GIVE_UP_MS = CLAIM_MS + 2 * TAKE_MS
"""A SUBSCRIBE waits so long: the worker of the filter has given its claim up by then."""
WANT_AGAIN_MS = 500
"""Between two WANT without an answer, and before one that was refused for another reason than another client."""
FRESH_MS = GIVE_UP_MS + 1_000
"""A row that is not confirmed is taken back after so long: no SUBSCRIBE waits for it any more."""
LOST_AGAIN_MS = 500
"""Between two LOST."""
BROUGHT_MAX = 1_000
"""Claims under way of subscriptions that sessions have brought: a start with very many of them must not flood the registrars."""
SWEEP_MS = 10_000
"""Between two looks for claims without a row: the registrar learns of their end so late, a claimant at once."""
SWEEP_A_TICK = 100
"""Rows looked at in one tick: some 0.3 ms."""
PAGE = 1_000
"""Rows that are read at once at the start."""
BUSY = 0x89
"""Reason of an answer: nothing is known of another client, and the same WANT may be granted later."""
WANT, ANSWER, LOST = 1, 2, 3
RECORDS = records_of(Key)
"""What an image has."""


cdef class Want:
    pass


cdef class ClusterExclusive:
    """perform: carries out a list of outputs of `core`. post: (worker, body). workers: of each partition, None: this one of all."""

    def __init__(self, Router router not None, core, bytes cluster not None, workers, perform, post):
        self.router = router
        self.core = core
        self.cluster = cluster
        self.workers = workers
        self.perform = perform
        self.post = post
        self.number = <int>router.own_destination
        self.wanted = {}
        self.tickets = {}
        self.brought = deque()
        self.pending = {}
        self.claiming = {}
        self.held = {}
        self.uids = {}
        self.fresh = {}
        self.lost = {}
        self.to_sweep = []

    cdef int restore(self) except -1:
        cdef Session session
        self.table = self.router.exclusive.owners
        if self.table is None:
            return 0
        self.router.exclusive.cluster = self
        # Answers to an earlier process may still arrive.
        self.last_ticket = self.router.now_ms << 20
        after, rows = b"", None
        while rows is None or after:
            rows, after = self.table.page(after, PAGE)
            for row in rows:
                key = filter_key(self.cluster, row.filter)
                if not row.stamp or (self.workers is not None and self.workers[key.partition] != self.number):
                    continue
                self.last_number -= 1
                self.held[key] = row.filter, self.last_number
                self.uids[self.last_number] = key
                name = row.client_id.decode(errors="replace")
                self.core.claims.restore(exclusive_holding(key, self.last_number, name, row.stamp), self.router.now_ms)
                self.core.clock.last = max(self.core.clock.last, row.stamp)
                if not row.confirmed:
                    self.fresh[row.filter] = self.router.now_ms + FRESH_MS
        for session in self.router.sessions.values():
            self.bring(session)
        return 0

    # --- the process that replaces this one -----------------------------------------------------------------------------------

    cdef dict image(self):
        """Returns everything that is not in the table as plain values. No SUBSCRIBE waits."""
        cdef Want want
        return {
            "wanted": [
                [want.session, want.filter, want.ticket, want.reason, want.due_ms] for want in self.wanted.values() if not want.ends_ms],
            "brought": [list(one) for one in self.brought], "last_ticket": self.last_ticket, "last_number": self.last_number,
            "of_filters": to_plain([self.pending, self.claiming, self.held, self.fresh, self.lost]),
        }

    cdef int take_image(self, dict image) except -1:
        cdef Want want
        self.table = self.router.exclusive.owners
        if self.table is None:
            return 0
        self.router.exclusive.cluster = self
        self.last_ticket, self.last_number = image["last_ticket"], image["last_number"]
        self.pending, self.claiming, self.held, self.fresh, self.lost = from_plain(image["of_filters"], RECORDS)
        self.uids = {uid: key for key, (_, uid) in self.held.items()}
        self.brought = deque([tuple(one) for one in image["brought"]])
        for session, filter, ticket, reason, due_ms in image["wanted"]:
            want = Want.__new__(Want)
            want.session, want.filter, want.ticket, want.reason, want.due_ms = session, filter, ticket, reason, due_ms
            self.wanted[(session, filter)] = self.tickets[ticket] = want
            self.wanted_bytes += <uint64_t>len(filter)
        return 0

    # --- worker of the client -----------------------------------------------------------------------------------------------

    cdef bint owns(self, Session session) noexcept:
        return session is not None and not session.ended and self.router.sessions.get(session.client_id) is session

    cdef bint has(self, Session session, bytes filter) except -1:
        cdef Subscription subscription = session.find_subscription(filter)
        return subscription is not None and subscription.flags & OPTION_EXCLUSIVE != 0

    def claim(self, Channel channel not None, bytes filter not None) -> int:
        """Claims a filter for the session of a channel; see ExclusiveSubscriptions.claim."""
        cdef Session session = channel.session
        cdef Want want = self.wanted.get((session.key, filter))
        cdef uint64_t ends_ms = self.router.now_ms + <uint64_t>GIVE_UP_MS
        if self.has(session, filter):
            return CLAIM_GRANTED
        if want is None:
            # Without a SUBSCRIBE that can wait it is a command of an operator.
            if channel.subscribing is None or len(self.wanted) >= WANTED_MAX or self.wanted_bytes + len(filter) > WANTED_BYTES_MAX:
                return CLAIM_REFUSED
            want = self.new_want(session, filter, ends_ms)
            self.send_want(want)           # may be answered at once
        elif not want.ends_ms:
            want.ends_ms = ends_ms         # a subscription that was brought has ended meanwhile
        if want.reason < 0:
            want.channel = channel
            channel.suspend_reading()
            return CLAIM_WAITS
        self.drop(want)
        return CLAIM_GRANTED if not want.reason and self.confirm(session.key, filter) else CLAIM_REFUSED

    cdef Want new_want(self, Session session, bytes filter, uint64_t ends_ms):
        cdef Want want = Want.__new__(Want)
        self.last_ticket += 1
        want.session, want.filter, want.ticket, want.reason, want.ends_ms = session.key, filter, self.last_ticket, -1, ends_ms
        self.wanted[(session.key, filter)] = self.tickets[want.ticket] = want
        self.wanted_bytes += len(filter)
        return want

    cdef int drop(self, Want want) except -1:
        if self.tickets.pop(want.ticket, None) is not None:
            del self.wanted[(want.session, want.filter)]
            self.wanted_bytes -= len(want.filter)
        return 0

    cdef int send_want(self, Want want) except -1:
        cdef Session session = self.router.by_key.get(want.session)
        want.due_ms = self.router.now_ms + <uint64_t>WANT_AGAIN_MS
        if session is None:
            return self.drop(want)
        key = filter_key(self.cluster, want.filter)
        ended = self.router.exclusive.ended_holder(want.filter)
        return self.send(
            self.number if self.workers is None else self.workers[key.partition],
            [WANT, want.ticket, want.session, want.filter, session.client_id, ended])

    cdef bint confirm(self, uint64_t session, bytes filter) except -1:
        try:
            if not self.table.confirm(filter, session):
                return False
        except ExclusiveTableFull:
            return False
        self.router.exclusive.releasing.pop(filter, None)      # see ExclusiveSubscriptions.claim
        return True

    cdef int answered(self, uint64_t ticket, int reason) except -1:
        cdef Want want = self.tickets.get(ticket)
        cdef Channel channel
        if want is None or want.reason >= 0:
            return 0
        if not want.ends_ms:
            return self.brought_answered(want, reason)
        want.reason = reason
        channel, want.channel = want.channel, None
        if channel is None:
            return 0
        if channel.state != CONNECTED or channel.session is None or channel.session.key != want.session:
            return self.drop(want)         # the row is not confirmed, and is taken back
        return channel.resume_reading()

    cdef int brought_answered(self, Want want, int reason) except -1:
        cdef Session session = self.router.by_key.get(want.session)
        if reason and reason != EXCLUSIVE:
            want.due_ms = self.router.now_ms + <uint64_t>WANT_AGAIN_MS
            return 0
        self.drop(want)
        if not self.owns(session) or not self.has(session, want.filter):
            return 0
        if reason:
            return self.end(session, want.filter)
        if not self.confirm(want.session, want.filter):
            self.brought.append((want.session, want.filter))
        return 0

    cdef int end(self, Session session, bytes filter) except -1:
        """Ends a subscription that another client has by now."""
        self.router.subscriptions.unsubscribe(session, filter, 0)
        if session.logged:
            self.router.recorder.unsubscribed(session, filter)
        self.router.log("warning", log_line("exclusive subscription lost", client_id=session.client_id, filter=filter))
        return 0

    cdef int bring(self, Session session) except -1:
        cdef Subscription subscription
        if self.table is None:
            return 0
        for subscription in session.all_subscriptions():
            if subscription.flags & OPTION_EXCLUSIVE:
                self.brought.append((session.key, subscription.filter))
        return 0

    cdef int leave(self, Session session) except -1:
        cdef Subscription subscription
        if self.table is None:
            return 0
        rows = []
        for subscription in session.all_subscriptions():
            if subscription.flags & OPTION_EXCLUSIVE:
                rows.append((subscription.filter, session.key))
        return self.remove(rows) if rows else 0

    cdef int remove(self, list rows) except -1:
        """Removes rows. Those that a full table keeps are removed by a later LOST, or with the session."""
        with suppress(ExclusiveTableFull):
            self.table.release(rows)
        return 0

    cdef int on_lost(self, uint64_t session, bytes filter) except -1:
        """Takes the end of a claim: the session has gone to another node, or both have had it since a split."""
        cdef Session found = self.router.by_key.get(session)
        if self.owns(found) and self.has(found, filter):
            if (session, filter) not in self.wanted:
                self.send_want(self.new_want(found, filter, 0))
        elif filter not in self.router.exclusive.releasing:
            self.remove([(filter, session)])
        return 0

    cdef int tick_wanted(self) except -1:
        cdef Want want
        cdef Session session
        cdef uint64_t now_ms = self.router.now_ms
        for want in [*self.wanted.values()]:
            if want.ends_ms and now_ms >= want.ends_ms:
                if want.reason < 0:
                    self.answered(want.ticket, BUSY)
                else:
                    self.drop(want)        # its client has gone before it was resumed
            elif want.reason < 0 and now_ms >= want.due_ms:
                self.send_want(want)
        while self.brought and len(self.wanted) < BROUGHT_MAX:
            key, filter = self.brought.popleft()
            session = self.router.by_key.get(key)
            if self.owns(session) and self.has(session, filter) and (key, filter) not in self.wanted:
                self.send_want(self.new_want(session, filter, 0))
        return 0

    # --- between workers ----------------------------------------------------------------------------------------------------

    cdef int send(self, int worker, list message) except -1:
        if worker == self.number:
            return self.received(worker, message)
        self.post(worker, cbor2.dumps(message))
        return 0

    cdef int received(self, int worker, object message) except -1:
        if self.table is None:
            return 0
        kind = message[0]
        if kind == WANT:
            _, ticket, session, filter, client_id, ended = message
            return self.on_want(worker, ticket, session, filter, client_id, ended)
        if kind == ANSWER:
            _, ticket, reason = message
            return self.answered(ticket, reason)
        _, session, filter = message
        return self.on_lost(session, filter)

    cdef int answer(self, int worker, uint64_t ticket, int reason) except -1:
        return self.send(worker, [ANSWER, ticket, reason])

    cdef int tick(self) except -1:
        if self.table is None:
            return 0
        if self.wanted or self.brought:
            self.tick_wanted()
        return self.tick_held()

    # --- worker of the filter -----------------------------------------------------------------------------------------------

    cdef int on_want(self, int worker, uint64_t ticket, uint64_t session, bytes filter, bytes client_id, uint64_t ended) except -1:
        key = filter_key(self.cluster, filter)
        if self.workers is not None and self.workers[key.partition] != self.number:
            return 0
        self.look(key)
        row = self.table.owner(filter)
        if row is not None and row.session != session and row.session != ended and row.client_id != client_id:
            return self.answer(worker, ticket, EXCLUSIVE)
        if key in self.held and row is not None and (row.session, row.destination) == (session, worker) and row.stamp and row.confirmed:
            return self.answer(worker, ticket, 0)
        pending = self.pending.get(key)
        if pending is not None:
            if (pending[0], pending[2]) != (worker, session):
                return self.answer(worker, ticket, BUSY)
            pending[1] = ticket
            return 0
        if key in self.held:
            return self.grant_again(key, Claim(filter, worker, session, client_id), ended, ticket)
        self.last_number -= 1
        self.claiming[self.last_number] = key
        self.pending[key] = [worker, ticket, session, filter, client_id, ended, 0]
        now_ms = self.router.now_ms
        name = client_id.decode(errors="replace")
        self.perform(self.core.deliver(
            self.core.claims.subscribe_exclusive(key, name, self.last_number, now_ms), now_ms, now_ms))
        return 0

    cdef int grant_again(self, object key, object claim, uint64_t ended, uint64_t ticket) except -1:
        """Grants what the claim of this node covers: to the same session, or behind another one that has ended."""
        holding, (known, _) = self.core.claims.sessions[key], self.held[key]
        if known != claim.filter:
            return self.answer(claim.destination, ticket, EXCLUSIVE)       # the hashes of both are the same
        try:
            granted = self.table.grant(claim._replace(stamp=holding.generation, confirmed=False), ended)
        except ExclusiveTableFull:
            granted = False
        if granted:
            holding.name = claim.client_id.decode(errors="replace")
            self.fresh[claim.filter] = self.router.now_ms + <uint64_t>FRESH_MS
        return self.answer(claim.destination, ticket, 0 if granted else EXCLUSIVE)

    cdef bint performs(self, object output) except -1:
        kind = type(output)
        if kind is Create:
            if output.key not in self.pending:
                return False
            self.create(output)
        elif kind is Accepted or kind is Rejected:
            if output.ticket >= 0:
                return False
            self.decided(output.ticket, 0 if kind is Accepted else output.reason)
        elif kind is EndSession and output.uid < 0:
            self.given(output.uid)
        else:
            return False
        return True

    cdef int create(self, object output) except -1:
        """Takes a grant: the row is the session's before any other message about the key is taken."""
        now_ms, key = self.router.now_ms, output.key
        pending = self.pending[key]
        worker, _, session, filter, client_id, ended, _ = pending
        try:
            granted = self.table.grant(Claim(filter, worker, session, client_id, output.generation, False), ended)
        except ExclusiveTableFull:
            granted = False
        pending[6] = 0 if granted else EXCLUSIVE
        self.last_number -= 1
        self.held[key] = filter, self.last_number
        self.uids[self.last_number] = key
        self.fresh[filter] = now_ms + FRESH_MS
        self.perform(self.core.deliver(
            self.core.claims.created(key, self.last_number, 0, now_ms, now_ms), now_ms, now_ms))
        return 0 if granted else self.forget(key)

    cdef int decided(self, object ticket, int reason) except -1:
        """Takes the end of a claim of this node."""
        key = self.claiming.pop(ticket, None)
        pending = self.pending.pop(key, None)
        return 0 if pending is None else self.answer(pending[0], pending[1], reason or pending[6])

    cdef int given(self, object uid) except -1:
        """Takes the end of a claim that another node has by now. The row stays until the worker of its session has removed it."""
        key = self.uids.pop(uid, None)
        if key is None:
            return 0
        filter, _ = self.held.pop(key)
        self.fresh.pop(filter, None)
        row = self.table.owner(filter)
        if row is not None:
            self.lost[filter] = row.destination, row.session, self.router.now_ms + LOST_AGAIN_MS
            self.send(row.destination, [LOST, row.session, filter])
        return 0

    cdef int look(self, object key) except -1:
        found = self.held.get(key)
        if found is not None and self.table.owner(found[0]) is None:
            self.forget(key)
        return 0

    cdef int forget(self, object key) except -1:
        """Ends a claim of this node that has no row."""
        found = self.held.pop(key, None)
        if found is not None:
            self.uids.pop(found[1], None)
            self.fresh.pop(found[0], None)
            self.perform(self.core.deliver(self.core.claims.ended(key), self.router.now_ms, self.router.now_ms))
        return 0

    cdef int tick_held(self) except -1:
        cdef uint64_t now_ms = self.router.now_ms
        cdef int _
        for filter, due_ms in [*self.fresh.items()]:
            if now_ms < due_ms:
                continue
            try:
                if self.table.take_back(filter):
                    self.forget(filter_key(self.cluster, filter))
                self.fresh.pop(filter, None)
            except ExclusiveTableFull:     # tried again
                self.fresh[filter] = now_ms + FRESH_MS
        for filter, (worker, session, due_ms) in [*self.lost.items()]:
            if now_ms < due_ms:
                continue
            row, key = self.table.owner(filter), filter_key(self.cluster, filter)
            if row is None or row.session != session or key in self.held:
                del self.lost[filter]
                continue
            self.lost[filter] = worker, session, now_ms + LOST_AGAIN_MS
            self.send(worker, [LOST, session, filter])
        if not self.to_sweep and now_ms >= self.sweep_ms:
            self.sweep_ms = now_ms + <uint64_t>SWEEP_MS
            self.to_sweep = [*self.held]
        for _ in range(min(SWEEP_A_TICK, len(self.to_sweep))):
            self.look(self.to_sweep.pop())
        return 0
