"""Epochs and round-robin counters in one segment; see epochs.pxd.

    | epoch of bucket 0 | ... | of bucket BUCKETS - 1 | of the wildcard bucket | padding to a line | rotor 0 | ... |      u64 each
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from shm.atomic cimport sb_add, sb_load

from shm import segment

__all__ = ["Epochs"]

cdef enum:
    ROTORS = 65536                         # round-robin counters; two groups that share one merely take turns together
    WORDS = BUCKETS + 8                    # the epochs, padded to a cache line


cdef inline uint16_t fold(uint32_t hash) noexcept:
    return (hash ^ (hash >> 16)) & (BUCKETS - 1)


cdef void buckets_of(const uint8_t* topic, size_t size, Buckets* buckets) noexcept:
    cdef uint32_t hash = 2166136261        # FNV-1a
    cdef size_t i
    cdef int level = 0
    for i in range(size):
        if topic[i] == c"/":
            buckets.of[level] = fold(hash)
            level += 1
            if level == LEVELS:
                return
        hash = (hash ^ topic[i]) * 16777619
    for level in range(level, LEVELS):
        buckets.of[level] = fold(hash)


cdef uint32_t bucket_of(const uint8_t* filter, size_t size) noexcept:
    cdef size_t end = 0, begin = 0
    cdef int level = 0
    cdef Buckets buckets
    while level < LEVELS:
        end = begin
        while end < size and filter[end] != c"/":
            end += 1
        if end == begin + 1 and (filter[begin] == c"#" or filter[begin] == c"+"):
            if level == 0:
                return WILDCARD_BUCKET
            end = begin - 1                # the slash before the wildcard
            break
        level += 1
        begin = end + 1
        if end == size:
            break
    buckets_of(filter, end, &buckets)
    return buckets.of[LEVELS - 1]


cdef class Epochs:
    """Epochs and rotors, shared by all workers of a broker."""

    @staticmethod
    def create(str name not None) -> Epochs:
        """Creates a segment with all epochs 0."""
        return Epochs.open(name, segment.create(name, (WORDS + ROTORS) * 8))

    @staticmethod
    def attach(str name not None) -> Epochs:
        """Attaches to the segment that the supervisor created. Raises FileNotFoundError, PermissionError, ValueError."""
        mapping = segment.attach(name, (WORDS + ROTORS) * 8)
        if len(mapping) != (WORDS + ROTORS) * 8:
            raise ValueError(f"segment {name} holds no epochs of this version")
        return Epochs.open(name, mapping)

    @staticmethod
    def open(str name, mapping) -> Epochs:
        cdef Epochs epochs = Epochs.__new__(Epochs)
        cdef Py_buffer view
        PyObject_GetBuffer(mapping, &view, PyBUF_WRITABLE)
        epochs.values = <uint64_t*>view.buf
        epochs.rotors = epochs.values + WORDS
        PyBuffer_Release(&view)
        epochs.owner = (name, mapping)
        return epochs

    cdef uint64_t current(self, const Buckets* buckets) noexcept:
        cdef uint64_t total = sb_load(&self.values[WILDCARD_BUCKET])
        cdef int level
        for level in range(LEVELS):
            total += sb_load(&self.values[buckets.of[level]])
        return total

    cdef void bump(self, uint32_t bucket) noexcept:
        sb_add(&self.values[bucket], 1)

    cdef uint64_t next_turn(self, uint32_t hash) noexcept:
        return sb_add(&self.rotors[hash & (ROTORS - 1)], 1)

    def bump_all(self) -> None:
        """Voids every cache: the routes of a whole process were removed."""
        self.bump(WILDCARD_BUCKET)

    def bump_of(self, bytes filter not None) -> None:
        """Voids the caches that a change of this filter's routes concerns (slow path for Python processes)."""
        self.bump(bucket_of(<const uint8_t*>PyBytes_AS_STRING(filter), PyBytes_GET_SIZE(filter)))

    def bump_many(self, list filters not None) -> None:
        """Voids the caches that changes of these filters' routes concern."""
        cdef bytes filter
        for filter in filters:
            self.bump(bucket_of(<const uint8_t*>PyBytes_AS_STRING(filter), PyBytes_GET_SIZE(filter)))

    def of(self, bytes topic not None) -> int:
        """Returns the epoch that a cache entry of this topic is checked against (slow path)."""
        cdef Buckets buckets
        buckets_of(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), &buckets)
        return self.current(&buckets)

    def unlink(self) -> None:
        """Removes the name of the segment."""
        segment.unlink(self.owner[0])
