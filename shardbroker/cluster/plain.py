"""Values of the sessions' cores as plain ones, and back: for the process that replaces a worker, docs/design/0016-handover.md.

    to_plain(value)  ->  None, numbers, texts, bytes, and lists [kind, ...] of them     what CBOR has
    from_plain(plain, records)  ->  the value; enums are numbers

A record is a named tuple or a dataclass, known by the name of its class. Of a dataclass, fields that have their defaults are left
out, so a later version may add some with a default.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any

__all__ = ["from_plain", "records_of", "to_plain"]

LIST, TUPLE, SET, FROZENSET, DEQUE, DICT, COUNTER, NAMED, DATACLASS = range(9)
"""Kinds, in the first place of a list. They are part of the format."""
SEQUENCES: dict[type, int] = {list: LIST, tuple: TUPLE, set: SET, frozenset: FROZENSET, deque: DEQUE}
MADE = {kind: made for made, kind in SEQUENCES.items()}


def records_of(*classes: type) -> dict[str, type]:
    """Returns the classes of records by name."""
    return {one.__name__: one for one in classes}


@cache
def _defaults(record: type) -> tuple[tuple[str, Any], ...]:
    """Returns the fields of a dataclass with their defaults, MISSING for one without."""
    found = []
    for one in fields(record):
        found.append((one.name, one.default if one.default_factory is MISSING else one.default_factory()))
    return tuple(found)


def to_plain(value: Any) -> Any:
    """Returns a value as plain ones. Raises TypeError."""
    if value is None or isinstance(value, bool | str | bytes):
        return value
    if isinstance(value, int):
        return int(value) if isinstance(value, IntEnum) else value
    kind = SEQUENCES.get(type(value))
    if kind is not None:
        return [kind, *map(to_plain, value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [NAMED, type(value).__name__, *map(to_plain, value)]
    if type(value) in (dict, Counter):
        return [DICT if type(value) is dict else COUNTER, *(to_plain(one) for item in value.items() for one in item)]
    if is_dataclass(value) and not isinstance(value, type):
        found = {name: given for name, default in _defaults(value.__class__) if (given := getattr(value, name)) != default}
        return [DATACLASS, type(value).__name__, {name: to_plain(one) for name, one in found.items()}]
    raise TypeError(f"a {type(value).__name__} is not plain")


def from_plain(plain: Any, records: Mapping[str, type]) -> Any:
    """Returns the value. Raises KeyError for a record that is not among `records`, ValueError, TypeError."""
    if not isinstance(plain, list):
        return plain
    kind, *rest = plain
    if kind in MADE:
        return MADE[kind](from_plain(one, records) for one in rest)
    if kind in (DICT, COUNTER):
        pairs = dict(_pairs([from_plain(one, records) for one in rest]))
        return pairs if kind == DICT else Counter(pairs)
    if kind == NAMED:
        return records[rest[0]](*(from_plain(one, records) for one in rest[1:]))
    if kind == DATACLASS:
        return records[rest[0]](**{name: from_plain(one, records) for name, one in rest[1].items()})
    raise ValueError(f"kind {kind} of a value")


def _pairs(values: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)
