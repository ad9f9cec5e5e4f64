"""The message queue of a session: messages that wait for room in the inflight window or the socket, or for the client."""
from libc.stdint cimport uint32_t

from shardbroker.session.delivery cimport Delivery, DeliveryRing


cdef class MQueue:
    cdef list lanes                        # (priority, DeliveryRing), highest priority first; None until needed
    cdef readonly uint32_t count
    cdef readonly uint32_t qos0_count

    # A zeroed slot at the end of the lane of this priority.
    cdef Delivery* push(self, int priority, int qos) except NULL
    cdef Delivery* front(self) noexcept                   # highest priority first, then oldest; NULL when empty
    cdef void pop(self, Delivery* target) noexcept        # moves the front out
    cdef Delivery* oldest_of_lowest(self) noexcept        # is dropped next; NULL when empty
    cdef void drop_oldest_of_lowest(self) noexcept
    cdef void clear(self) noexcept
    cdef DeliveryRing first_lane(self)
    cdef DeliveryRing last_lane(self)
    cdef void left(self, int qos) noexcept
