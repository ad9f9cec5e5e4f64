"""Values of rules as values of SQL's types, a column at a time.

A column whose values can be sent as they are costs a look at their Python types. Else its values are converted one by one, so that
a value that does not fit fails its own row.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from math import inf
from typing import Any, Final

from shardbroker.rules.functions.texts import json_text, text_of
from shardbroker.rules.payload import decode
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = [
    "EPOCH", "FLOAT4_MAX", "JSON_TYPE", "MILLISECONDS_MAX", "MILLISECONDS_MIN", "NONE", "TIME", "ColumnType", "boolean_for",
    "bytes_for", "converted", "date_for", "integer_for", "local_time_for", "moment_for", "numeric_for", "real", "real_for",
    "text_for", "texts_fit", "whole",
]  # fmt: skip

KINDS: Final[dict[type, str]] = {
    str: "a text", bytes: "bytes", bool: "a boolean", int: "an integer", float: "a number", dict: "a map", list: "an array"
}  # fmt: skip
NONE: Final = type(None)
INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
REAL: Final = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
NUMERIC_DIGITS, NUMERIC_PLACES = 131072, 16383
"""Digits of a numeric before and after the point (PostgreSQL, 8.1.2). A client may send 1e999999999."""
FLOAT4_MAX: Final = 3.4028235677973366e38
"""What rounds to a finite number of 32 bits."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECONDS_MIN, MILLISECONDS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """must_be: for errors. fits: whether all of a column, without NULL, can be sent as it is; all are of the types `exact`."""

    must_be: str
    convert: Callable[[Value], Any]
    """Returns what is sent. Raises ValueError."""
    exact: frozenset[type] = frozenset()
    fits: Callable[[Sequence[Any]], bool] = lambda values: True
    is_text: bool = False


def converted(values: list[Value], type_: ColumnType, undefined_as_null: bool, failed: Callable[[int, str], None]) -> list[Any]:
    """Returns what is sent for the values of a placeholder. `failed` is called with the index and the reason of one that fails."""
    kinds = set(map(type, values))
    if kinds <= type_.exact and type_.fits(values):
        return values
    if NONE in kinds and kinds - {NONE} <= type_.exact and type_.fits([value for value in values if value is not None]):
        return values
    made: list[Any] = []
    for index, value in enumerate(values):
        try:
            made.append(_one(value, type_, undefined_as_null))
        except (ValueError, EvaluationError, InvalidOperation, OverflowError, RecursionError):
            made.append(None)
            failed(index, f"must be {type_.must_be}, got {_kind(value)}")
    return made


def _one(value: Value, type_: ColumnType, undefined_as_null: bool) -> Any:
    if value is UNDEFINED:
        if undefined_as_null:
            return None
        if type_.is_text:
            return "undefined"
        raise ValueError
    return None if value is None else type_.convert(value)


def _kind(value: Value) -> str:
    """Names a value without showing it: it is a client's."""
    if value is UNDEFINED:
        return "no value; undefined_vars_as_null = true writes NULL"
    return KINDS.get(type(value), "something else")


# --- conversions ------------------------------------------------------------------------------------------------------------------


def text_for(value: Value) -> str:
    text = text_of(value)
    if isinstance(text, bytes):
        text = text.decode()
    if "\0" in text:
        raise ValueError
    text.encode()
    return text


def texts_fit(values: Sequence[str]) -> bool:
    joined = "".join(values)
    if "\0" in joined:
        return False
    if joined.isascii():
        return True
    try:
        joined.encode()
    except UnicodeEncodeError:
        return False
    return True


def bytes_for(value: Value) -> bytes:
    shown = text_of(value)
    return shown if isinstance(shown, bytes) else shown.encode(errors="surrogatepass")


def boolean_for(value: Value) -> bool:
    found = {True: True, False: False, "true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if type(value) is float or type(value) not in (bool, int, str) or value not in found:
        raise ValueError
    return found[value]


def integer_for(low: int, high: int) -> Callable[[Value], int]:
    def convert(value: Value) -> int:
        if type(value) is str:
            is_one = INTEGER.fullmatch(value) is not None
        else:
            is_one = type(value) is int or (type(value) is float and value.is_integer())
        if not is_one or not low <= int(value) <= high:
            raise ValueError
        return int(value)

    return convert


def real_for(largest: float) -> Callable[[Value], float]:
    def convert(value: Value) -> float:
        if not (REAL.fullmatch(value) if type(value) is str else type(value) is int or type(value) is float):
            raise ValueError
        number = float(value)
        if abs(number) > largest and (type(value) is not float or abs(number) != inf):
            raise ValueError
        return number

    return convert


def numeric_for(value: Value) -> Decimal:
    if type(value) is float:
        number = Decimal(repr(value))
    elif type(value) is int or (type(value) is str and REAL.fullmatch(value)):
        number = Decimal(value)
    else:
        raise ValueError
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and (number.adjusted() >= NUMERIC_DIGITS or -exponent > NUMERIC_PLACES):
        raise ValueError
    return number


def json_for(value: Value) -> str:
    if type(value) is float and (value != value or abs(value) == inf):
        raise ValueError
    if type(value) is not str:
        return text_for(value) if type(value) is not list else json_text(value)
    decode(value)
    return value


def moment_for(value: Value) -> datetime:
    """Returns the time of Unix ms, or of a text of RFC 3339; without a zone it is UTC."""
    if type(value) is str:
        found = datetime.fromisoformat(value)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    if type(value) is not int and type(value) is not float:
        raise ValueError
    if not MILLISECONDS_MIN <= value <= MILLISECONDS_MAX:
        raise ValueError
    return EPOCH + timedelta(milliseconds=value)


def local_time_for(value: Value) -> datetime:
    return moment_for(value).replace(tzinfo=None)


def date_for(value: Value) -> date:
    return moment_for(value).date()


def whole(name: str, low: int, high: int) -> ColumnType:
    """Returns the type of integers within a range."""
    return ColumnType(
        f"an integer from {low} to {high} for {name}",
        integer_for(low, high),
        frozenset({int}),
        lambda values: not values or (min(values) >= low and max(values) <= high),
    )


def real(name: str, largest: float) -> ColumnType:
    """Returns the type of numbers up to the largest of a format."""
    return ColumnType(f"a number in the range of {name}", real_for(largest), frozenset({float}), lambda some: _small(some, largest))


def _small(values: Sequence[float], largest: float) -> bool:
    return not values or (max(values) <= largest and min(values) >= -largest)


TIME: Final = "Unix milliseconds, or a time such as 2026-01-31T23:59:59Z,"
JSON_TYPE: Final = ColumnType("JSON", json_for)
