"""The highest message ids that a worker has dealt with; see passed_ids.pxd."""

from cython cimport final
from libc.stdint cimport uint64_t
from libc.string cimport memset

from shardbroker.session.place cimport message_id, seen_id

from shardbroker.cluster.merge import ORIGINS_MAX

__all__ = ["PassedIds"]


@final
cdef class PassedIds:
    def __init__(self) -> None:
        memset(self.slots, 0, sizeof(self.slots))
        self.displaced = {}

    cdef int displace(self, Highest* slot, uint64_t origin) except -1:
        """Gives a slot to another process."""
        cdef uint64_t high = 0, low = 0
        if slot.origin:
            self.displaced[slot.origin] = seen_id(slot.high, slot.low)
            if len(self.displaced) > ORIGINS_MAX - SLOTS:
                del self.displaced[next(iter(self.displaced))]     # the one without messages for the longest time
        found = self.displaced.pop(origin, None)
        if found is not None:
            message_id(found, &high, &low)
        slot.origin, slot.high, slot.low = origin, high, low
        return 0

    def add(self, bytes id not None) -> None:
        """Takes the id of a message, 16 bytes."""
        self.note(int.from_bytes(id[:8], "big"), int.from_bytes(id[8:], "big"))

    def ids(self) -> list[int]:
        """Returns the ids, as numbers of SeenIds; that of the process with the latest message is not the first one."""
        cdef list found = [*self.displaced.values()]
        cdef int number
        for number in range(SLOTS):
            if self.slots[number].origin:
                found.append(seen_id(self.slots[number].high, self.slots[number].low))
        return found
