"""Values of sessions as plain ones, which `marshal` writes, and back: for the process that replaces this one.

    to_plain(value, Records(...))  ->  None, numbers, texts, bytes, and tuples (kind, ...) of them
    from_plain(plain, Records(...))  ->  the value; enums of numbers are numbers

A part is an object with slots that has an identity: where it was in two places, it is again, also in a part of itself. Another
slot of a part is another version of the state: `Role.moves` of the gateway.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from shardbroker.gateways.session import PACKET_MAX, VERSION
from shardbroker.mqtt.batches import split_packets
from shardbroker.mqtt.packets import Publish

__all__ = ["Records", "from_plain", "publish_of", "to_plain"]

LIST, TUPLE, DEQUE, DICT, NAMED, PART, KNOWN, PUBLISH = range(8)
"""Kinds. They are part of the format."""
SEQUENCES: dict[type, int] = {list: LIST, tuple: TUPLE, deque: DEQUE}
MADE = {kind: made for made, kind in SEQUENCES.items()}
PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class Records:
    """The classes of parts and named tuples, by name."""

    def __init__(self, *classes: Any) -> None:
        self.by_name: dict[str, Any] = {one.__name__: one for one in classes}
        self.names: dict[type, str] = {one: name for name, one in self.by_name.items()}


def publish_of(data: bytes) -> Publish:
    """Returns the message in a packet that a process of this gateway has encoded."""
    (publish,), _ = split_packets(data, VERSION, PACKET_MAX)
    assert type(publish) is Publish
    return publish


def to_plain(value: Any, records: Records, known: dict[int, int] | None = None) -> Any:
    """Returns a value as plain ones. known: numbers of the parts that are written, by id(). Raises TypeError."""
    known = {} if known is None else known
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in SEQUENCES:
        return SEQUENCES[kind], tuple(to_plain(one, records, known) for one in value)
    if kind is dict:
        return DICT, tuple(to_plain(one, records, known) for item in value.items() for one in item)
    if kind is Publish:
        return PUBLISH, value.encode(VERSION)
    if isinstance(value, int):
        return int(value)
    name = records.names.get(kind)
    if name is None:
        raise TypeError(f"a {kind.__name__} is not plain")
    if issubclass(kind, tuple):
        return NAMED, name, tuple(to_plain(one, records, known) for one in value)
    number = known.get(id(value))
    if number is not None:
        return KNOWN, number
    known[id(value)] = number = len(known)
    return PART, number, name, {slot: to_plain(getattr(value, slot), records, known) for slot in kind.__slots__}


def from_plain(plain: Any, records: Records, known: dict[int, Any] | None = None) -> Any:
    """Returns the value. Raises KeyError, ValueError."""
    if type(plain) is not tuple:
        return plain
    known = {} if known is None else known
    kind, *rest = plain
    if kind in MADE:
        return MADE[kind](_all(rest[0], records, known))
    if kind == DICT:
        found = [*_all(rest[0], records, known)]
        return dict(zip(found[::2], found[1::2], strict=True))
    if kind == PUBLISH:
        return publish_of(rest[0])
    if kind == NAMED:
        return records.by_name[rest[0]](*_all(rest[1], records, known))
    if kind == KNOWN:
        return known[rest[0]]
    if kind != PART:
        raise ValueError(f"kind {kind} of a value")
    number, name, values = rest
    made = records.by_name[name]
    part = known[number] = made.__new__(made)
    for slot, value in values.items():
        setattr(part, slot, from_plain(value, records, known))
    return part


def _all(plain: Iterable[Any], records: Records, known: dict[int, Any]) -> Iterable[Any]:
    return (from_plain(one, records, known) for one in plain)
