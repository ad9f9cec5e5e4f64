"""Values of rows for placeholders, prepared once for each template."""

from shardbroker.flows.sinks.row cimport Row


cdef class Getter:
    cdef tuple steps
    cdef str name                          # of a field that needs nothing but a look-up; or None

    cdef of(self, Row row)


cdef class Rendered:
    cdef tuple parts                       # bytes, and getters between them
    cdef readonly bytes constant           # without placeholders; or None

    cdef bytes of(self, Row row)


cpdef bytes encoded(value)
