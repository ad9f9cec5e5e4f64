"""Text forms of values, as EMQX makes them: of numbers, of any value, and of values as JSON."""

import json
import math
import re
from typing import Final

from shardbroker.rules.functions.arguments import MAX_RESULT_BYTES, bounded_size, refusal
from shardbroker.rules.functions.libraries import library
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["float_text", "json_text", "json_value", "key_order", "text_of"]

DEFAULT_DECIMALS: Final = 10
"""Digits after the point of a float that becomes text without a number of decimals."""

MAX_DECIMALS: Final = 253
"""Digits after the point that EMQX accepts."""

_MAX_FLOAT_CHARACTERS: Final = 255
"""Characters of a float in fixed notation; EMQX raises above."""

_SCALED_DECIMALS: Final = 18
"""Up to here the fraction is scaled to an integer and rounded, as in EMQX; more digits are those of the exact binary value."""

_EXACT_INTEGERS: Final = 2.0**53
"""Above, floats are integers."""

_MAX_JSON_DEPTH: Final = 128
"""Levels of arrays and maps of a value that becomes JSON, so that no payload ends in Python's recursion limit."""

_WIDE_NUMBER = re.compile(r"\d{19}")
"""What may be an integer of more than 64 bits, which orjson would make a float."""

_PRINTABLE = frozenset([*range(0x20, 0x7F), *range(0xA0, 0x100), *b"\n\r\t\v\b\f\x1b"])
"""Characters of an array of numbers that counts as text: Latin-1, since Erlang's strings are arrays of numbers."""


def float_text(value: float, decimals: int = DEFAULT_DECIMALS, compact: bool = True) -> str:
    """Returns a float in fixed notation. `compact` leaves out zeros at its end, except one after the point."""
    if not 0 <= decimals <= MAX_DECIMALS:
        raise refusal("decimals", f"0 to {MAX_DECIMALS}", decimals)
    if not math.isfinite(value):
        raise refusal("number", "finite", value)
    if decimals > _SCALED_DECIMALS or abs(value) > _EXACT_INTEGERS:
        shown = f"{value:.{decimals}f}"
    else:
        shown = _scaled_text(value, decimals)
    if len(shown) > _MAX_FLOAT_CHARACTERS:
        raise refusal("number", f"at most {_MAX_FLOAT_CHARACTERS} characters long", value)
    if compact and "." in shown:
        shown = shown.rstrip("0")
        shown += "0" * shown.endswith(".")
    return shown


def _scaled_text(value: float, decimals: int) -> str:
    size = abs(value)
    sign = "-" if value < 0 else ""
    if not decimals:
        return f"{sign}{math.floor(size + 0.5)}"
    whole = math.floor(size)
    scaled = (size - whole) * 10.0**decimals
    fraction = math.floor(scaled)
    fraction += scaled - fraction >= 0.5
    if fraction >= 10**decimals:
        whole, fraction = whole + 1, 0
    return f"{sign}{whole}.{fraction:0{decimals}d}"


def text_of(value: Value) -> str | bytes:
    """Returns any value as text: maps and arrays as JSON, an array of printable numbers as their characters."""
    if isinstance(value, str | bytes):
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return float_text(value)
    if value is None or value is UNDEFINED:
        return "null" if value is None else "undefined"
    if type(value) is list:
        return "".join(map(chr, value)) if all(type(one) is int and one in _PRINTABLE for one in value) else json_text(value)
    return json_text(value)


def key_order(key: Value) -> tuple[int, Value]:
    """Orders keys of a map as EMQX does: numbers before text."""
    return (1, key) if isinstance(key, str) else (0, key)


def json_text(value: Value) -> str:
    """Returns a value as JSON; maps begin with their last key, as in EMQX."""
    ordered = _ordered(value, _MAX_JSON_DEPTH)
    try:
        encoded: str = library("orjson").dumps(ordered).decode()
    except TypeError:
        # An integer of more than 64 bits.
        encoded = json.dumps(ordered, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    bounded_size(len(encoded))
    return encoded


def _ordered(value: Value, depth: int) -> Value:
    """Returns a value with the names of what JSON does not have, and maps in EMQX's order."""
    kind = type(value)
    if kind is dict or kind is list:
        if not depth:
            raise EvaluationError(f"value: must be at most {_MAX_JSON_DEPTH} levels deep")
        if kind is list:
            return [_ordered(one, depth - 1) for one in value]
        return {_key(key): _ordered(value[key], depth - 1) for key in sorted(value, key=key_order, reverse=True)}
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, str | int | float) or value is None:
        return value
    raise refusal("value", "text in UTF-8, a number, a boolean, null, a map or an array", value)


def _key(key: Value) -> str:
    if isinstance(key, str):
        return key
    raise refusal("key", "text", key)


def json_value(data: str | bytes) -> Value:
    """Returns the value of a JSON text; integers keep all their digits."""
    if len(data) > MAX_RESULT_BYTES:
        raise EvaluationError(f"JSON: must be at most {MAX_RESULT_BYTES} bytes, got {len(data)}")
    if isinstance(data, str) and _WIDE_NUMBER.search(data):
        return json.loads(data, parse_constant=_refuse_constant)
    return library("orjson").loads(data)


def _refuse_constant(name: str) -> Value:
    raise refusal("JSON", "without NaN and Infinity", name)
