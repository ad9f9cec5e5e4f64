"""One message on its way to one client, in the queue or in the inflight window."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum DeliveryState:
    QUEUED = 0
    AWAITING_PUBACK = 1
    AWAITING_PUBREC = 2
    AWAITING_PUBCOMP = 3                   # PUBREL is out; the message itself is gone
    DONE = 4                               # acknowledged out of turn: a hole in the window

# References are counted by hand: take_delivery() and drop_delivery() are the only ways in and out.
cdef struct Delivery:
    void* message                          # Message, or NULL after PUBREC
    void* ids                              # bytes: encoded Subscription Identifiers, or NULL
    void* share                            # (group, filter) that chose this client, or NULL
    uint64_t sent_ms
    uint16_t packet_id
    uint8_t qos
    uint8_t state
    bint retain
    bint held                              # in flight from an earlier connection, not yet sent again on this one

cdef void take_delivery(Delivery* target, object message, object ids, object share) noexcept
cdef void drop_delivery(Delivery* target) noexcept


cdef class DeliveryRing:
    """A double-ended queue of deliveries that owns no memory while it is empty."""
    cdef Delivery* slots
    cdef uint32_t capacity                 # a power of two
    cdef uint32_t usual                    # capacity that was freed when the ring was last empty
    cdef uint32_t first
    cdef readonly uint32_t count

    cdef inline Delivery* at(self, uint32_t index) noexcept:
        return &self.slots[(self.first + index) & (self.capacity - 1)]

    cdef Delivery* push(self) except NULL                 # a zeroed slot at the end
    cdef void pop_front(self) noexcept                    # drops the references of the first
    cdef void move_front(self, Delivery* target) noexcept  # moves the first out with its references
    cdef void clear(self) noexcept
    cdef void shrink(self) noexcept
