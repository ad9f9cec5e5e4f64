"""The timer wheel; see timers.pxd."""

__all__ = ["Timed", "TimerWheel"]


cdef class Timed:
    def __cinit__(self):
        self.slot = -1

    cdef int expire(self, uint64_t now_ms) except -1:
        raise NotImplementedError("Timed.expire")


cdef class TimerWheel:
    def __init__(self, uint64_t now_ms):
        self.slots = [None] * SLOTS
        self.tick = now_ms // SLOT_MS

    cdef void arm(self, Timed timed, uint64_t due_ms) noexcept:
        timed.due_ms = due_ms
        if timed.slot >= 0:
            if due_ms >= timed.placed_ms:
                return
            self.unlink(timed)
        self.insert(timed)

    cdef void disarm(self, Timed timed) noexcept:
        timed.due_ms = 0
        if timed.slot >= 0:
            self.unlink(timed)

    cdef int advance(self, uint64_t now_ms) except -1:
        cdef uint64_t target = now_ms // SLOT_MS
        cdef uint64_t ticks = min(target - self.tick if target > self.tick else 0, <uint64_t>SLOTS)
        cdef Timed timed
        cdef uint64_t step
        cdef list due
        for step in range(ticks):
            # Collected first: what expires may disarm its neighbours.
            due = []
            timed = <Timed>self.slots[(target - ticks + 1 + step) & (SLOTS - 1)]
            while timed is not None:
                if timed.placed_ms <= now_ms:
                    due.append(timed)
                timed = timed.timer_next
            for timed in due:
                if timed.slot < 0:
                    continue
                self.unlink(timed)
                if timed.due_ms > now_ms:
                    self.insert(timed)
                elif timed.due_ms:
                    self.expiring = timed
                    timed.expire(now_ms)
        self.expiring = None
        if target > self.tick:
            self.tick = target
        return 0

    cdef void insert(self, Timed timed) noexcept:
        # The slot after the deadline: when it is handled, the deadline has passed.
        cdef uint64_t number = max(timed.due_ms // SLOT_MS, self.tick) + 1
        cdef uint32_t slot = <uint32_t>(number & (SLOTS - 1))
        cdef Timed head = <Timed>self.slots[slot]
        timed.placed_ms = timed.due_ms
        timed.slot = <int32_t>slot
        timed.timer_next = head
        timed.timer_previous = None
        if head is not None:
            head.timer_previous = timed
        self.slots[slot] = timed
        self.armed += 1

    cdef void unlink(self, Timed timed) noexcept:
        if timed.timer_previous is not None:
            timed.timer_previous.timer_next = timed.timer_next
        else:
            self.slots[timed.slot] = timed.timer_next
        if timed.timer_next is not None:
            timed.timer_next.timer_previous = timed.timer_previous
        timed.timer_next = None
        timed.timer_previous = None
        timed.slot = -1
        self.armed -= 1
