"""Types of PostgreSQL. Those that are not in TYPES are sent as text, which the server reads like a literal, as are all arrays."""

from typing import Final

from shardbroker.flows.drivers.sql_values import (
    FLOAT4_MAX,
    JSON_TYPE,
    TIME,
    ColumnType,
    boolean_for,
    bytes_for,
    date_for,
    local_time_for,
    moment_for,
    numeric_for,
    real,
    text_for,
    texts_fit,
    whole,
)  # fmt: skip
from shardbroker.rules.values import Value

__all__ = ["ARRAY", "OTHER", "TYPES"]


def _array(value: Value) -> str:
    """Returns an array as PostgreSQL writes it: {1,NULL,"a \\"b\\""}."""
    if type(value) is str:
        return text_for(value)
    if type(value) is not list:
        raise ValueError
    return "{" + ",".join(map(_element, value)) + "}"


def _element(value: Value) -> str:
    if value is None:
        return "NULL"
    if type(value) is list:
        return _array(value)
    return '"' + text_for(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


TEXT: Final = ColumnType("text in UTF-8 without NUL", text_for, frozenset({str}), texts_fit, is_text=True)
OTHER: Final = ColumnType("text in UTF-8 without NUL", text_for, frozenset({str}), texts_fit)
"""Of all types that are not listed, such as interval, uuid, inet and those that users make."""
ARRAY: Final = ColumnType("an array", _array)
TYPES: Final = {
    "int2": whole("smallint", -(2**15), 2**15 - 1),
    "int4": whole("integer", -(2**31), 2**31 - 1),
    "int8": whole("bigint", -(2**63), 2**63 - 1),
    "float4": real("real", FLOAT4_MAX),
    "float8": real("double precision", 1.7976931348623157e308),
    "numeric": ColumnType("a number for numeric", numeric_for),
    "bool": ColumnType("true or false", boolean_for, frozenset({bool})),
    "text": TEXT,
    "varchar": TEXT,
    "bpchar": TEXT,
    "bytea": ColumnType("bytes or text", bytes_for, frozenset({bytes})),
    "json": JSON_TYPE,
    "jsonb": JSON_TYPE,
    "timestamptz": ColumnType(f"{TIME} for timestamptz", moment_for),
    "timestamp": ColumnType(f"{TIME} for timestamp", local_time_for),
    "date": ColumnType(f"{TIME} for date", date_for),
}
"""By the name in pg_catalog."""
