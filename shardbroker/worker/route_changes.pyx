"""Routes that wait for their commit; see route_changes.pxd."""

from cython cimport final

from shm.routes import RouteTableFull

__all__ = ["RouteChanges"]

cdef enum:
    PROMPT_REMOVALS = 4
# Routes of sessions that end are removed at once if they are few. When many end, their routes remain for REMOVAL_DELAY_MS and are removed
# in one transaction, for a tenth of the price; until then other workers send messages here that find no subscriber.

REMOVALS_A_PASS = 512
"""Routes that one pass takes out of the table: about 2 ms, when thousands of clients go at once."""


@final
cdef class RouteChanges:
    """context: clock. routes: the table of all workers. own_destination: where the routes of this worker lead."""

    def __init__(self, WorkerContext context not None, TopicResolver resolver not None, routes, long own_destination):
        self.context = context
        self.resolver = resolver
        self.routes = routes
        self.own_destination = own_destination
        self.changes = {}

    def replace_all(self) -> None:
        """Replaces the routes to this worker by those of its recovered sessions, without a moment in which one is missing."""
        wanted = [(True, filter, self.own_destination, group, member) for filter, group, member in self.changes]
        self.changes = {}
        self.due_ms = 0
        self.routes.replace(self.own_destination, wanted)

    def leave_all(self) -> None:
        """The table has the routes of the sessions that were entered: the process before this one had committed all of its changes."""
        self.changes = {}
        self.due_ms = 0

    cdef int note(self, Subscription subscription, bint add, uint64_t delay_ms) except -1:
        cdef uint64_t now_ms = self.context.now_ms
        cdef bint shared = subscription.group is not None
        cdef tuple route = (
            subscription.filter, subscription.group if shared else b"", subscription.subscriber.key if shared else 0)
        before = self.changes.get(route)
        if before is not None and before != add:
            del self.changes[route]        # the table is right as it is
            return 0
        self.changes[route] = add
        if shared:
            delay_ms = 0                   # a member that is gone would be chosen
        elif delay_ms and self.few_removals():
            delay_ms = 0
        if not self.due_ms or self.due_ms > now_ms + delay_ms:
            self.due_ms = now_ms + delay_ms
        return 0

    cdef bint few_removals(self) noexcept:
        if self.context.now_ms >= self.removals_since_ms + <uint64_t>REMOVAL_DELAY_MS:
            self.removals_since_ms = self.context.now_ms
            self.removals = 0
        self.removals += 1
        return self.removals <= <uint32_t>PROMPT_REMOVALS

    cdef bint commit(self) except -1:
        """All changes are one transaction; the epochs follow it."""
        cdef dict changes = self.changes
        cdef long own = self.own_destination
        cdef list adds = [], removals = []
        cdef bytes filter
        self.changes = {}
        self.due_ms = 0
        for (filter, group, member), add in changes.items():
            if add:
                adds.append((add, filter, own, group, member))
            elif len(removals) < REMOVALS_A_PASS:
                removals.append((add, filter, own, group, member))
            else:
                self.changes[(filter, group, member)] = False
                self.due_ms = self.context.now_ms
        try:
            position = self.routes.update(removals + adds)
        except RouteTableFull:
            self.full_tables += 1
            for _, filter, _, group, member in removals:
                self.changes[(filter, group, member)] = False
            self.due_ms = self.context.now_ms + REMOVAL_DELAY_MS if self.changes else 0
            return True
        if position:
            self.position = max(self.position, <uint64_t>position)
        for change in changes:
            if change not in self.changes:
                self.resolver.publish_change(<bytes>change[0])
        return False
