"""Full queues; see overflow.pxd."""

from shardbroker.pubsub.message cimport Message
from shardbroker.session.delivery cimport DeliveryRing

__all__ = ["PressedQueue", "QueueOverflow"]

cdef enum:
    MESSAGE_BYTES = 192                    # of a queued message beside its contents: Delivery, Message, heap


cdef class QueueOverflow:
    cdef int on_full(self, object session, Publication publication, tuple share) except -1:
        return DROP_OLDEST

    cdef void drained(self, PressedQueue queue) noexcept:
        pass

    cdef int hold_back(self, bytes client_id, int process, uint64_t key) except -1:
        return 0

    cdef int release(self, bytes client_id, int process, uint64_t key) except -1:
        return 0

    cdef int release_all(self) except -1:
        return 0


cdef class PressedQueue(MQueue):
    cdef void pop(self, Delivery* target) noexcept:
        MQueue.pop(self, target)
        if self.state != OPEN:
            self.owner.drained(self)

    cdef uint64_t measure(self, uint32_t limit) noexcept:
        cdef uint64_t bytes = 0
        cdef uint32_t i, skipped
        cdef DeliveryRing ring
        cdef Message message
        for _, lane in self.lanes:
            ring = <DeliveryRing>lane
            skipped = min(limit, ring.count)
            limit -= skipped
            for i in range(skipped, ring.count):
                message = <Message>ring.at(i).message
                bytes += MESSAGE_BYTES + <uint64_t>message.topic_size + message.properties_size + message.payload_size
        return bytes


cdef PressedQueue pressed_queue(MQueue queue, QueueOverflow owner, uint64_t key):
    cdef PressedQueue made = PressedQueue.__new__(PressedQueue)
    made.lanes, made.count, made.qos0_count = queue.lanes, queue.count, queue.qos0_count
    queue.clear()
    made.owner = owner
    made.key = key
    made.publishers = {}
    made.shares = set()
    return made


cdef bint is_stalled(MQueue queue) noexcept:
    return isinstance(queue, PressedQueue) and (<PressedQueue>queue).state == STALLED


cdef uint64_t size_in_queue(Publication publication) noexcept:
    return MESSAGE_BYTES + <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size
