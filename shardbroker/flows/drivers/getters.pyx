"""Values of rows for placeholders, prepared once for each template."""

from shardbroker.flows.sinks.row cimport Row

from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.templates import template
from shardbroker.rules.values import UNDEFINED, EvaluationError

__all__ = ["Getter", "encoded", "placeholders", "rendered"]

cdef tuple OF_RECORDS = ("id", "position")  # names that are of the record unless the rule selects such fields


cdef class Getter:
    """What finds the value of a placeholder in a row, `UNDEFINED` if it is missing."""

    def __init__(self, tuple steps not None):
        self.steps = steps
        self.name = steps[0] if len(steps) == 1 and type(steps[0]) is str and steps[0] not in OF_RECORDS else None

    def __call__(self, Row row not None):
        return self.of(row)

    cdef of(self, Row row):
        if self.name is None:
            return row.value(self.steps)
        if type(row.values) is dict:
            return (<dict>row.values).get(self.name, UNDEFINED)
        return row.values.get(self.name, UNDEFINED)


cdef class Rendered:
    """What makes the bytes of a template for a row."""

    def __init__(self, list parts not None):
        self.parts = tuple([(<str>one).encode() if isinstance(one, str) else one for one in parts])
        self.constant = b"".join(self.parts) if all([isinstance(one, bytes) for one in self.parts]) else None

    def __call__(self, Row row not None) -> bytes:
        """Raises EvaluationError, UnicodeEncodeError."""
        return self.of(row)

    cdef bytes of(self, Row row):
        if self.constant is not None:
            return self.constant
        if len(self.parts) == 1:
            return encoded((<Getter>self.parts[0]).of(row))
        return b"".join([one if type(one) is bytes else encoded((<Getter>one).of(row)) for one in self.parts])


def placeholders(str text not None) -> list:
    """Returns the parts of a template: texts, and getters between them. Raises ValueError if it is too long."""
    try:
        parts = template(text).parts
    except EvaluationError as error:
        raise ValueError(str(error)) from None
    return [one if isinstance(one, str) else Getter(one) for one in parts]


cpdef bytes encoded(value):
    """Returns the text of a value, `undefined` if it is missing, or its bytes. Raises EvaluationError, UnicodeEncodeError."""
    if type(value) is str:
        return (<str>value).encode()
    if type(value) is bytes:
        return value
    value = text_of(value)
    return value if type(value) is bytes else str(value).encode()


def rendered(str text not None) -> Rendered:
    """Returns what makes the bytes of a template for a row. Raises ValueError if it is too long."""
    return Rendered(placeholders(text))
