"""Rows of rules on their way into actions; see intake.pxd."""

import time

from shardbroker.flows.sinks.action cimport SinkAction
from shardbroker.flows.sinks.row cimport Row, row_of

__all__ = ["Intake", "Intakes"]


cdef class Intake:
    """Of one action."""

    def __init__(self, SinkAction action not None):
        self.action, self._rows, self._journal, self._position = action, [], "", -1


cdef class Intakes:
    """Of all actions of a process. node: its name."""

    def __init__(self, str node not None):
        self._node, self.journal, self.position = node, "", -1
        self.of, self._filled, self._dirty = {}, [], []
        self.other = _none

    cdef object admit(self, str id, values, dict columns):
        """Admits a row of a rule soon, unless it is for a late reader; returns why it cannot, or nothing."""
        cdef Intake intake = <Intake>self.of.get(id)
        cdef Row row
        if intake is None or self.position < 0:
            return self.other(id, values, columns)
        if intake._position == self.position and intake._journal == self.journal:
            intake._number += 1
        else:
            intake._position, intake._journal, intake._number = self.position, self.journal, 0
        if intake.action.wants(self.journal, self.position):
            if not intake._rows:
                self._filled.append(intake)
            row = row_of(values, columns, self.journal, self.position, intake._number, self._node)
            intake._rows.append(row)
            intake._size += row.size
            if len(intake._rows) >= ROWS_TOGETHER or intake._size >= BYTES_TOGETHER:
                self._admit_rows(intake)
        return ""

    cdef int _admit_rows(self, Intake intake) except -1:
        cdef SinkAction action = intake.action
        cdef double now_s = time.monotonic()
        with action.lock:
            for row in intake._rows:
                action.admit_live(<Row>row, now_s)
        intake._rows, intake._size = [], 0
        self._dirty.append(action.id)
        return 0

    cpdef int admit_all(self) except -1:
        """Admits what is left."""
        if self._filled:
            for intake in self._filled:
                if (<Intake>intake)._rows:
                    self._admit_rows(<Intake>intake)
            self._filled.clear()
        return 0

    def taken(self) -> list:
        """Returns the ids of the actions that got rows since the last call."""
        found, self._dirty = self._dirty, []
        return found


def _none(id, values, columns) -> str:
    return "no such action"
