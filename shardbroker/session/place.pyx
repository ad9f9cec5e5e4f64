"""What a node of a cluster keeps with a session; see place.pxd."""

from struct import Struct

__all__ = ["MERGED", "Place"]

MERGED = Struct("<BQ")
"""A stale session in the journal's `merged`: node, number of the session there."""

cdef enum:
    US_A_MS = 1000
    COUNTER_BITS = 16                      # of a stamp, see shardbroker/cluster/clock.py
    PACKET_IDS = 65_535


cdef class Place:
    """state, generation: of the session at this node. seen: shardbroker.cluster.merge.SeenIds, or None."""

    def __init__(self, state=0, generation=0, stamp=0, clean_stamp=0, peer=0, granted=0, seen=None, merged=frozenset(), mixed=False):
        self.state = state
        self.generation = generation
        self.stamp = stamp
        self.clean_stamp = clean_stamp
        self.peer = peer
        self.granted = granted
        self.seen = seen
        self.merged = merged
        self.mixed = mixed
        self.watch()

    cdef void doubt(self) noexcept:
        self.to_release = PACKET_IDS

    cdef void connected(self) noexcept:
        self.to_release += self.asked
        self.asked = self.answered = 0
        self.released = False

    cdef void use(self) noexcept:
        self.asked -= 1
        if self.answered:
            self.answered -= 1
        if not self.asked and not self.to_release:
            self.mixed = False

    cdef int watch(self) except -1:
        self.watched = self.seen is not None or self.state != 0
        return 0


cdef object seen_id(uint64_t id_high, uint64_t id_low):
    cdef uint64_t stamp = id_high // US_A_MS << COUNTER_BITS | id_high % US_A_MS
    return <object>stamp << 64 | id_low


cdef int message_id(object seen, uint64_t* id_high, uint64_t* id_low) except? -2:
    cdef uint64_t stamp = seen >> 64
    cdef uint64_t us = stamp & (1 << COUNTER_BITS) - 1
    if us >= US_A_MS:
        return -1
    id_high[0] = (stamp >> COUNTER_BITS) * US_A_MS + us
    id_low[0] = seen & 0xFFFFFFFFFFFFFFFF
    return 0
