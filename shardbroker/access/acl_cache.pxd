"""What one connection has found out that it may publish: looked at for every PUBLISH, so in C.

    slot = slots[serial of the topic's entry % 8]         the topics that it publishes to just now
    known[topic]                                          all that it remembers, up to acl.cache.max_size

A combination is `qos | retain << 2`: a rule may depend on both. What is remembered holds for one generation of the rules; a reload
begins the next one.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    SLOTS = 8

cdef enum Known:
    UNKNOWN = -1
    DENIED = 0
    ALLOWED = 1


cdef struct Slot:
    uint64_t serial                        # of a TopicEntry, 0: empty
    uint64_t until_ms
    uint32_t generation
    uint8_t allowed                        # a bit for each combination


cdef class AclCache:
    cdef Slot slots[SLOTS]
    cdef dict known                        # (action, topic) -> Remembered
    cdef uint32_t generation
    cdef uint32_t limit                    # topics

    # Whether this PUBLISH is known to be allowed. False: ask look().
    cdef inline bint passes(self, uint64_t serial, uint8_t combination, uint64_t now_ms, uint32_t generation) noexcept:
        cdef Slot* slot = &self.slots[serial % SLOTS]
        return (slot.serial == serial and (slot.allowed >> combination) & 1 and slot.until_ms > now_ms
                and slot.generation == generation)

    # What is remembered of a topic: Known. `serial` is put into a slot if there is one.
    cdef int look(self, bytes topic, bint subscribe, uint8_t combination, uint64_t now_ms, uint32_t generation, uint64_t serial) except -2
    cdef int remember(self, bytes topic, bint subscribe, uint8_t combination, bint allowed, uint64_t until_ms, uint32_t generation) except -1
