"""The permissions that one connection has looked up: needed for each PUBLISH, hence in C.

    slot = slots[serial of the topic's entry % 8]         the topics that it publishes to at present
    known[topic]                                          all results, up to acl.cache.max_size

A combination is `qos | retain << 2`: a rule may depend on both. Results are valid for one generation of the rules; a reload begins
the next one.
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
    uint8_t allowed                        # one bit per combination


cdef class AclCache:
    cdef Slot slots[SLOTS]
    cdef dict known                        # (action, topic) -> Remembered
    cdef uint32_t generation
    cdef uint32_t limit                    # topics

    # Returns whether this PUBLISH is known to be allowed. False: call look().
    cdef inline bint passes(self, uint64_t serial, uint8_t combination, uint64_t now_ms, uint32_t generation) noexcept:
        cdef Slot* slot = &self.slots[serial % SLOTS]
        return (slot.serial == serial and (slot.allowed >> combination) & 1 and slot.until_ms > now_ms
                and slot.generation == generation)

    # Returns the result for a topic as Known. If there is one, `serial` is put into a slot.
    cdef int look(self, bytes topic, bint subscribe, uint8_t combination, uint64_t now_ms, uint32_t generation, uint64_t serial) except -2
    cdef int remember(self, bytes topic, bint subscribe, uint8_t combination, bint allowed, uint64_t until_ms, uint32_t generation) except -1
