"""Letting go what is safe; see gate.pxd."""

from collections import deque
from heapq import heappop, heappush

from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint64_t

from shm.posix cimport write
from shm.ring cimport Inbox, Ring

__all__ = ["SyncGate"]

cdef enum:
    LANE_BITS = 64                         # of a guard: workers beyond that share theirs, and are waited for without need


cdef class OutputFence:
    pass


cdef class Group:
    def __init__(self):
        self.marks = {}
        self.heads = {}
        self.taken = {}
        self.deeds = []


cdef class SyncGate:
    """writer: the worker's journal, with syncs. lanes, outboxes: the loop's. doorbells: eventfd of each process."""

    def __init__(self, Writer writer not None, retained, list lanes not None, list outboxes not None, tuple doorbells not None, int workers):
        self.writer = writer
        self.retained = retained
        self.lanes = lanes
        self.outboxes = outboxes
        self.doorbells = doorbells
        self.workers = workers
        self.groups = deque()
        self.waiting = {}
        self.held_heads = {}
        self.noted = set()
        self.deeds = []

    cdef bint is_safe(self) except -1:
        """Whether all that happened until now is on the disk, as far as this worker is concerned."""
        return not self.groups and self.writer.durable == self.writer.next_sequence and not self.is_retaining()

    cdef bint is_retaining(self) except -1:
        return self.retained is not None and self.retained.done != self.retained.asked

    cdef Group open_group(self):
        """The group of what happens now. The sync that the newest one waits for may not have been asked for yet: then it is that."""
        cdef Group group = self.last
        if not self.groups or (group.position != self.writer.next_sequence and group.position <= self.writer.asked_end):
            group = self.last = Group()
            self.groups.append(group)
        group.position = self.writer.next_sequence
        group.retained = self.retained.asked if self.retained is not None else 0
        return group

    # --- what comes in --------------------------------------------------------------------------------------------------------

    cdef size_t may_send(self, OutputFence guard, size_t pending, bint waits) except? 0:
        cdef uint64_t end = guard.sent + pending
        cdef tuple needs
        cdef Group group
        if end == guard.marked:
            return <size_t>(guard.cleared - guard.sent)
        if not waits and guard.cleared == guard.marked:
            guard.cleared = guard.marked = end
            return pending
        needs = self.needs_of(guard.lanes)
        guard.lanes = 0
        guard.marked = end
        if self.is_safe():
            self.owe(guard, end, needs)
        else:
            group = self.open_group()
            before = group.marks.get(guard)
            if before is not None and before[1]:
                # Each lane once, with its newest position.
                needs = tuple((dict(before[1]) | dict(needs)).items())
            group.marks[guard] = (end, needs)
        return <size_t>(guard.cleared - guard.sent)

    cdef tuple needs_of(self, uint64_t lanes):
        """(process, position) for each worker of these: how far its disk must be."""
        cdef list needs
        cdef Ring lane
        cdef int process
        if lanes == 0:
            return ()
        needs = []
        for process in range(self.workers):
            if lanes >> (process % LANE_BITS) & 1 and self.lanes[process] is not None:
                lane = self.lanes[process]
                needs.append((process, lane.local_head))
        return tuple(needs)

    cdef bint holds_head(self, long process, Ring lane) except -1:
        cdef Group group
        if process not in self.noted and process not in self.held_heads:
            return False
        self.noted.discard(process)
        group = self.open_group()
        if process not in group.heads:
            self.held_heads[process] = self.held_heads.get(process, 0) + 1
        group.heads[process] = lane.local_head
        return True

    cdef int taken(self, int producer, Ring ring) except -1:
        if self.is_safe():
            if ring.secure(ring.taken()):
                self.ring(producer)
        else:
            self.open_group().taken[producer, ring] = ring.taken()
        return 0

    def when_arrived(self, deed) -> None:
        """Calls it once all that has happened until now is safe here, and what was forwarded there."""
        self.open_group().deeds.append(deed)

    def all_arrived(self) -> bool:
        """Whether nothing is under way to anybody's disk."""
        return self.is_safe() and self.blocked(self.needs_of(<uint64_t>-1)) < 0

    # --- what goes out --------------------------------------------------------------------------------------------------------

    cdef int advance(self) except -1:
        cdef Group group
        while self.groups:
            group = self.groups[0]
            if group.position > self.writer.durable or (self.retained is not None and group.retained > <uint64_t>self.retained.done):
                break
            self.groups.popleft()
            self.complete(group)
        for process in list(self.waiting):
            self.look_at_lane(process)
        while self.deeds and self.blocked(self.deeds[0][0]) < 0:
            self.deeds.pop(0)[1]()
        return 0

    cdef int complete(self, Group group) except -1:
        """Its sync is done."""
        cdef Ring lane
        cdef long process
        for process, position in group.heads.items():
            lane = self.lanes[process]
            lane.commit_to(position)
            self.held_heads[process] -= 1
            if not self.held_heads[process]:
                del self.held_heads[process]
            if (<Inbox>self.outboxes[process]).must_ring():
                self.ring(<int>process)
        for (producer, lane), position in group.taken.items():
            if lane.secure(position):
                self.ring(producer)
        for guard, (end, needs) in group.marks.items():
            self.owe(<OutputFence>guard, end, needs)
        for deed in group.deeds:
            self.deeds.append((self.needs_of(<uint64_t>-1), deed))
        return 0

    cdef int owe(self, OutputFence guard, uint64_t end, tuple needs) except -1:
        """This worker is ready to let it go. Are the others, and is what came before it gone?"""
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
        """Place of the first that is not met, -1 if there is none. Whoever it is will ring."""
        cdef Ring lane
        cdef int place = 0
        for process, position in needs:
            lane = self.lanes[process]
            if not lane.is_secure(position):
                return place
            place += 1
        return -1

    cdef int wait_for(self, OutputFence guard, tuple need) except -1:
        self.serial += 1
        heappush(self.waiting.setdefault(need[0], []), (need[1], self.serial, guard))
        return 0

    cdef int look_at_lane(self, int process) except -1:
        cdef list heap = self.waiting[process]
        cdef Ring lane = self.lanes[process]
        cdef OutputFence guard
        cdef int place
        while heap and lane.is_secure(heap[0][0]):
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
            del self.waiting[process]
        return 0

    cdef int ring(self, int process) except -1:
        cdef uint64_t one = 1
        if write(self.doorbells[process], &one, sizeof(one)) < 0 and errno != EAGAIN:
            raise OSError(errno, f"eventfd of process {process}")
        return 0
