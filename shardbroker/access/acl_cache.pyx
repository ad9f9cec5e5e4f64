"""The permissions of one connection; see acl_cache.pxd."""

__all__ = ["AclCache"]


cdef class Remembered:
    cdef uint64_t until_ms
    cdef uint8_t known, allowed            # one bit per combination


cdef class AclCache:
    def __init__(self, uint32_t limit):
        self.known = {}
        self.limit = limit

    cdef int look(self, bytes topic, bint subscribe, uint8_t combination, uint64_t now_ms, uint32_t generation, uint64_t serial) except -2:
        cdef Remembered found
        cdef Slot* slot
        if self.generation != generation:
            self.known.clear()
            self.generation = generation
            return UNKNOWN
        found = self.known.get((subscribe, topic)) if subscribe else self.known.get(topic)
        if found is None or found.until_ms <= now_ms or not (found.known >> combination) & 1:
            return UNKNOWN
        if not (found.allowed >> combination) & 1:
            return DENIED
        if serial:
            slot = &self.slots[serial % SLOTS]
            slot.serial = serial
            slot.until_ms = found.until_ms
            slot.generation = generation
            slot.allowed = found.allowed
        return ALLOWED

    cdef int remember(self, bytes topic, bint subscribe, uint8_t combination, bint allowed, uint64_t until_ms, uint32_t generation) except -1:
        """Stores a result. until_ms: all ones for a result that only a reload can change."""
        cdef Remembered found
        cdef object key = (True, topic) if subscribe else topic
        if self.generation != generation:
            self.known.clear()
            self.generation = generation
        found = self.known.get(key)
        if found is None or found.until_ms != until_ms:
            while len(self.known) >= self.limit:
                del self.known[next(iter(self.known))]       # the oldest
            found = Remembered.__new__(Remembered)
            found.until_ms = until_ms
            self.known[key] = found
        found.known |= 1 << combination
        if allowed:
            found.allowed |= 1 << combination
        else:
            found.allowed &= ~(1 << combination)
        return 0
