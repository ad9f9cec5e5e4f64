"""Values of rules.

| SQL | Python |
|---|---|
| number | `int`, `float` (1 and 1.0 differ for `IN`, and in what a rule returns) |
| text, bytes | `str`; `bytes` where it is no UTF-8 |
| boolean, null | `bool`, `None` |
| map, array | `dict`, `list` |
| missing field | `UNDEFINED` |
"""

from typing import Any, Final, TypeAlias, final

__all__ = ["UNDEFINED", "EvaluationError", "Value", "is_number"]

Value: TypeAlias = Any
"""One of the types above; checked where it is used, since a rule has no types."""


@final
class _Undefined:
    """The value of a field that a message does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED: Final = _Undefined()
"""Compared with `is`."""


class EvaluationError(Exception):
    """A rule cannot be evaluated for a message; EMQX counts it as failed.exception."""


def is_number(value: Value) -> bool:
    """Returns whether a value is an integer or a float, so no boolean."""
    return type(value) is int or type(value) is float
