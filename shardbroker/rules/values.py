"""Values of rules.

| SQL | Python |
|---|---|
| number | `int`, `float` (1 and 1.0 differ for `IN`, and in what a rule returns) |
| text, bytes | `str`; `bytes` where it is no UTF-8 |
| boolean, null | `bool`, `None` |
| map, array | `dict`, `list` |
| missing field | `UNDEFINED` |
"""

import json
from typing import Any, Final, TypeAlias, final

__all__ = ["UNDEFINED", "EvaluationError", "Value", "is_number", "text_of"]

Value: TypeAlias = Any
"""One of the types above; checked where it is used, since a rule has no types."""

DECIMALS: Final = 10
"""Digits behind the point of a float that becomes text, as in EMQX."""
FLOAT_TEXT_MAX: Final = 1e253
"""Floats from here on have no text in fixed notation of EMQX's length."""


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
    """Returns whether a value is a number; a boolean is none."""
    return type(value) is int or type(value) is float


def text_of(value: Value) -> str | bytes:
    """Returns a value as the operator `+` and templates write it: maps and arrays as JSON."""
    if isinstance(value, str | bytes):
        return value
    if value is UNDEFINED or value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}.get(value, "undefined") if value is not UNDEFINED else "undefined"
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return _float_text(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _float_text(value: float) -> str:
    if abs(value) >= FLOAT_TEXT_MAX:
        raise EvaluationError(f"number: must be below {FLOAT_TEXT_MAX}, got {value}")
    shown = f"{value:.{DECIMALS}f}".rstrip("0")
    return shown + "0" if shown.endswith(".") else shown


def _plain(value: Value) -> str:
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    raise EvaluationError(f"value: must be text, a number, a boolean, null, a map or an array, got {type(value).__name__}")
