from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    TRACK_BITS = 16384                     # as far back as late and double can be told apart, messages: plan.WINDOW_MAX


# What one subscriber has got of its publisher. bits[seq % TRACK_BITS] is right for next - TRACK_BITS <= seq < next.
cdef struct Tracker:
    uint32_t next                          # highest sequence number seen, and one
    uint64_t unique, duplicates, disordered
    uint32_t words                         # of `bits`: a power of two
    uint64_t* bits

cdef int tracker_init(Tracker* tracker, uint32_t window) except -1
cdef void tracker_free(Tracker* tracker) noexcept
# True the first time that this number comes.
cdef bint tracker_see(Tracker* tracker, uint32_t seq) noexcept
