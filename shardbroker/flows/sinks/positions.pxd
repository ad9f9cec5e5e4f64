"""What of one journal is done: the lowest position that is not, and where a reader finds it."""


cdef class _Record:
    cdef long long position, at_ms
    cdef int rows                          # that are not done


cdef class Positions:
    cdef readonly object seen              # the place behind everything that was evaluated
    cdef readonly long long seen_position  # its position
    cdef object _places                    # in ascending order; the first is at or below the lowest position that is not done
    cdef object _waiting                   # records with rows that are not done, ascending
    cdef dict _of

    cpdef int admit(self, long long position, long long at_ms=*) except -1
    cpdef int done(self, long long position) except -1
