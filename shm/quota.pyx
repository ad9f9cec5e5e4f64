"""Leaky buckets in shared memory; see quota.pxd."""

from shm.atomic cimport sb_load, sb_replace

__all__ = ["SharedBucket"]

cdef uint64_t BURST_NS = 1000000000        # what leaks away in this time may come at once


cdef class SharedBucket:
    cdef uint64_t over_ns(self, uint64_t now_ns) noexcept:
        cdef uint64_t empty_at = sb_load(self.empty_at)
        return empty_at - now_ns - BURST_NS if empty_at > now_ns + BURST_NS else 0

    cdef void add(self, uint64_t now_ns, uint64_t count) noexcept:
        cdef uint64_t more = <uint64_t>(count * self.each_ns)
        cdef uint64_t before = sb_load(self.empty_at)
        while not sb_replace(self.empty_at, &before, max(before, now_ns) + more):
            pass                           # somebody else was faster; `before` is what it left

    def over(self, uint64_t now_ns) -> int:
        """Slow-path form of `over_ns`."""
        return self.over_ns(now_ns)

    def fill(self, uint64_t now_ns, uint64_t count) -> None:
        """Slow-path form of `add`."""
        self.add(now_ns, count)
