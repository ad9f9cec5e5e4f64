"""The action `type:name` of a rule: its rows go to the action of that id."""

from shardbroker.flows.actions import OutOfService
from shardbroker.flows.sinks.definitions import full_id
from shardbroker.rules.encoding import encoded

__all__ = ["ToSink"]


cdef class ToSink:
    """intakes: of the process; None: rows go nowhere, as in a check of a definition."""

    def __init__(self, str id not None, Intakes intakes):
        self.id, self._intakes = full_id(id), intakes

    cpdef bint run(self, row, dict columns, long journal) except -1:
        """Admits a row. Raises OutOfService."""
        if self._intakes is not None:
            problem = self._intakes.admit(self.id, row, columns)
            if problem:
                raise OutOfService(f"action {self.id}: {problem}")
        return True

    def show(self, dict row, dict columns) -> dict:
        """Returns what run() would write."""
        return {"row": encoded(row)}
