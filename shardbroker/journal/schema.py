"""The records of a journal, one table: kinds, their fields, and how they are read and written off the hot path.

A record is a CBOR array `[kind, field, ...]` in the subset of docs/journal-format.md. Fields are only ever added at the end: a
reader ignores those it does not know, and takes those that are not there for null.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TypeAlias

import cbor2

__all__ = [
    "FIELDS",
    "SCHEMA_VERSION",
    "Ack",
    "Detail",
    "DropReason",
    "EndReason",
    "Field",
    "HeldFor",
    "Kind",
    "MessageFlag",
    "Record",
    "ReleaseReason",
    "SchemaError",
    "Value",
    "WillEnd",
    "decode_items",
    "encode",
]

SCHEMA_VERSION = 1
"""Grows when a reader of the version before would misread a record; a new kind or a new last field does not need it."""

Value: TypeAlias = int | bytes | dict[int, int | bytes | None] | None


_LAST = b"\x00"


class SchemaError(ValueError):
    """Not a record, or not one of this schema."""


class Kind(IntEnum):
    """What a record says; the numbers stay for good. Those below 24 take one byte, and Spark reads those only."""

    MESSAGE = 1
    SESSION_CREATED = 2
    SESSION_RESUMED = 3
    SESSION_NAMED = 4
    DISCONNECTED = 5
    SESSION_ENDED = 6
    SUBSCRIBED = 7
    UNSUBSCRIBED = 8
    QUEUED = 9
    DELIVERED = 10
    ACKNOWLEDGED = 11
    DROPPED = 12
    RECEIVED = 13
    RELEASED = 14
    WILL_SET = 15
    WILL_CLEARED = 16
    WILL_DELAYED = 17
    CHECKPOINT = 18
    NOT_CAPTURED = 19
    CONSUMED = 20
    FORWARDED = 21
    SESSION_SAVED = 22
    SYNCED = 23
    HELD = 24
    LET_GO = 25


class Field(IntEnum):
    """Types of fields. All but UINT may be null."""

    UINT = 0
    UINT_OR_NULL = 1
    BYTES = 2
    MAP = 3


class MessageFlag(IntFlag):
    """Field `flags` of messages, wills, queue entries and deliveries."""

    QOS = 0x03
    RETAIN = 0x04
    UTF8 = 0x08
    """Payload Format Indicator 1."""
    CAPTURED = 0x10
    """Matches `journal.capture`, and this is the publisher's worker: what analytics should count, once."""
    FROM_QUEUE = 0x20
    """DELIVERED, DROPPED: it was the queue's; the entry there says the rest."""


class Ack(IntEnum):
    """Field `packet` of ACKNOWLEDGED: packet types of MQTT."""

    PUBACK = 4
    PUBREC = 5
    PUBCOMP = 7


class EndReason(IntEnum):
    """Why a session ended."""

    CLEAN_START = 0
    EXPIRED = 1
    DISCONNECTED = 2
    """Its Session Expiry Interval was 0."""
    REMOVED = 3
    """By an administrator."""
    MOVED = 4
    """To another worker's journal, after the number of workers or their weights changed."""


class DropReason(IntEnum):
    """Why a message was not delivered to a session."""

    QUEUE_FULL = 1
    EXPIRED = 2
    TOO_LARGE = 3
    QOS0 = 4
    MOVED = 5
    """To another member of its shared group."""


class ReleaseReason(IntEnum):
    """Why an incoming QoS 2 packet id is free again."""

    PUBREL = 0
    TIMEOUT = 1


class HeldFor(IntEnum):
    """Field `purpose` of HELD: what is to be done with the message once there is room."""

    ALL = 1
    """Everybody who subscribes gets it."""
    GROUP = 2
    """A member of the shared group, other than `member`."""
    RING = 3
    """It is written into the ring of `destination`, as this `record`."""
    TIME = 4
    """Everybody who subscribes at `at_ms` gets it."""


class WillEnd(IntEnum):
    """What became of a will."""

    DISCARDED = 0
    PUBLISHED = 1


class Detail(IntEnum):
    """Keys of field `details`."""

    PEER = 1
    USERNAME = 2
    KEEPALIVE_S = 3
    LISTENER = 4
    RECEIVE_MAXIMUM = 5


_UINT, _MAYBE, _BYTES, _MAP = Field.UINT, Field.UINT_OR_NULL, Field.BYTES, Field.MAP

