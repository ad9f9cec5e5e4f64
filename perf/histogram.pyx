"""A latency histogram of fixed size; see histogram.pxd.

    value < 64: bucket = value        else: 64 buckets per power of two, bucket = exponent << 6 | the six bits below the highest
"""

from libc.string cimport memset

__all__ = ["Histogram"]

cdef extern from *:
    int __builtin_clzll(unsigned long long value) noexcept nogil


cdef inline uint32_t bucket_of(uint64_t value) noexcept:
    cdef uint32_t shift
    if value < 1 << SUB_BITS:
        return <uint32_t>value
    shift = 63 - __builtin_clzll(value) - SUB_BITS
    return ((shift + 1) << SUB_BITS) | (<uint32_t>(value >> shift) & ((1 << SUB_BITS) - 1))


cdef inline uint64_t middle_of(uint32_t bucket) noexcept:
    cdef uint32_t shift
    if bucket < 1 << SUB_BITS:
        return bucket
    shift = (bucket >> SUB_BITS) - 1
    return (((<uint64_t>1 << SUB_BITS) | (bucket & ((1 << SUB_BITS) - 1))) << shift) + ((<uint64_t>1 << shift) >> 1)


cdef class Histogram:
    """Durations in nanoseconds, with percentiles."""

    def __cinit__(self):
        memset(self.counts, 0, sizeof(self.counts))

    cdef void add(self, uint64_t value_ns) noexcept:
        self.counts[bucket_of(value_ns)] += 1
        self.count += 1
        self.sum_ns += value_ns
        if value_ns > self.largest:
            self.largest = value_ns

    def record(self, uint64_t value_ns) -> None:
        """Counts one value (slow-path form of add)."""
        self.add(value_ns)

    def merge(self, Histogram other) -> None:
        """Adds the counts of another histogram."""
        cdef uint32_t bucket
        for bucket in range(<uint32_t>BUCKETS):
            self.counts[bucket] += other.counts[bucket]
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.largest = max(self.largest, other.largest)

    def __reduce__(self):
        return _restored, ({n: self.counts[n] for n in range(<int>BUCKETS) if self.counts[n]}, self.largest, self.sum_ns)

    def curve(self) -> list:
        """Returns [[percent, microseconds]]: for each step the share of the values up to it."""
        cdef uint32_t bucket
        cdef uint64_t seen = 0
        points = []
        for bucket in range(<uint32_t>BUCKETS):
            if self.counts[bucket]:
                seen += self.counts[bucket]
                points.append([round(100.0 * seen / self.count, 5), round(min(middle_of(bucket), self.largest) / 1000.0, 2)])
        return points

    def percentile(self, double percent) -> int:
        """Returns the nanoseconds that `percent` of the values do not exceed, to 1 %; 0 without values."""
        cdef double wanted = self.count * percent / 100
        cdef uint64_t seen = 0
        cdef uint32_t bucket
        if not self.count:
            return 0
        for bucket in range(<uint32_t>BUCKETS):
            seen += self.counts[bucket]
            if seen and seen >= wanted:
                return min(middle_of(bucket), self.largest)
        return self.largest

    def summary(self) -> dict:
        """Returns p50, p99, p99.9, max and mean in microseconds, and the number of values."""
        return {
            "count": self.count,
            "p50_us": self.percentile(50) / 1000.0,
            "p99_us": self.percentile(99) / 1000.0,
            "p999_us": self.percentile(99.9) / 1000.0,
            "max_us": self.largest / 1000.0,
            "mean_us": self.sum_ns / self.count / 1000 if self.count else 0.0,
        }


def _restored(dict counts, uint64_t largest, double sum_ns):
    cdef Histogram histogram = Histogram()
    for bucket, count in counts.items():
        histogram.counts[bucket] = count
        histogram.count += count
    histogram.largest = largest
    histogram.sum_ns = sum_ns
    return histogram
