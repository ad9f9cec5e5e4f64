"""The highest message id of each process that this worker has dealt with, kept while sessions move between nodes.

    record of a ring -> note()        export of a session, a cycle of the journal -> ids()

A session that moves takes them along (shardbroker/cluster/merge.py `Passed`): its next node leaves out what was delivered or queued
here. `note` is called once for each record, so it costs a few instructions: the processes with the latest messages are in an array, by
a hash; those that another one has displaced are in a dict.
"""
from cython cimport final
from libc.stdint cimport uint64_t

cdef enum:
    SLOTS = 256                            # a power of two: more than the workers that a node usually hears of
    SEQUENCE_BITS = 16                     # of an id, below its process: see Router.stamp


cdef struct Highest:
    uint64_t origin                        # process: upper 48 bits of the second half of an id; 0: the slot is free
    uint64_t high, low                     # the id


@final
cdef class PassedIds:
    cdef Highest slots[SLOTS]
    cdef dict displaced                    # process -> id as a number of SeenIds

    cdef int displace(self, Highest* slot, uint64_t origin) except -1

    cdef inline int note(self, uint64_t high, uint64_t low) except -1:
        cdef uint64_t origin = low >> SEQUENCE_BITS
        cdef Highest* slot = &self.slots[(origin ^ origin >> 32) & (SLOTS - 1)]
        if slot.origin != origin:
            self.displace(slot, origin)
        if high > slot.high or (high == slot.high and low > slot.low):
            slot.high, slot.low = high, low
        return 0
