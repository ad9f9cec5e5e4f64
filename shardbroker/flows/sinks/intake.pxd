"""Rows that rules have selected, gathered for each action until they are admitted together."""

from shardbroker.flows.sinks.action cimport SinkAction

cdef enum:
    ROWS_TOGETHER = 256  # rows of an action that are admitted together: its lock is also that of the thread that writes batches
    BYTES_TOGETHER = 1 << 20  # memory of these rows, about: the buffer counts it once they are admitted


cdef class Intake:
    cdef readonly SinkAction action
    cdef list _rows                        # that are admitted soon
    cdef long long _size                   # their memory, bytes
    cdef str _journal                      # place of the last record
    cdef long long _position
    cdef long long _number                 # rows of that record, less one


cdef class Intakes:
    cdef public str journal                # place of the record that rules are evaluated for
    cdef public long long position         # -1: they are tried
    cdef readonly dict of                  # Intake by id of the action
    cdef public object other               # admits what is not for one of these: (id, values, columns) -> problem
    cdef list _filled                      # those with rows
    cdef list _dirty                       # actions that got rows since the last taken()
    cdef str _node

    cdef object admit(self, str id, values, dict columns)
    cdef int _admit_rows(self, Intake intake) except -1
    cpdef int admit_all(self) except -1
