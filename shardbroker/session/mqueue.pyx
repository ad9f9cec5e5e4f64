"""The message queue with priorities; see mqueue.pxd. As in EMQX, a full queue drops its oldest message of lowest priority."""

__all__ = ["MQueue"]


cdef class MQueue:
    cdef Delivery* push(self, int priority, int qos) except NULL:
        cdef DeliveryRing ring = None
        if self.lanes is None:
            self.lanes = []
        for present, candidate in self.lanes:
            if present == priority:
                ring = <DeliveryRing>candidate
                break
        if ring is None:
            ring = DeliveryRing.__new__(DeliveryRing)
            self.lanes.append((priority, ring))
            self.lanes.sort(key=negative_priority)
        cdef Delivery* slot = ring.push()
        self.count += 1
        self.qos0_count += qos == 0
        return slot

    cdef Delivery* front(self) noexcept:
        cdef DeliveryRing ring = self.first_lane()
        return NULL if ring is None else ring.at(0)

    cdef void pop(self, Delivery* target) noexcept:
        cdef DeliveryRing ring = self.first_lane()
        ring.move_front(target)
        self.left(target.qos)

    cdef Delivery* oldest_of_lowest(self) noexcept:
        cdef DeliveryRing ring = self.last_lane()
        return NULL if ring is None else ring.at(0)

    cdef void drop_oldest_of_lowest(self) noexcept:
        cdef DeliveryRing ring = self.last_lane()
        cdef int qos
        if ring is not None:
            qos = ring.at(0).qos
            ring.pop_front()
            self.left(qos)

    cdef void clear(self) noexcept:
        self.lanes = None
        self.count = 0
        self.qos0_count = 0

    cdef DeliveryRing first_lane(self):
        if self.count:
            for _, ring in self.lanes:
                if (<DeliveryRing>ring).count:
                    return <DeliveryRing>ring
        return None

    cdef DeliveryRing last_lane(self):
        if self.count:
            for _, ring in reversed(self.lanes):
                if (<DeliveryRing>ring).count:
                    return <DeliveryRing>ring
        return None

    cdef void left(self, int qos) noexcept:
        self.count -= 1
        self.qos0_count -= qos == 0


def negative_priority(tuple lane):
    return -lane[0]
