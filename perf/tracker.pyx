"""Telling messages that are late from messages that come twice; see tracker.pxd.

Numbers are expected to rise by one. A number below the highest seen is disordered if it is new, a duplicate if it is not.
What is older than the bits reach counts as a duplicate: with a window within plan.WINDOW_MAX it can be nothing else.
"""

from libc.stdlib cimport calloc, free

__all__ = ["Sequence"]


cdef int tracker_init(Tracker* tracker, uint32_t window) except -1:
    tracker.words = 1
    while tracker.words * 64 < window and tracker.words * 64 < TRACK_BITS:
        tracker.words *= 2
    tracker.next = 0
    tracker.unique = tracker.duplicates = tracker.disordered = 0
    tracker.bits = <uint64_t*>calloc(tracker.words, sizeof(uint64_t))
    if tracker.bits == NULL:
        raise MemoryError
    return 0


cdef void tracker_free(Tracker* tracker) noexcept:
    free(tracker.bits)
    tracker.bits = NULL


cdef bint tracker_see(Tracker* tracker, uint32_t seq) noexcept:
    cdef uint32_t words = tracker.words, skipped
    cdef uint64_t bit = <uint64_t>1 << (seq & 63)
    cdef uint64_t* word = &tracker.bits[(seq >> 6) & (words - 1)]
    if seq >= tracker.next:
        for skipped in range(tracker.next, seq if seq - tracker.next < words * 64 else tracker.next + words * 64):
            tracker.bits[(skipped >> 6) & (words - 1)] &= ~(<uint64_t>1 << (skipped & 63))
        tracker.next = seq + 1
    elif tracker.next - seq > words * 64 or word[0] & bit:
        tracker.duplicates += 1
        return False
    else:
        tracker.disordered += 1
    word[0] |= bit
    tracker.unique += 1
    return True


cdef class Sequence:
    """A tracker for tests and slow paths. `window`: messages that may be under way."""
    cdef Tracker tracker

    def __cinit__(self, uint32_t window):
        tracker_init(&self.tracker, window)

    def __dealloc__(self):
        tracker_free(&self.tracker)

    def see(self, uint32_t seq) -> bool:
        """Whether this number is new."""
        return tracker_see(&self.tracker, seq)

    @property
    def counts(self) -> tuple:
        """(unique, duplicates, disordered)"""
        return self.tracker.unique, self.tracker.duplicates, self.tracker.disordered
