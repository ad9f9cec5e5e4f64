"""Leaky buckets in shared memory; see quota.pxd."""

from shm.atomic cimport sb_load, sb_replace

__all__ = ["SharedBucket"]

cdef uint64_t BURST_NS = 1000000000        # size of a burst: what leaks away in this time


cdef class SharedBucket:
    cdef uint64_t over_ns(self, uint64_t now_ns) noexcept:
        cdef uint64_t empty_at = sb_load(self.empty_at)
        return empty_at - now_ns - BURST_NS if empty_at > now_ns + BURST_NS else 0

    cdef void add(self, uint64_t now_ns, uint64_t count) noexcept:
        cdef uint64_t more = <uint64_t>(count * self.each_ns)
        cdef uint64_t before = sb_load(self.empty_at)
        while not sb_replace(self.empty_at, &before, max(before, now_ns) + more):
            pass                           # another process was faster; `before` has its value

    def over(self, uint64_t now_ns) -> int:
        """Calls `over_ns` (slow path)."""
        return self.over_ns(now_ns)

    def fill(self, uint64_t now_ns, uint64_t count) -> None:
        """Calls `add` (slow path)."""
        self.add(now_ns, count)