FIELDS: Mapping[Kind, tuple[tuple[str, Field], ...]] = {
    Kind.MESSAGE: (
        ("id", _BYTES), ("topic", _BYTES), ("payload", _BYTES), ("flags", _UINT), ("expires_ms", _UINT), ("properties", _BYTES),
        ("publisher", _BYTES),
    ),
    Kind.SESSION_CREATED: (
        ("session", _UINT), ("client_id", _BYTES), ("version", _UINT), ("expiry_ms", _MAYBE), ("details", _MAP),
    ),
    Kind.SESSION_RESUMED: (
        ("session", _UINT), ("client_id", _BYTES), ("version", _UINT), ("expiry_ms", _MAYBE), ("details", _MAP),
    ),
    Kind.SESSION_NAMED: (("session", _UINT), ("client_id", _BYTES)),
    Kind.DISCONNECTED: (("session", _UINT), ("reason", _UINT), ("expires_at_ms", _MAYBE)),
    Kind.SESSION_ENDED: (("session", _UINT), ("reason", _UINT)),
    Kind.SUBSCRIBED: (("session", _UINT), ("filter", _BYTES), ("options", _UINT), ("identifier", _UINT)),
    Kind.UNSUBSCRIBED: (("session", _UINT), ("filter", _BYTES)),
    Kind.QUEUED: (
        ("session", _UINT), ("id", _BYTES), ("flags", _UINT), ("priority", _UINT), ("ids", _BYTES), ("group", _BYTES),
        ("filter", _BYTES),
    ),
    Kind.DELIVERED: (
        ("session", _UINT), ("packet_id", _UINT), ("id", _BYTES), ("flags", _UINT), ("ids", _BYTES), ("group", _BYTES),
        ("filter", _BYTES),
    ),
    Kind.ACKNOWLEDGED: (("session", _UINT), ("packet_id", _UINT), ("packet", _UINT), ("reason", _UINT)),
    Kind.DROPPED: (("session", _UINT), ("id", _BYTES), ("flags", _UINT), ("reason", _UINT)),
    Kind.RECEIVED: (("session", _UINT), ("packet_id", _UINT), ("id", _BYTES)),
    Kind.RELEASED: (("session", _UINT), ("packet_id", _UINT), ("reason", _UINT)),
    Kind.WILL_SET: (
        ("session", _UINT), ("topic", _BYTES), ("payload", _BYTES), ("flags", _UINT), ("properties", _BYTES), ("delay_s", _UINT),
        ("expiry_s", _MAYBE), ("origin", _BYTES),
    ),
    Kind.WILL_CLEARED: (("session", _UINT), ("reason", _UINT)),
    Kind.WILL_DELAYED: (("session", _UINT), ("at_ms", _UINT)),
    Kind.CHECKPOINT: (("snapshot", _BYTES), ("position", _UINT), ("keep_from", _UINT)),
    Kind.NOT_CAPTURED: (("count", _UINT), ("from_us", _UINT), ("errno", _UINT)),
    Kind.SESSION_SAVED: (
        ("session", _UINT), ("client_id", _BYTES), ("version", _UINT), ("expiry_ms", _MAYBE), ("details", _MAP),
    ),
    Kind.CONSUMED: (("rings", _UINT), ("producer", _UINT), ("position", _UINT), ("weights", _BYTES)),
    Kind.FORWARDED: (
        ("rings", _UINT), ("destination", _UINT), ("position", _UINT), ("id", _BYTES), ("record", _UINT), ("member", _UINT),
        ("attempts", _UINT), ("group", _BYTES), ("filter", _BYTES), ("until_arrived", _MAYBE),
    ),
    Kind.SYNCED: (("position", _UINT), ("arrived", _MAYBE)),
    Kind.HELD: (
        ("number", _UINT), ("purpose", _UINT), ("id", _BYTES), ("destination", _UINT), ("record", _UINT), ("member", _UINT),
        ("attempts", _UINT), ("group", _BYTES), ("filter", _BYTES), ("at_ms", _MAYBE),
    ),
    Kind.LET_GO: (("number", _UINT),),
}  # fmt: skip
"""Fields of each kind, in their order behind the kind."""


@dataclass(slots=True)
class Record:
    """One record as read. `sequence` is its number in the journal, `time_us` Unix time of its block."""

    sequence: int
    time_us: int
    kind: int
    values: list[Value]

    def __getitem__(self, name: str) -> Value:
        """The field of this name; None if it is null or left off."""
        for at, (field, _) in enumerate(FIELDS.get(self.kind, ())):  # type: ignore[call-overload]
            if field == name:
                return self.values[at] if at < len(self.values) else None
        raise KeyError(name)

    def fields(self) -> dict[str, Value]:
        """Name and value of each field that is there."""
        names = FIELDS.get(self.kind, ())  # type: ignore[call-overload]
        return {name: value for (name, _), value in zip(names, self.values, strict=False)}


def encode(kind: Kind, **fields: Value) -> bytes:
    """The bytes of a record; fields not given are null, and left off at the end. Raises SchemaError."""
    values: list[Value] = [int(kind)]
    for name, allowed in FIELDS[kind]:
        value = fields.pop(name, None)
        if not _fits(value, allowed):
            raise SchemaError(f"{kind.name}.{name} cannot be {value!r}")
        values.append(int(value) if isinstance(value, int) else value)
    if fields:
        raise SchemaError(f"{kind.name} has no field {', '.join(fields)}")
    while values[-1] is None:
        values.pop()
    return cbor2.dumps(values, canonical=True)


def _fits(value: Value, allowed: Field) -> bool:
    if value is None:
        return allowed != Field.UINT
    if allowed in (Field.UINT, Field.UINT_OR_NULL):
        return isinstance(value, int) and 0 <= value < 1 << 64
    return isinstance(value, bytes if allowed == Field.BYTES else dict)


def decode_items(body: bytes, count: int) -> list[list[Value]]:
    """The `count` records of a block as lists that start with the kind. Raises SchemaError if the body is not exactly that."""
    try:
        # As one array, so that the decoder is called once for a block. The item behind the last shows that nothing is left over.
        items = cbor2.loads(b"\x9a" + (count + 1).to_bytes(4, "big") + body + _LAST)
    except (cbor2.CBORDecodeError, ValueError, RecursionError, OverflowError) as error:  # the last one: 2**32 items
        raise SchemaError(f"not {count} CBOR items: {error}") from None
    if items.pop() != 0:
        raise SchemaError(f"more than {count} CBOR items")
    for number, item in enumerate(items):
        if type(item) is not list or not item or type(item[0]) is not int:
            raise SchemaError(f"item {number} is not an array that starts with a kind")
    return items  # type: ignore[no-any-return]
