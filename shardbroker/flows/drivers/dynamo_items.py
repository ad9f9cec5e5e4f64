"""Rows as items of DynamoDB: values with their types, within the limits of the service.

| value | attribute |
|---|---|
| integer, float | N, in the digits that read back as the same number |
| text, bytes | S, B |
| boolean, null | BOOL, NULL |
| map, array | M, L |
"""

import base64
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["Item", "ItemError", "Key", "Table", "item_of", "key_of", "values_of"]

ITEM_MAX = 400 << 10
"""Most bytes of an item, names of attributes included, by DynamoDB's limit."""
DEPTH_MAX = 32
"""Most levels of maps and arrays, the item included, by DynamoDB's limit."""
DIGITS_MAX = 38
"""Most digits of a number, by DynamoDB's limit."""
LEAST, MOST = 1e-130, 9.9999999999999e125
"""Range of the size of a number, by DynamoDB's limit."""
BITS_MAX = 419
"""Most bits of an integer below that limit: a longer one is not made into text."""
HASH_MAX, RANGE_MAX = 2048, 1024
"""Most bytes of a partition key and of a sort key, by DynamoDB's limit."""

Attribute = dict[str, Any]
Key = tuple[tuple[str, object], ...]
"""Type and value of each attribute of a key, numbers as Decimal."""


class ItemError(Exception):
    """A row that cannot be an item; the text has no value of it."""


class Item(NamedTuple):
    """Attributes as the API has them, and their bytes as DynamoDB counts them."""

    attributes: dict[str, Attribute]
    size: int


class Table(NamedTuple):
    """keys: attribute of the key -> type, the partition key first. indexed: attributes of indexes -> type."""

    name: str
    keys: Mapping[str, str]
    indexed: Mapping[str, str]


def item_of(values: Value, undefined_as_null: bool) -> Item:
    """Returns the item of a map. Raises ItemError."""
    if type(values) is not dict:
        raise ItemError("the row is no map")
    maker = _Maker({"NULL": True} if undefined_as_null else {"S": "undefined"})
    attributes = maker.of_map(values, DEPTH_MAX - 1)
    if maker.size > ITEM_MAX:
        raise ItemError(f"the item is larger than {ITEM_MAX} bytes")
    return Item(attributes, maker.size)


def values_of(attributes: Mapping[str, Attribute]) -> dict[str, Value]:
    """Returns the values of an item. Raises ValueError if it cannot be read."""
    return {name: _value_of(attribute) for name, attribute in attributes.items()}


def _value_of(attribute: Attribute) -> Value:
    ((kind, value),) = attribute.items()
    if kind == "N":
        return int(value) if value.lstrip("-").isdecimal() else float(value)
    if kind == "B":
        return base64.b64decode(value)
    if kind == "M":
        return {name: _value_of(one) for name, one in value.items()}
    if kind == "L":
        return [_value_of(one) for one in value]
    return None if kind == "NULL" else value


def key_of(attributes: Mapping[str, Attribute], table: Table) -> Key:
    """Returns the key of an item. Raises ItemError if the table cannot have it."""
    key = []
    for number, (name, kind) in enumerate(table.keys.items()):
        attribute = attributes.get(name)
        if attribute is None:
            raise ItemError(f"the item has no {name!r}, which is part of the key of the table")
        value = _indexed(name, kind, attribute)
        if _bytes_of(attribute) > (RANGE_MAX if number else HASH_MAX):
            raise ItemError(f"{name!r}: the value is larger than {RANGE_MAX if number else HASH_MAX} bytes, as a part of the key")
        key.append((kind, value))
    for name, kind in table.indexed.items():
        if name in attributes:
            _indexed(name, kind, attributes[name])
    return tuple(key)


def _indexed(name: str, kind: str, attribute: Attribute) -> object:
    """Returns the value of an attribute of a key or an index. Raises ItemError."""
    value = attribute.get(kind)
    if value is None:
        raise ItemError(f"{name!r}: must have the type {kind} in this table, got {next(iter(attribute))}")
    if value == "":
        raise ItemError(f"{name!r}: must not be empty, as a part of a key")
    if kind != "N":
        return value
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ItemError(f"{name!r}: must be a number") from None


def _bytes_of(attribute: Attribute) -> int:
    ((kind, value),) = attribute.items()
    return len(value) * 3 // 4 - value.count("=", -2) if kind == "B" else len(value.encode())


class _Maker:
    """size: bytes so far."""

    def __init__(self, undefined: Attribute) -> None:
        self.size = 0
        self._undefined = undefined

    def of_map(self, values: Mapping[Any, Value], depth: int) -> dict[str, Attribute]:
        made = {}
        for name, value in values.items():
            if type(name) is not str or not name:
                raise ItemError("the name of an attribute is empty, or no text")
            self._add_text(name)
            made[name] = self._of(value, depth)
        return made

    def _of(self, value: Value, depth: int) -> Attribute:
        kind = type(value)
        if kind is str:
            self._add_text(value)
            return {"S": value}
        if kind is int or kind is float:
            text = _number(value)
            self.size += len(text) // 2 + 1
            return {"N": text}
        if kind is bytes:
            self.size += len(value)
            return {"B": base64.b64encode(value).decode()}
        if kind is bool:
            self.size += 1
            return {"BOOL": value}
        if value is None:
            self.size += 1
            return {"NULL": True}
        if kind is dict or kind is list:
            return self._of_many(value, depth)
        if value is UNDEFINED:
            self.size += len("undefined")
            return dict(self._undefined)
        if isinstance(value, str):  # a date of mongo_date()
            self._add_text(value)
            return {"S": str(value)}
        raise ItemError("a value has no type of DynamoDB")

    def _of_many(self, value: Mapping[Any, Value] | Sequence[Value], depth: int) -> Attribute:
        if not depth:
            raise ItemError(f"the item has more than {DEPTH_MAX} levels")
        self.size += 3 + len(value)
        if self.size > ITEM_MAX:  # no work for what is too large
            raise ItemError(f"the item is larger than {ITEM_MAX} bytes")
        if isinstance(value, Mapping):
            return {"M": self.of_map(value, depth - 1)}
        return {"L": [self._of(one, depth - 1) for one in value]}

    def _add_text(self, text: str) -> None:
        try:
            self.size += len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            raise ItemError("a text is no valid Unicode") from None


def _number(value: float) -> str:
    """Returns the digits of a number. Raises ItemError."""
    if type(value) is int:
        if -(10**DIGITS_MAX) < value < 10**DIGITS_MAX:
            return str(value)
        if value.bit_length() > BITS_MAX:
            raise ItemError("an integer is above 9.99E+125")
        text = str(value)
        if len(text.lstrip("-").rstrip("0")) > DIGITS_MAX:
            raise ItemError(f"an integer has more than {DIGITS_MAX} digits")
        return text
    if not math.isfinite(value):
        raise ItemError("a number is infinite or none")
    if value == 0:
        return "0"
    if not LEAST <= abs(value) <= MOST:
        raise ItemError("a number is outside of 1E-130 to 9.99E+125")
    return repr(value)
