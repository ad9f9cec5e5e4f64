"""Memory shared by the processes of one run, with the progress of each. Made before they are forked.

    | Totals, 128 bytes | of each process     | seq, 8 bytes | of each publisher     | delivered, 8 bytes | of each process and publisher
"""

import mmap

from libc.stdint cimport uint8_t, uint64_t

__all__ = ["Share"]


cdef class Share:
    """Counters of `processes` load processes and `publishers` publishers."""

    def __init__(self, int processes, int publishers):
        self.processes = processes
        self.publishers = publishers
        size = processes * sizeof(Totals) + publishers * 8 + processes * publishers * 8
        self.memory = mmap.mmap(-1, size)
        cdef uint8_t[::1] view = self.memory
        self.totals = <Totals*>&view[0]
        self.seqs = <uint64_t*>(&view[0] + processes * sizeof(Totals))
        self.delivered = self.seqs + publishers

    def snapshot(self) -> dict:
        """Returns the sums over all processes, and the worst p99."""
        cdef int i
        cdef Totals* one
        sums = dict.fromkeys(("opened", "failed", "gone", "published", "delivered", "changes"), 0)
        p99 = 0
        for i in range(self.processes):
            one = &self.totals[i]
            sums["opened"] += one.opened
            sums["failed"] += one.failed
            sums["gone"] += one.gone
            sums["published"] += one.published
            sums["delivered"] += one.delivered
            sums["changes"] += one.changes
            p99 = max(p99, one.p99_ns)
        sums["p99_us"] = p99 / 1000
        return sums
