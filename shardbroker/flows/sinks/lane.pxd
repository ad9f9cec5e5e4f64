"""A queue of rows that keep their order: those of the same clients, or of the same journal."""


cdef class Lane:
    cdef readonly long number, window
    cdef readonly object queue             # rows in the order in which they were admitted
    cdef readonly object again             # batches that are written again; they precede the queue
    cdef public long long size             # memory of the queue, estimated, bytes
    cdef public long under_way             # batches
    cdef public long long ready_below      # rows from this position on wait: others of the same record may follow


cpdef long lane_of(str client, long lanes) except -1
