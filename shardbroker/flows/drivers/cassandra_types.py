"""Types of Cassandra, by those of a prepared statement: what the library serializes for a value of a rule."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from ipaddress import ip_address
from typing import Any, Final
from uuid import UUID

from cassandra.util import Time

from shardbroker.flows.drivers.sql_values import (
    EPOCH,
    FLOAT4_MAX,
    MILLISECONDS_MAX,
    MILLISECONDS_MIN,
    TIME,
    ColumnType,
    boolean_for,
    bytes_for,
    date_for,
    integer_for,
    moment_for,
    numeric_for,
    real,
    whole,
)  # fmt: skip
from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.values import Value

__all__ = ["name_of", "type_of"]

VARINT_BITS: Final = 1024
"""Of an integer of any size: more would be slow to print for the server's clients."""
ELEMENTS_MAX: Final = 65_535
"""Most elements of a collection: older servers count them with 16 bits."""
DEPTH_MAX: Final = 8
"""Most levels of collections in collections."""
DAY_NS: Final = 86_400 * 10**9


def name_of(type_: Any) -> str:
    """Returns the name of a type as CQL has it."""
    return str(type_.cql_parameterized_type())


def type_of(type_: Any) -> ColumnType | None:
    """Returns how values are sent for a type of the library; None: they cannot be sent."""
    return _type_of(type_, DEPTH_MAX)


def _type_of(type_: Any, depth: int) -> ColumnType | None:
    name = type_.typename
    if name in TYPES:
        return TYPES[name]
    inner = [_type_of(one, depth - 1) for one in type_.subtypes] if depth else []
    known = [one.convert for one in inner if one is not None]
    if not known or len(known) != len(inner):
        return None
    if name == "frozen":
        return inner[0]
    if name == "list" or (name == "set" and type_.subtypes[0].typename in TYPES):
        return ColumnType(f"an array for {name_of(type_)}", _sequence(known[0], name == "set"))
    return ColumnType(f"a map for {name_of(type_)}", _mapping(*known)) if name == "map" else None


def _sequence(convert: Callable[[Value], Any], is_set: bool) -> Callable[[Value], Any]:
    def converted(value: Value) -> list[Any]:
        if type(value) is not list or len(value) > ELEMENTS_MAX or None in value:
            raise ValueError
        made = [convert(one) for one in value]
        return list(dict.fromkeys(made)) if is_set else made

    return converted


def _mapping(of_key: Callable[[Value], Any], of_value: Callable[[Value], Any]) -> Callable[[Value], Any]:
    def converted(value: Value) -> dict[Any, Any]:
        if type(value) is not dict or len(value) > ELEMENTS_MAX or None in value.values():
            raise ValueError
        return {of_key(key): of_value(one) for key, one in value.items()}

    return converted


def _text_for(value: Value) -> str:
    text = text_of(value)
    if isinstance(text, bytes):
        return text.decode()
    text.encode()
    return text


def _ascii_for(value: Value) -> str:
    text = _text_for(value)
    text.encode("ascii")
    return text


def _encodable(encoding: str) -> Callable[[Sequence[str]], bool]:
    def fits(values: Sequence[str]) -> bool:
        joined = "".join(values)
        if joined.isascii():
            return True
        try:
            joined.encode(encoding)
        except UnicodeEncodeError:
            return False
        return True

    return fits


def _milliseconds_for(value: Value) -> int:
    """Returns Unix ms, rounded down: those of moment_for()."""
    if type(value) is int and MILLISECONDS_MIN <= value <= MILLISECONDS_MAX:
        return value
    return (moment_for(value) - EPOCH) // timedelta(milliseconds=1)


def _uuid_for(value: Value) -> UUID:
    if type(value) is bytes:
        return UUID(bytes=value)
    if type(value) is not str:
        raise ValueError
    return UUID(value)


def _timeuuid_for(value: Value) -> UUID:
    found = _uuid_for(value)
    if found.version != 1:
        raise ValueError
    return found


def _inet_for(value: Value) -> str:
    if type(value) is not str or "%" in value:  # a zone, which Cassandra does not have
        raise ValueError
    return str(ip_address(value))


def _decimal_for(value: Value) -> Decimal:
    number = numeric_for(value)
    if not number.is_finite():
        raise ValueError
    return number


def _time_for(value: Value) -> Time:
    if type(value) is int and 0 <= value < DAY_NS:
        return Time(value)
    if type(value) is not str:
        raise ValueError
    return Time(value)


TEXT: Final = ColumnType("text in UTF-8", _text_for, frozenset({str}), _encodable("utf-8"), is_text=True)
TYPES: Final = {
    "tinyint": whole("tinyint", -(2**7), 2**7 - 1),
    "smallint": whole("smallint", -(2**15), 2**15 - 1),
    "int": whole("int", -(2**31), 2**31 - 1),
    "bigint": whole("bigint", -(2**63), 2**63 - 1),
    "varint": ColumnType(f"an integer of up to {VARINT_BITS} bits", integer_for(-(2**VARINT_BITS), 2**VARINT_BITS)),
    "float": real("float", FLOAT4_MAX),
    "double": real("double", 1.7976931348623157e308),
    "decimal": ColumnType("a finite number for decimal", _decimal_for),
    "boolean": ColumnType("true or false", boolean_for, frozenset({bool})),
    "text": TEXT,
    "varchar": TEXT,
    "ascii": ColumnType("text in ASCII", _ascii_for, frozenset({str}), _encodable("ascii"), is_text=True),
    "blob": ColumnType("bytes or text", bytes_for, frozenset({bytes})),
    "timestamp": ColumnType(
        f"{TIME} for timestamp",
        _milliseconds_for,
        frozenset({int}),
        lambda values: not values or (min(values) >= MILLISECONDS_MIN and max(values) <= MILLISECONDS_MAX),
    ),
    "date": ColumnType(f"{TIME} for date", date_for),
    "time": ColumnType("a time of day such as 23:59:59.5, or nanoseconds since midnight,", _time_for),
    "uuid": ColumnType("a UUID, or 32 hexadecimal digits,", _uuid_for),
    "timeuuid": ColumnType("a UUID of version 1", _timeuuid_for),
    "inet": ColumnType("an IP address", _inet_for),
}
"""By the name in CQL."""
