"""Deliveries and the ring that holds them; see delivery.pxd."""

from cpython.ref cimport PyObject, Py_INCREF, Py_XDECREF
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

__all__ = ["DeliveryRing"]

cdef enum:
    USUAL_MAX = 128
    FIRST_CAPACITY = 8                     # slots of a ring that has just got its first delivery


cdef void take_delivery(Delivery* target, object message, object ids, object share) noexcept:
    Py_INCREF(message)
    target.message = <void*>message
    if ids is not None:
        Py_INCREF(ids)
        target.ids = <void*>ids
    if share is not None:
        Py_INCREF(share)
        target.share = <void*>share


cdef void drop_delivery(Delivery* target) noexcept:
    Py_XDECREF(<PyObject*>target.message)
    Py_XDECREF(<PyObject*>target.ids)
    Py_XDECREF(<PyObject*>target.share)
    target.message = NULL
    target.ids = NULL
    target.share = NULL


cdef class DeliveryRing:
    def __dealloc__(self):
        self.clear()

    cdef Delivery* push(self) except NULL:
        cdef Delivery* larger
        cdef uint32_t i, capacity
        if self.count == self.capacity:
            capacity = self.capacity * 2 or max(self.usual, <uint32_t>FIRST_CAPACITY)
            larger = <Delivery*>calloc(capacity, sizeof(Delivery))
            if larger == NULL:
                raise MemoryError(f"no memory for {capacity} deliveries of one session")
            for i in range(self.count):
                larger[i] = self.at(i)[0]
            free(self.slots)
            self.slots = larger
            self.capacity = capacity
            self.first = 0
        self.count += 1
        cdef Delivery* slot = self.at(self.count - 1)
        memset(slot, 0, sizeof(Delivery))
        return slot

    cdef void pop_front(self) noexcept:
        drop_delivery(self.at(0))
        self.shrink()

    cdef void move_front(self, Delivery* target) noexcept:
        memcpy(target, self.at(0), sizeof(Delivery))
        self.shrink()

    cdef void shrink(self) noexcept:
        self.first = (self.first + 1) & (self.capacity - 1)
        self.count -= 1
        if self.count == 0 and self.capacity > FIRST_CAPACITY:
            free(self.slots)
            self.slots = NULL
            self.usual = min(self.capacity, <uint32_t>USUAL_MAX)   # the next one starts with as many
            self.capacity = 0
            self.first = 0

    cdef void clear(self) noexcept:
        while self.count:
            self.pop_front()
        free(self.slots)
        self.slots = NULL
        self.capacity = 0
        self.first = 0
