"""A timer wheel for many deadlines that mostly move away: keepalives, retries, expiries.

4096 slots of 64 ms; a deadline beyond one turn (262 s) stays in the wheel and is checked once a turn. Moving a deadline later costs
one store: the wheel moves the entry when its old slot is due.
"""
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef enum:
    SLOTS = 4096
    SLOT_MS = 64


cdef class Timed:
    """An object with one deadline. The wheel has a strong reference while it is armed."""
    cdef Timed timer_next
    cdef Timed timer_previous
    cdef uint64_t due_ms                   # 0: cancelled
    cdef uint64_t placed_ms                # deadline that its slot in the wheel was chosen for
    cdef int32_t slot                      # -1: not in the wheel

    cdef int expire(self, uint64_t now_ms) except -1


cdef class TimerWheel:
    cdef list slots
    cdef uint64_t tick                     # last slot number handled
    cdef size_t armed
    cdef Timed expiring                    # whose expire() was called last

    cdef void arm(self, Timed timed, uint64_t due_ms) noexcept
    cdef void disarm(self, Timed timed) noexcept
    # Calls expire() of what is due. Called again after an exception of one of them, it continues with the others.
    cdef int advance(self, uint64_t now_ms) except -1
    cdef void insert(self, Timed timed) noexcept
    cdef void unlink(self, Timed timed) noexcept
