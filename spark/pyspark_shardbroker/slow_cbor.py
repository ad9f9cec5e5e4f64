"""Decodes one CBOR record at a time, in plain Python: for the few that numpy's lockstep cannot decode."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["BYTES", "MISSING", "NULL", "OTHER", "UINT", "BadRecord", "SlowRecord", "read_record"]

MISSING, UINT, BYTES, NULL, OTHER = range(5)
"""Types of items, as far as they matter."""
_DEEPEST = 4
"""Levels of arrays and maps in a record; current ones have two."""


class BadRecord(ValueError):
    """The bytes are not a record."""


@dataclass
class SlowRecord:
    """end: start of the next record. items: type of item, number or length, and start of its bytes, for each field. details: the
    map in the last field of records about sessions."""

    end: int
    items: list[tuple[int, int, int]] = field(default_factory=list)
    details: dict[int, Any] = field(default_factory=dict)


def read_record(data: Any, at: int, end: int) -> SlowRecord:
    """Decodes the record that begins at `at` and ends at or before `end`. Raises BadRecord."""
    major, count, here = _head(data, at, end)
    if major != 4 or count == 0:
        raise BadRecord(f"byte {at} of the window is not the start of a record")
    record = SlowRecord(0)
    _, here = _item(data, here, end, 0)  # the kind
    for _ in range(count - 1):
        major, value, start = _head(data, here, end)
        item, here = _item(data, here, end, 0)
        if major == 0:
            record.items.append((UINT, value, start))
        elif major == 2:
            record.items.append((BYTES, value, start))
        elif item is None:
            record.items.append((NULL, 0, start))
        else:
            record.items.append((OTHER, 0, start))
            if isinstance(item, dict):
                record.details = item
    record.end = here
    return record


def _head(data: Any, at: int, end: int) -> tuple[int, int, int]:
    """Returns major type, number, and start of the content."""
    if at >= end:
        raise BadRecord("a record is cut off")
    first = int(data[at])
    info = first & 31
    if info < 24:
        return first >> 5, info, at + 1
    if info > 27:
        raise BadRecord(f"an item of indefinite length, 0x{first:02x}")
    width = 1 << (info - 24)
    if at + 1 + width > end:
        raise BadRecord("a record is cut off")
    return first >> 5, int.from_bytes(bytes(data[at + 1 : at + 1 + width]), "big"), at + 1 + width


def _item(data: Any, at: int, end: int, depth: int) -> tuple[Any, int]:
    major, value, here = _head(data, at, end)
    if depth > _DEEPEST:
        raise BadRecord("a record with items too deep")
    if major == 0:
        return value, here
    if major == 1:
        return -1 - value, here
    if major in (2, 3):
        if here + value > end:
            raise BadRecord("a record is cut off")
        return bytes(data[here : here + value]), here + value
    if major in (4, 5):
        items = []
        for _ in range(value * (major - 3)):
            item, here = _item(data, here, end, depth + 1)
            items.append(item)
        if major == 4:
            return items, here
        if not all(isinstance(key, int | bytes) for key in items[::2]):
            raise BadRecord("a map with keys that are neither numbers nor bytes")
        return dict(zip(items[::2], items[1::2], strict=True)), here
    if major == 7 and value in (20, 21, 22):
        return {20: False, 21: True, 22: None}[value], here
    raise BadRecord(f"an item of a kind that records do not have, 0x{int(data[at]):02x}")
