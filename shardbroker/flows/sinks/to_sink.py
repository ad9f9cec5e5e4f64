"""The action `type:name` of a rule: its rows go to the action of that id."""

from typing import Any, Protocol

from shardbroker.flows.actions import OutOfService
from shardbroker.flows.sinks.definitions import full_id
from shardbroker.rules.encoding import encoded
from shardbroker.rules.values import Value

__all__ = ["Admits", "ToSink"]


class Admits(Protocol):
    """What has the actions."""

    def admit(self, id: str, values: Value, columns: dict[str, Any]) -> str:
        """Admits a row; returns why it cannot, or nothing."""


class ToSink:
    """sinks: None: rows go nowhere, as in a check of a definition."""

    def __init__(self, id: str, sinks: Admits | None) -> None:
        self.id, self._sinks = full_id(id), sinks

    def run(self, row: dict[str, Value], columns: dict[str, Value], journal: int) -> bool:
        """Admits a row. Raises OutOfService."""
        problem = self._sinks.admit(self.id, row, columns) if self._sinks is not None else ""
        if problem:
            raise OutOfService(f"action {self.id}: {problem}")
        return True

    def show(self, row: dict[str, Value], columns: dict[str, Value]) -> dict[str, Any]:
        """Returns what run() would write."""
        return {"row": encoded(row)}
