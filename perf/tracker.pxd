from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    TRACK_BITS_MAX = 1 << 20               # history for distinguishing late from duplicate, messages (128 KB)


# What one subscriber, or a group of them, has received of one publisher.
#
#     0 .. low - 1        all seen, or given up
#     low .. next - 1     seen where bits[number % (words * 64)] is set; low itself is not seen
#     next ..             not seen; their bits are not set
cdef struct Tracker:
    uint32_t low
    uint32_t next                          # highest sequence number seen, plus one
    uint64_t unique, duplicates, disordered
    uint32_t words, words_max              # words of `bits`, and the most that it may grow to: powers of two
    uint64_t* bits

# `window`: numbers that may be under way. The distance of the oldest from the newest is not bounded by it: the bits grow to `most`.
cdef int tracker_init(Tracker* tracker, uint32_t window, uint32_t most=*) except -1
cdef void tracker_free(Tracker* tracker) noexcept
# Records a number; True if it is new.
cdef bint tracker_see(Tracker* tracker, uint32_t seq) noexcept
