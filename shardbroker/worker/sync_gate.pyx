"""Releases output once it is safe; see sync_gate.pxd."""

from collections import deque
from heapq import heappop, heappush

from cython cimport final
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint64_t

from shardbroker.session.client_output cimport ClientOutput
from shm.posix cimport write

__all__ = ["SyncGate"]


@final
cdef class OutputFence:
    pass


@final
cdef class Group:
    def __init__(self):
        self.marks = {}
        self.heads = {}
        self.taken = {}
        self.deeds = []


@final
cdef class SyncGate:
    """writer: the worker's journal, with syncs. outlets, nodes: of RingOutlets. doorbells: eventfd of each process."""

    def __init__(self, Writer writer not None, Outlet store, list outlets not None, dict nodes not None, tuple doorbells not None, int workers):
        self.writer = writer
        self.store = store
        self.outlets = outlets
        self.nodes = nodes
        self.doorbells = doorbells
        self.workers = workers
        self.groups = deque()
        self.waiting = {}
        self.held_heads = {}
        self.noted = set()
        self.deeds = []

    cdef bint is_safe(self) except -1:
        """Whether everything up to now is on the disk, as far as this worker is concerned."""
        return not self.groups and self.writer.durable == self.writer.next_sequence and not self.is_retaining()

    cdef bint is_retaining(self) except -1:
        return self.store is not None and not self.store.secured(self.store.end())

    cdef Group open_group(self):
        """Returns the group of the current pass: the newest one if its sync was not requested yet, else a new one."""
        cdef Group group = self.last
        if not self.groups or (group.position != self.writer.next_sequence and group.position <= self.writer.asked_end):
            group = self.last = Group()
            self.groups.append(group)
        group.position = self.writer.next_sequence
        group.stored = self.store.end() if self.store is not None else 0
        return group

    # --- input ----------------------------------------------------------------------------------------------------------------

    cdef size_t may_send(self, OutputFence guard, size_t pending, bint waits) except? 0:
        cdef uint64_t end = guard.sent + pending
        cdef tuple needs
        cdef Group group
        if end == guard.marked:
            return <size_t>(guard.cleared - guard.sent)
        if not waits and guard.cleared == guard.marked:
            guard.cleared = guard.marked = end
            return pending
        needs = self.needs_of(guard.forwarded_to)
        guard.forwarded_to = 0
        guard.marked = end
        if self.is_safe():
            self.owe(guard, end, needs)
        else:
            group = self.open_group()
            before = group.marks.get(guard)
            if before is not None and before[1]:
                # Each outlet once, with its newest end.
                needs = tuple((dict(before[1]) | dict(needs)).items())
            group.marks[guard] = (end, needs)
        return <size_t>(guard.cleared - guard.sent)

    cdef tuple needs_of(self, uint64_t destinations):
        """Returns (outlet, end) for each of these workers and nodes: how far its disk must be."""
        cdef list needs
        cdef Outlet outlet
        cdef int worker
        if destinations == 0:
            return ()
        needs = []
        for worker in range(self.workers):
            outlet = <Outlet>self.outlets[worker]
            if outlet is not None and destinations & outlet.bit:
                needs.append((outlet, outlet.end()))
        for outlet in self.nodes.values():
            if destinations & outlet.bit:
                needs.append((outlet, outlet.end()))
        return tuple(needs)

    cdef bint holds(self, Outlet outlet) except -1:
        cdef Group group
        if outlet not in self.noted and outlet not in self.held_heads:
            return False
        self.noted.discard(outlet)
        group = self.open_group()
        if outlet not in group.heads:
            self.held_heads[outlet] = self.held_heads.get(outlet, 0) + 1
        group.heads[outlet] = outlet.end()
        return True

    cdef int taken(self, int producer, Ring ring) except -1:
        if self.is_safe():
            if ring.secure(ring.taken()):
                self.ring(producer)
        else:
            self.open_group().taken[producer, ring] = ring.taken()
        return 0

    def when_arrived(self, deed) -> None:
        """Calls `deed` once everything up to now is safe here, and what was forwarded is safe at its destinations."""
        self.open_group().deeds.append(deed)

    def all_arrived(self) -> bool:
        """Whether nothing is under way to any disk."""
        return self.is_safe() and self.blocked(self.needs_of(<uint64_t>-1)) < 0

    cdef bint is_at_rest(self) except -1:
        if self.noted or self.held_heads or self.waiting or self.deeds:
            return False
        return self.is_safe() and self.blocked(self.needs_of(<uint64_t>-1)) < 0

    cdef OutputFence fence(self, ClientOutput link):
        cdef OutputFence made = OutputFence.__new__(OutputFence)
        made.link = link
        return made

    # --- output ---------------------------------------------------------------------------------------------------------------

    cdef int advance(self) except -1:
        cdef Group group
        while self.groups:
            group = self.groups[0]
            if group.position > self.writer.durable or (self.store is not None and not self.store.secured(group.stored)):
                break
            self.groups.popleft()
            self.complete(group)
        for outlet in list(self.waiting):
            self.release_waiting(<Outlet>outlet)
        while self.deeds and self.blocked(self.deeds[0][0]) < 0:
            self.deeds.pop(0)[1]()
        return 0

    cdef int complete(self, Group group) except -1:
        """The sync of the group is done."""
        cdef Ring lane
        for outlet, end in group.heads.items():
            self.held_heads[outlet] -= 1
            if not self.held_heads[outlet]:
                del self.held_heads[outlet]
            (<Outlet>outlet).commit_to(end)
        for (producer, lane), position in group.taken.items():
            if lane.secure(position):
                self.ring(producer)
        for guard, (end, needs) in group.marks.items():
            self.owe(<OutputFence>guard, end, needs)
        for deed in group.deeds:
            self.deeds.append((self.needs_of(<uint64_t>-1), deed))
        return 0

    cdef int owe(self, OutputFence guard, uint64_t end, tuple needs) except -1:
        """This worker has secured the output up to `end`; it is cleared once other workers have, and behind earlier output."""
        cdef int place
        if guard.owed is not None:
            guard.owed.append((end, needs))
            return 0
        place = self.blocked(needs)
        if place >= 0:
            guard.owed = deque(((end, needs),))
            return self.wait_for(guard, needs[place])
        guard.cleared = end
        if guard.link is not None:
            guard.link.touch()
        return 0

    cdef int blocked(self, tuple needs) except? -2:
        """Returns the place of the first need that is not met, -1 without one. The doorbell rings when it is met."""
        cdef int place = 0
        for outlet, end in needs:
            if not (<Outlet>outlet).secured(end):
                return place
            place += 1
        return -1

    cdef int wait_for(self, OutputFence guard, tuple need) except -1:
        self.serial += 1
        heappush(self.waiting.setdefault(need[0], []), (need[1], self.serial, guard))
        return 0

    cdef int release_waiting(self, Outlet outlet) except -1:
        cdef list heap = self.waiting[outlet]
        cdef OutputFence guard
        cdef int place
        while heap and outlet.secured(heap[0][0]):
            guard = heappop(heap)[2]
            while guard.owed:
                end, needs = guard.owed[0]
                place = self.blocked(needs)
                if place >= 0:
                    self.wait_for(guard, needs[place])
                    break
                guard.owed.popleft()
                guard.cleared = end
            if not guard.owed:
                guard.owed = None
            if guard.link is not None:
                guard.link.touch()
        if not heap:
            del self.waiting[outlet]
        return 0

    cdef int ring(self, int process) except -1:
        cdef uint64_t one = 1
        if write(self.doorbells[process], &one, sizeof(one)) < 0 and errno != EAGAIN:
            raise OSError(errno, f"eventfd of process {process}")
        return 0
