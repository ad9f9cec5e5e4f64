"""The action `type:name` of a rule."""

from shardbroker.flows.sinks.intake cimport Intakes


cdef class ToSink:
    cdef readonly str id
    cdef Intakes _intakes

    cpdef bint run(self, row, dict columns, long journal) except -1
