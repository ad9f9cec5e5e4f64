"""Epochs and round robin counters in one segment; see epochs.pxd."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from shm.atomic cimport sb_add, sb_load

from shm import segment

__all__ = ["Epochs"]

cdef enum:
    ROTORS = 65536                         # round robin counters; two groups that share one merely take turns together
    WORDS = BUCKETS + 8                    # the epochs, padded to a cache line


cdef uint32_t bucket_of(const uint8_t* topic, size_t size) noexcept:
    cdef uint32_t hash = 2166136261        # FNV-1a
    cdef size_t i
    if size and (topic[0] == c"#" or topic[0] == c"+") and (size == 1 or topic[1] == c"/"):
        return WILDCARD_BUCKET
    for i in range(size):
        if topic[i] == c"/":
            break
        hash = (hash ^ topic[i]) * 16777619
    return (hash ^ (hash >> 16)) & (BUCKETS - 1)


cdef class Epochs:
    """Shared by all workers of a broker."""

    @staticmethod
    def create(str name not None) -> Epochs:
        """A new segment, all epochs 0."""
        return Epochs.open(name, segment.create(name, (WORDS + ROTORS) * 8))

    @staticmethod
    def attach(str name not None) -> Epochs:
        return Epochs.open(name, segment.attach(name))

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

    cdef uint64_t current(self, uint32_t bucket) noexcept:
        return sb_load(&self.values[bucket]) + sb_load(&self.values[WILDCARD_BUCKET])

    cdef void bump(self, uint32_t bucket) noexcept:
        sb_add(&self.values[bucket], 1)

    cdef uint64_t next_turn(self, uint32_t hash) noexcept:
        return sb_add(&self.rotors[hash & (ROTORS - 1)], 1)

    def bump_all(self) -> None:
        """Voids every cache: the routes of a whole process have gone."""
        self.bump(WILDCARD_BUCKET)

    def unlink(self) -> None:
        segment.unlink(self.owner[0])
