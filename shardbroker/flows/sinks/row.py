"""A row of a rule on its way to a sink."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardbroker.flows.sinks.sizes import size_of
from shardbroker.rules.paths import get
from shardbroker.rules.syntax import Step
from shardbroker.rules.templates import Template
from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["Row"]

ROW_BYTES = 400
"""Memory of a row besides its values: the object, its dict, and its places in queues."""


@dataclass(slots=True, eq=False)
class Row:
    """What a rule has selected from one record of a journal."""

    journal: str
    position: int
    client: str
    """Client id of the publisher: rows of one client keep their order."""
    values: dict[str, Value]
    id: str = ""
    """Id of the message; empty for an event."""
    node: str = ""
    at_ms: int = 0
    """Unix ms of the record."""
    size: int = field(default=0)
    """Estimated memory, bytes; 0: size_of() is called."""
    number: int = 0
    """Of the rows of one record for one action, from 0."""
    properties: Mapping[str, Any] | None = None
    """Properties of the message of MQTT 5.0, as the column `pub_props` is; they are not counted in `size`."""
    done: Callable[[], None] | None = None
    """Called when the row is done, in place of a position; see SinkAction.admit_loose()."""

    def __post_init__(self) -> None:
        if not self.size:
            self.size = ROW_BYTES + size_of(self.values)

    @property
    def key(self) -> str:
        """Id of the row, the same each time it is written: the id of its message, or its place for an event."""
        name = self.id or f"{self.node}/{self.journal}/{self.position}"
        return f"{name}-{self.number}" if self.number else name

    def value(self, steps: tuple[Step, ...]) -> Value:
        """Returns the value of a placeholder. `id` and `position` are of the record unless the rule selects such fields."""
        if not steps:
            return self.values
        found = get(self.values, steps)
        if found is UNDEFINED and len(steps) == 1:
            if steps[0] == "id" and self.id:
                return self.id
            if steps[0] == "position":
                return f"{self.node}/{self.journal}/{self.position}"
        return found

    def text(self, template: Template) -> str:
        """Returns the text of a template. Raises EvaluationError."""
        parts = template.parts
        if any(one in (("id",), ("position",)) for one in parts):
            own = {"id": self.value(("id",)), "position": self.value(("position",))}
            return template.render({**{name: value for name, value in own.items() if value is not UNDEFINED}, **self.values})
        return template.render(self.values)
