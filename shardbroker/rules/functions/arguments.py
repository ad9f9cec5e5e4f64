"""Checks of arguments and bounds of results, shared by all functions."""

from typing import Any

from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = [
    "MAX_INTEGER_BITS",
    "MAX_RESULT_BYTES",
    "array",
    "bounded_size",
    "bounded_width",
    "from_octets",
    "integer",
    "number",
    "octets",
    "refusal",
    "text",
]

MAX_RESULT_BYTES = 1 << 20
"""Bytes of a text that a function makes: as much as the default of mqtt.max_packet_size, above which no message could carry it."""

MAX_INTEGER_BITS = 4096
"""Bits of an integer: wider than any field of a protocol or key; beyond about 14,000 Python refuses to print one, since that is
quadratic work."""

_SHOWN = 64
"""Characters of a refused value in its error."""


def refusal(key: str, must: str, got: Value) -> EvaluationError:
    """Returns the error of an argument."""
    if isinstance(got, str | bytes):
        got = got[:_SHOWN]
    shown = f"a {type(got).__name__}" if isinstance(got, list | dict) else repr(got)
    return EvaluationError(f"{key}: must be {must}, got {shown[: 2 * _SHOWN]}")


def number(value: Value, key: str = "number") -> Any:
    """Returns an integer or a float; a boolean is neither."""
    if type(value) is int or type(value) is float:
        return value
    raise refusal(key, "a number", value)


def integer(value: Value, key: str = "number") -> int:
    if type(value) is int:
        return value
    raise refusal(key, "an integer", value)


def bounded_width(bits: int) -> None:
    """Refuses an integer before it is made, by the number of its bits."""
    if bits > MAX_INTEGER_BITS:
        raise EvaluationError(f"integer: must be at most {MAX_INTEGER_BITS} bits wide, got {bits}")


def bounded_size(size: int) -> None:
    """Refuses a result before it is made, by the number of its bytes."""
    if size > MAX_RESULT_BYTES:
        raise EvaluationError(f"result: must be at most {MAX_RESULT_BYTES} bytes, got {size}")


def text(value: Value, key: str = "text") -> str:
    """Returns text; booleans count as their names, as in EMQX, where they are atoms. Null and undefined do not."""
    if type(value) is str:
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return str(value)
    raise refusal(key, "text in UTF-8" if type(value) is bytes else "text", value)


def octets(value: Value, key: str = "data") -> bytes:
    """Returns the bytes of a text, in UTF-8."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    raise refusal(key, "text or bytes", value)


def from_octets(data: bytes) -> str | bytes:
    """Returns bytes as a value: text if they are UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def array(value: Value, key: str = "array") -> list[Value]:
    if type(value) is list:
        return value
    raise refusal(key, "an array", "undefined" if value is UNDEFINED else value)
