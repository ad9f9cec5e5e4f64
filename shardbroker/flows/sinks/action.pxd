"""The core of an action, without I/O, threads and clocks of its own."""

from shardbroker.flows.sinks.buffer cimport Buffer
from shardbroker.flows.sinks.figures cimport Figures
from shardbroker.flows.sinks.lane cimport Lane
from shardbroker.flows.sinks.positions cimport Positions
from shardbroker.flows.sinks.row cimport Row


cdef class _Stream:
    cdef readonly Positions positions
    cdef bint behind                       # whether it has left the live stream
    cdef long long last                    # position of the last row that was admitted


cdef class SinkAction:
    cdef readonly str id
    cdef readonly object limits, lock
    cdef public Figures figures
    cdef readonly Buffer buffer
    cdef public object state
    cdef public str last_error
    cdef public double retry_at_s          # when the next attempt to reach the server is due
    cdef public bint keeps_failed          # whether rows that have failed for good are not done before settle()
    cdef public list finished              # `done` of loose rows, to be called without the lock
    cdef readonly dict _streams            # by journal
    cdef object _backoff
    cdef dict _lanes                       # by number
    cdef dict _written                     # journal -> the position below which the sink has everything, if the sink stores it
    cdef long _lane_count
    cdef bint _by_journal

    cpdef bint admit_live(self, Row row, double now_s) except -1
    cdef int _admit(self, _Stream stream, Row row, double now_s) except -1
    cdef int _queue(self, Lane lane, Row row, double now_s) except -1
    cdef Lane _lane(self, long number)
    cdef int _complete(self, str journal, _Stream stream) except -1
    cpdef bint wants(self, str journal, long long position) except -1
    cdef object _due_s(self, Lane lane)
    cdef bint _is_emptied_first(self, Lane lane) except -1
    cdef double _since_ms(self, long long now_ms) except? -1
    cdef bint _leave_out(self, Row row, double since_ms) except -1
    cdef int _fail(self, Row row) except -1
    cdef int _succeeded(self, list rows, double since_ms) except -1
    cdef int _returned(self, batch) except -1
    cdef int _put_back(self, batch) except -1
    cdef int _forget(self, list rows) except -1
