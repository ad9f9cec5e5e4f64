"""Exclusive subscriptions of a worker; see exclusive.pxd."""

from cython cimport final

from shardbroker.pubsub.subscriptions cimport OPTION_EXCLUSIVE, Subscription

from shardbroker.logs.phrases import log_line
from shardbroker.stores.exclusive import Claim, ExclusiveTableFull

__all__ = ["ExclusiveSubscriptions"]

RELEASES_A_PASS = 512
"""Exclusive subscriptions released in one transaction: about 2 ms, when many have waited for a disk that refuses."""

RELEASE_RETRY_MS = 100
"""Between two tries to release exclusive subscriptions while their table is full."""


@final
cdef class ExclusiveSubscriptions:
    """context: clock and log. by_key: session key -> Session. own_destination: of the worker, whose claims these are."""

    def __init__(self, WorkerContext context not None, dict by_key not None, long own_destination):
        self.context = context
        self.by_key = by_key
        self.own_destination = own_destination
        self.releasing = {}

    def take_over(self, owners, sessions) -> list[Claim]:
        """Writes the claims of these sessions into `owners`, in place of all older ones of this worker. Returns those that another
        session has got meanwhile."""
        cdef Session session
        cdef Subscription subscription
        claims = []
        for session in sessions:
            for subscription in session.all_subscriptions():
                if subscription.flags & OPTION_EXCLUSIVE:
                    claims.append(Claim(subscription.filter, self.own_destination, session.key, session.client_id))
        return owners.replace(self.own_destination, claims)

    cdef int claim(self, object channel, Session session, bytes filter) except -1:
        if self.cluster is not None:
            return self.cluster.claim(channel, filter)
        wanted = Claim(filter, self.own_destination, session.key, session.client_id)
        try:
            if not self.owners.claim(wanted, self.ended_holder(filter)):
                return CLAIM_REFUSED
        except ExclusiveTableFull:
            return CLAIM_REFUSED
        self.releasing.pop(filter, None)   # the same journal has both, in this order
        return CLAIM_GRANTED

    cdef uint64_t ended_holder(self, bytes filter) except? 0:
        cdef Session holder
        found = self.owners.owner(filter)
        if found is None or found.destination != self.own_destination:
            return 0
        holder = self.by_key.get(found.session)
        # Its many subscriptions are still being taken out, or the release waits for the journal.
        return found.session if holder is None or holder.ended or filter in self.releasing else 0

    cdef int end(self, uint64_t session, bytes filter) except -1:
        self.releasing.pop(filter, None)   # its place is behind those that have ended before
        self.releasing[filter] = (session, None)
        return 0

    cdef int release_durable(self, uint64_t next_sequence, uint64_t durable) except -1:
        """A worker that releases a filter before its journal has the end, and is killed, would hold it again after its recovery, beside
        the client that was granted it meanwhile."""
        cdef list due = []
        for filter in reversed(self.releasing):
            session, position = self.releasing[filter]
            if position is not None:
                break
            self.releasing[filter] = (session, next_sequence)
        if self.context.now_ms < self.due_ms:
            return 0
        for filter, (session, position) in self.releasing.items():
            if position > durable or len(due) >= RELEASES_A_PASS:
                break
            due.append((filter, session))
        self.due_ms = 0
        return self.release(due) if due else 0

    cdef int release(self, list due) except -1:
        """Releases these in one transaction; they are kept for another try while the table has no room for the change."""
        try:
            self.owners.release(due)
        except ExclusiveTableFull as error:
            if not self.refused:
                self.context.log("error", log_line("exclusive subscription not released", filter=due[0][0], reason=error))
            self.refused = True
            self.due_ms = self.context.now_ms + RELEASE_RETRY_MS
            return 0
        self.refused = False
        for filter, _ in due:
            del self.releasing[filter]
        if len(due) >= RELEASES_A_PASS:
            self.due_ms = self.context.now_ms + 1
        return 0
