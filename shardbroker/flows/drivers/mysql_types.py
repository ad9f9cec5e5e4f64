"""Types of MySQL, by DATA_TYPE of information_schema. The server converts what is sent for all others."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final

from shardbroker.flows.drivers.sql_values import (
    JSON_TYPE,
    TIME,
    ColumnType,
    bytes_for,
    date_for,
    local_time_for,
    moment_for,
    numeric_for,
    real_for,
    whole,
)  # fmt: skip
from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.values import Value

__all__ = ["ANY", "TIMESTAMP", "type_named"]

DECIMAL_DIGITS: Final = 65
FIRST_TIMESTAMP: Final = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
LAST_TIMESTAMP: Final = datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)
INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}


def type_named(name: str, is_unsigned: bool) -> ColumnType:
    """Returns how values are sent for a column."""
    if bits := INTEGER_BITS.get(name):
        low, high = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return whole(f"{name}{' unsigned' if is_unsigned else ''}", low, high)
    return TYPES.get(name, ANY)


def _utf8(values: Sequence[str]) -> bool:
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


def _sendable(values: Sequence[Any]) -> bool:
    """Returns whether values of one type can be sent as they are."""
    kinds = set(map(type, values))
    if kinds == {str}:
        return _utf8(values)
    if kinds == {int}:
        return bool(min(values) >= -(2**63) and max(values) < 2**64)
    return all(map(isfinite, values)) if kinds == {float} else kinds <= {bytes}


def _any(value: Value) -> Any:
    """Returns a value as the library sends it, which has no types for maps and arrays, and integers of 64 bits."""
    if type(value) is bool or type(value) is bytes:
        return value
    if type(value) is float:
        if not isfinite(value):
            raise ValueError
        return value
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else str(value)
    return _text(value)


def _text(value: Value) -> str:
    text = text_of(value)
    if isinstance(text, bytes):
        text = text.decode()
    text.encode()
    return text


def _decimal(value: Value) -> str:
    number = numeric_for(value)
    if not number.is_finite() or number.adjusted() >= DECIMAL_DIGITS:
        raise ValueError
    return format(number, "f")


def _real(name: str, largest: float) -> ColumnType:
    """Returns the type of finite numbers: the server has no others."""

    def convert(value: Value) -> float:
        number = real_for(largest)(value)
        if not isfinite(number):
            raise ValueError
        return number

    def fits(values: Sequence[float]) -> bool:
        return all(map(isfinite, values)) and max(map(abs, values), default=0.0) <= largest

    return ColumnType(f"a finite number in the range of {name}", convert, frozenset({float}), fits)


def _timestamp(value: Value) -> str:
    """Returns seconds, for FROM_UNIXTIME: a time as text would be in the time zone of the server."""
    moment = moment_for(value)
    if not FIRST_TIMESTAMP <= moment <= LAST_TIMESTAMP:
        raise ValueError
    return f"{(moment - FIRST_TIMESTAMP) // timedelta(seconds=1) + 1}.{moment.microsecond:06}"


ANY: Final = ColumnType("a finite number, text in UTF-8 or bytes", _any, frozenset({str, int, float, bytes}), _sendable, True)
TEXT: Final = ColumnType("text in UTF-8", _text, frozenset({str}), _utf8, is_text=True)
BINARY: Final = ColumnType("bytes or text", bytes_for, frozenset({bytes}))
TIMESTAMP: Final = ColumnType(f"{TIME} from 1970 to January 2038 for timestamp", _timestamp)
TYPES: Final = {
    "float": _real("float", 3.4028234663852886e38),
    "double": _real("double", 1.7976931348623157e308),
    "decimal": ColumnType("a number for decimal", _decimal),
    "char": TEXT, "varchar": TEXT, "tinytext": TEXT, "text": TEXT, "mediumtext": TEXT, "longtext": TEXT,
    "binary": BINARY, "varbinary": BINARY, "tinyblob": BINARY, "blob": BINARY, "mediumblob": BINARY, "longblob": BINARY,
    "json": JSON_TYPE,
    "datetime": ColumnType(f"{TIME} for datetime", local_time_for),
    "timestamp": TIMESTAMP,
    "date": ColumnType(f"{TIME} for date", date_for),
}  # fmt: skip
