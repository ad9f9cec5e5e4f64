"""Base of the features of this package; see observer.pxd."""

__all__ = ["Observer"]


cdef class Observer:
    cdef void observe(self, bint wanted) noexcept:
        if wanted:
            self.context.watch |= self.bit
        else:
            self.context.watch &= ~self.bit
