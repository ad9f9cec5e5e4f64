"""Acknowledgements that wait; see held_acks.pxd."""

from cython cimport final
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

__all__ = ["HeldAcks"]

cdef enum:
    SLOTS_LEAST = 32


@final
cdef class HeldAcks:
    def __cinit__(self):
        self.sources = {}

    def __dealloc__(self):
        free(self.slots)

    cdef int add(self, uint64_t now_ms, uint8_t first, uint16_t packet_id, uint8_t reason_code) except -1:
        cdef HeldAck* larger
        cdef uint32_t wanted
        if self.end == self.capacity:
            if self.first > self.capacity // 2:
                memmove(self.slots, self.slots + self.first, self.count() * sizeof(HeldAck))
                self.end -= self.first
                self.first = 0
            else:
                wanted = max(2 * self.capacity, <uint32_t>SLOTS_LEAST)
                larger = <HeldAck*>realloc(self.slots, wanted * sizeof(HeldAck))
                if larger == NULL:
                    raise MemoryError(f"no memory for {wanted} acknowledgements")
                self.slots = larger
                self.capacity = wanted
        self.slots[self.end] = HeldAck(since_ms=now_ms, packet_id=packet_id, first=first, reason_code=reason_code)
        self.end += 1
        return 0

    cdef HeldAck take(self) noexcept:
        self.first += 1
        return self.slots[self.first - 1]
