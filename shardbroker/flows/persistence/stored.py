"""What presets find in a database for a new subscription, in the form that all databases share.

A database offers `fetch(connector, wanted)`, which returns a Page, and `retained(connector, topic)`, which returns a Stored or
None. Both raise any exception if the database cannot be used.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Page", "Stored", "Wanted", "page_of", "stored_of"]

ID_DIGITS = 32
NO_ID = "0" * ID_DIGITS
US_A_MS = 1000


class Wanted(NamedTuple):
    """Messages of a topic whose ids, 32 hexadecimal digits, are greater than `after` and less than `before`, the lowest first.

    positions: whether those up to the acknowledged position of the client are left out. limit: of rows.
    """

    client_id: str
    topic: str
    after: str
    before: str
    limit: int
    positions: bool


class Stored(NamedTuple):
    """A message. id: 16 bytes."""

    id: bytes
    payload: bytes
    qos: int
    sender: bytes


class Page(NamedTuple):
    """last: id behind which the next page begins, 32 digits. unusable: rows that are no messages of this broker."""

    messages: list[Stored]
    last: str
    has_more: bool
    unusable: int


def stored_of(row: Mapping[str, Any], *, has_id: bool = True) -> Stored | None:
    """Returns the message of a row with the columns msgid, qos, payload and sender; None if that is not possible.

    has_id: whether the id has to be one of this broker; otherwise `arrived`, in Unix ms, stands for it.
    """
    id, payload, sender = _id_of(row.get("msgid")), _bytes_of(row.get("payload")), _bytes_of(row.get("sender"))
    try:
        qos = int(row.get("qos") or 0)
        if id is None and not has_id:
            id = (int(row.get("arrived") or 0) * US_A_MS).to_bytes(8) + bytes(8)
    except (TypeError, ValueError, OverflowError):
        return None
    if id is None or payload is None or not 0 <= qos <= 2:
        return None
    return Stored(id, payload, qos, b"" if sender in (None, b"undefined") else sender or b"")


def page_of(rows: Iterable[Mapping[str, Any]], limit: int, *, last: str = "", has_more: bool | None = None) -> Page:
    """Returns a page of rows that are in the order of their ids. last, has_more: as far as the rows do not show it."""
    found: Sequence[Mapping[str, Any]] = list(rows)
    messages = [one for row in found if (one := stored_of(row)) is not None]
    if found and not last:
        text = found[-1].get("msgid")
        last = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return Page(messages, last, len(found) >= limit if has_more is None else has_more, len(found) - len(messages))


def _id_of(value: Any) -> bytes | None:
    text = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else value
    if not isinstance(text, str) or len(text) != ID_DIGITS or not text.isascii():
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def _bytes_of(value: Any) -> bytes | None:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
