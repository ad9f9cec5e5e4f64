"""Distinguishes late messages from duplicates; see tracker.pxd.

Numbers are expected to rise by one. A number below the highest seen is disordered if it is new, a duplicate if it is not. A window
bounds how many messages are under way, not their distance: while one member of a group is slow, the publisher continues with the
others. So the bits grow with that distance. At TRACK_BITS_MAX the oldest missing number is given up; if it arrives later, it counts
as a duplicate.
"""

from libc.stdlib cimport calloc, free

__all__ = ["Sequence"]


cdef int tracker_init(Tracker* tracker, uint32_t window, uint32_t most=TRACK_BITS_MAX) except -1:
    tracker.words = tracker.words_max = 1
    while tracker.words_max * 64 < most:
        tracker.words_max *= 2
    while tracker.words * 64 < window and tracker.words < tracker.words_max:
        tracker.words *= 2
    tracker.low = tracker.next = 0
    tracker.unique = tracker.duplicates = tracker.disordered = 0
    tracker.bits = <uint64_t*>calloc(tracker.words, sizeof(uint64_t))
    if tracker.bits == NULL:
        raise MemoryError
    return 0


cdef void tracker_free(Tracker* tracker) noexcept:
    free(tracker.bits)
    tracker.bits = NULL


cdef inline bint is_set(Tracker* tracker, uint32_t seq) noexcept:
    return tracker.bits[(seq >> 6) & (tracker.words - 1)] >> (seq & 63) & 1


cdef inline void put(Tracker* tracker, uint32_t seq, bint value) noexcept:
    cdef uint64_t* word = &tracker.bits[(seq >> 6) & (tracker.words - 1)]
    cdef uint64_t bit = <uint64_t>1 << (seq & 63)
    word[0] = word[0] | bit if value else word[0] & ~bit


cdef void make_room(Tracker* tracker, uint32_t seq) noexcept:
    """Adds bits up to `seq`. At the limit, or if memory is short, the oldest numbers are given up."""
    cdef Tracker larger = tracker[0]
    cdef uint32_t number
    while seq - tracker.low >= larger.words * 64 and larger.words < larger.words_max:
        larger.words *= 2
    larger.bits = NULL if larger.words == tracker.words else <uint64_t*>calloc(larger.words, sizeof(uint64_t))
    if larger.bits != NULL:
        for number in range(tracker.low, tracker.next):
            if is_set(tracker, number):
                put(&larger, number, True)
        free(tracker.bits)
        tracker[0] = larger
    if seq - tracker.low >= tracker.words * 64:
        number = seq - tracker.words * 64 + 1
        while tracker.low < number and tracker.low < tracker.next:
            put(tracker, tracker.low, False)
            tracker.low += 1
        tracker.low = number
        tracker.next = max(tracker.next, number)


cdef bint tracker_see(Tracker* tracker, uint32_t seq) noexcept:
    if seq < tracker.low:
        tracker.duplicates += 1
        return False
    if seq - tracker.low >= tracker.words * 64:
        make_room(tracker, seq)
    if seq >= tracker.next:
        tracker.next = seq + 1
    elif is_set(tracker, seq):
        tracker.duplicates += 1
        return False
    else:
        tracker.disordered += 1
    put(tracker, seq, True)
    tracker.unique += 1
    while tracker.low < tracker.next and is_set(tracker, tracker.low):
        put(tracker, tracker.low, False)
        tracker.low += 1
    return True


cdef class Sequence:
    """A tracker for tests and slow paths. `window`: messages that may be under way; `most`: longest history, in messages."""
    cdef Tracker tracker

    def __cinit__(self, uint32_t window, uint32_t most=TRACK_BITS_MAX):
        tracker_init(&self.tracker, window, most)

    def __dealloc__(self):
        tracker_free(&self.tracker)

    def see(self, uint32_t seq) -> bool:
        """Records a number; returns whether it is new."""
        return tracker_see(&self.tracker, seq)

    @property
    def counts(self) -> tuple:
        """Returns (unique, duplicates, disordered)."""
        return self.tracker.unique, self.tracker.duplicates, self.tracker.disordered
