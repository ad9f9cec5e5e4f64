"""A row of a rule on its way to a sink."""

from shardbroker.flows.sinks.sizes cimport size_of

from shardbroker.rules.paths import get
from shardbroker.rules.values import UNDEFINED

__all__ = ["Row", "row_of"]

cdef enum:
    ROW_BYTES = 400  # memory of a row besides its values: the object, its dict, and its places in queues


cdef class Row:
    """What a rule has selected from one record of a journal.

    client: client id of the publisher: rows of one client keep their order. id: of the message; empty for an event. at_ms: Unix ms of
    the record. size: estimated memory, bytes; 0: size_of() is called. number: of the rows of one record for one action, from 0.
    properties: of the message of MQTT 5.0, as the column `pub_props` is; they are not counted in `size`. done: is called when the row
    is done, in place of a position; see SinkAction.admit_loose().
    """

    def __init__(
        self,
        str journal not None,
        long long position,
        str client not None,
        values,
        str id not None="",
        str node not None="",
        long long at_ms=0,
        long long size=0,
        long long number=0,
        properties=None,
        done=None,
    ):
        self.journal, self.position, self.client, self.values = journal, position, client, values
        self.id, self.node, self.at_ms, self.number = id, node, at_ms, number
        self.properties, self.done = properties, done
        self.size = size or ROW_BYTES + size_of(values)

    def with_values(self, values) -> Row:
        """Returns a copy with other values, whose memory is estimated."""
        return Row(
            self.journal, self.position, self.client, values, self.id, self.node, self.at_ms, 0, self.number, self.properties, self.done,
        )

    def reported_to(self, done) -> Row:
        """Returns a copy with another `done`."""
        cdef Row other = self.with_values(self.values)
        other.size, other.done = self.size, done
        return other

    @property
    def key(self) -> str:
        """Id of the row, the same each time it is written: the id of its message, or its place for an event."""
        name = self.id or f"{self.node}/{self.journal}/{self.position}"
        return f"{name}-{self.number}" if self.number else name

    def value(self, tuple steps not None):
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

    def text(self, template) -> str:
        """Returns the text of a template. Raises EvaluationError."""
        parts = template.parts
        if any([one == ("id",) or one == ("position",) for one in parts]):
            own = {"id": self.value(("id",)), "position": self.value(("position",))}
            return template.render({**{name: value for name, value in own.items() if value is not UNDEFINED}, **self.values})
        return template.render(self.values)


cpdef Row row_of(values, dict columns, str journal, long long position, long long number, str node):
    """Returns the row of a result of a rule."""
    cdef Row row = Row.__new__(Row)
    client = columns.get("clientid")
    row.journal, row.position, row.number, row.node = journal, position, number, node
    row.client = <str>client if type(client) is str else str(client)
    row.id = columns["id"] if columns["event"] == "message.publish" else ""
    row.at_ms, row.values, row.properties = columns["timestamp"], values, columns.get("pub_props")
    row.size = ROW_BYTES + size_of(values)
    return row
