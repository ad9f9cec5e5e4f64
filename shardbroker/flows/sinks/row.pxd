"""A row of a rule on its way to a sink."""


cdef class Row:
    cdef public str journal, client, id, node
    cdef public long long position, at_ms, size, number
    cdef public object values, properties, done
    cdef double admitted_s                 # time at which it was admitted


cpdef Row row_of(values, dict columns, str journal, long long position, long long number, str node)
