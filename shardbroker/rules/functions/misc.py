"""Defaults for missing values, identifiers, the environment."""

import os
import uuid

from shardbroker.rules.functions.arguments import array, bounded_size, refusal
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["FUNCTIONS"]

PREFIX = "SHARDBROKERVAR_"
"""Begins the names of environment variables that rules may read: all others may hold secrets of the broker."""


def _coalesce(*values: Value) -> Value:
    """The first of two values, or of an array, that is not missing."""
    return next((value for value in _choices(values) if value is not UNDEFINED), UNDEFINED)


def _coalesce_not_empty(*values: Value) -> Value:
    """The first that is neither missing nor empty text, nor an empty array, which is empty text in EMQX."""
    return next((value for value in _choices(values) if value is not UNDEFINED and value != "" and value != []), UNDEFINED)


def _choices(values: tuple[Value, ...]) -> list[Value]:
    return array(values[0]) if len(values) == 1 else list(values)


def _environment(name: Value) -> str:
    """The variable `SHARDBROKERVAR_name`; empty text if it is not set."""
    if not isinstance(name, str) or "\0" in name:
        raise refusal("name", "text", name)
    value = os.environ.get(PREFIX + name, "")
    bounded_size(len(value))
    return value


FUNCTIONS: dict[str, Function] = {
    "coalesce": Function(_coalesce, (1, 2)),
    "coalesce_ne": Function(_coalesce_not_empty, (1, 2)),
    "getenv": Function(_environment, (1,), is_pure=False),
    "null": Function(lambda: UNDEFINED, (0,)),
    "uuid_v4": Function(lambda: str(uuid.uuid4()), (0,), is_pure=False),
    "uuid_v4_no_hyphen": Function(lambda: uuid.uuid4().hex, (0,), is_pure=False),
}
