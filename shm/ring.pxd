"""One lane of an inbox: a ring for one producer and one consumer process, in a shared segment.

    head       written by the producer: bytes ever committed
    consumed   written by the consumer: bytes ever taken; the producer may reuse the space before it
    durable    written by the consumer at level `machine`: bytes whose messages are on its disk; behind `consumed`, or equal to it

A record is `uint32 size, uint32 reserved, payload`, padded to 8 bytes, never split: a record that would cross the end is preceded
by a filler. Cursors are 64-bit byte counts that never wrap, each on a cache line of its own. A producer killed before `commit`
leaves nothing behind; a consumer killed before `release` finds its records again.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    RECORD_HEADER = 8                      # size and reserved word before each payload
    FILLER = 0xFFFFFFFF                    # size of a record that only fills the end of the data area

cdef inline uint64_t padded(uint32_t size) noexcept:
    return (<uint64_t>size + RECORD_HEADER + 7) & ~<uint64_t>7


cdef class Ring:
    cdef uint8_t* base                 # start of the lane in the mapping; layout in ring.pyx
    cdef uint64_t capacity             # bytes of the data area, a power of two
    cdef uint64_t local_head           # producer: head including what is reserved
    cdef uint64_t seen_consumed        # producer: last value read of `consumed`
    cdef uint64_t local_tail           # consumer: next byte to read
    cdef uint64_t seen_head            # consumer: last value read of `head`
    cdef object owner                  # keeps the mapping alive

    # Largest payload of a record: a quarter of the capacity. Larger ones are spilled.
    cdef uint32_t max_record(self) noexcept
    # Producer. Is there room for a payload of `size` bytes? If not, marks the lane as wanted, so that the consumer rings back.
    cdef bint has_room(self, uint32_t size) noexcept
    # Producer. Returns the space for a payload of `size` bytes, NULL without room. A commit may cover several reservations.
    cdef uint8_t* reserve(self, uint32_t size) noexcept
    # Producer. Publishes all reserved records.
    cdef void commit(self) noexcept
    # Producer. Publishes the reserved records up to a position.
    cdef void commit_to(self, uint64_t position) noexcept
    # Producer. Is everything up to a position on the consumer's disk? If not, marks the lane as awaited: the consumer rings back.
    cdef bint is_secure(self, uint64_t position) noexcept
    cdef uint64_t on_disk(self) noexcept       # producer: position up to which everything is on the consumer's disk
    cdef uint64_t released(self) noexcept      # producer: position before which the consumer has returned the room
    # Consumer. Everything up to a position is on the disk; True if the producer waits for that and must be rung.
    cdef bint secure(self, uint64_t position) noexcept
    # Consumer. Returns the next payload and its size, NULL if the lane is empty. Valid until `release`.
    cdef const uint8_t* next(self, uint32_t* size) noexcept
    # Consumer. Is there a committed record that `next` has not returned yet?
    cdef bint waiting(self) noexcept
    cdef uint64_t committed(self) noexcept     # position after the last committed record
    cdef uint64_t taken(self) noexcept         # position after the last record returned by `next`
    # Consumer. Continues at a position reached before a restart; never backwards.
    cdef void skip_to(self, uint64_t position) noexcept
    # Consumer. Returns the address of a position that is committed and not released; a record never crosses the end of the data area.
    cdef const uint8_t* at(self, uint64_t position) noexcept
    # Consumer. Makes `next` return its last record, of this size, again.
    cdef void untake(self, uint32_t size) noexcept
    # Consumer. Releases all records returned by `next`; True if the producer waits for room and must be rung.
    cdef bint release(self) noexcept
    cdef uint64_t span(self, uint32_t size) noexcept
    cdef bint fits(self, uint64_t span) noexcept


cdef class Inbox:
    """All lanes into one process, and the sleep flag of that process."""
    cdef readonly str name
    cdef readonly list lanes           # Ring per producer, by process number
    cdef readonly uint64_t identity    # random, of this segment: positions are valid only together with it
    cdef uint8_t* base
    cdef object mapping

    # Consumer: announces a wait in epoll. Call it, check every lane once more, then wait.
    cdef void sleep(self) noexcept
    cdef void awake(self) noexcept
    # Producer, after a commit: True exactly once per sleep if the consumer must be rung (write to its eventfd).
    cdef bint must_ring(self) noexcept
    # The same for a consumer that sleeps until one of these events, see go_to_sleep().
    cdef bint must_ring_for(self, uint8_t events) noexcept
    cdef inline Ring lane(self, uint32_t producer):
        return <Ring>self.lanes[producer]
    cdef int map(self, str name, object mapping) except -1
    cdef int open_lanes(self) except -1
