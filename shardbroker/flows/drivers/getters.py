"""Values of rows for placeholders, prepared once for each template."""

from collections.abc import Callable

from shardbroker.flows.sinks.row import Row
from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.syntax import Step
from shardbroker.rules.templates import template
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["Getter", "encoded", "getter", "placeholders", "rendered"]

Getter = Callable[[Row], Value]
OF_RECORDS = ("id", "position")
"""Names that are of the record unless the rule selects such fields."""


def getter(steps: tuple[Step, ...]) -> Getter:
    """Returns what finds the value of a placeholder in a row, `UNDEFINED` if it is missing."""
    if len(steps) == 1 and isinstance(steps[0], str) and steps[0] not in OF_RECORDS:
        name = steps[0]
        return lambda row: row.values.get(name, UNDEFINED)
    return lambda row: row.value(steps)


def placeholders(text: str) -> list[str | Getter]:
    """Returns the parts of a template: texts, and getters between them. Raises ValueError if it is too long."""
    try:
        parts = template(text).parts
    except EvaluationError as error:
        raise ValueError(str(error)) from None
    return [one if isinstance(one, str) else getter(one) for one in parts]


def encoded(value: Value) -> bytes:
    """Returns the text of a value, `undefined` if it is missing, or its bytes. Raises EvaluationError, UnicodeEncodeError."""
    if type(value) is bytes:
        return value
    if type(value) is not str:
        value = text_of(value)
        if type(value) is bytes:
            return value
    return str(value).encode()


def rendered(text: str) -> Callable[[Row], bytes]:
    """Returns what makes the bytes of a template for a row."""
    parts = placeholders(text)
    if all(isinstance(one, str) for one in parts):
        constant = text.encode()
        return lambda row: constant
    if len(parts) == 1:
        only = parts[0]
        assert not isinstance(only, str)
        return lambda row: encoded(only(row))
    ready = [one.encode() if isinstance(one, str) else one for one in parts]
    return lambda row: b"".join([one if isinstance(one, bytes) else encoded(one(row)) for one in ready])
