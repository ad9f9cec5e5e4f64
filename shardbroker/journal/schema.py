"""The records of a journal, one table: kinds, their fields, and their encoding and decoding off the hot path.

A record is a CBOR array `[kind, field, ...]` in the subset of docs/journal-format.md. New fields are only added at the end: a
reader ignores unknown fields, and reads missing ones as null.
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
    "DeferredFor",
    "Detail",
    "DropReason",
    "EndReason",
    "Field",
    "Kind",
    "MessageFlag",
    "Record",
    "ReleaseReason",
    "SchemaError",
    "Value",
    "WillEnd",
    "check_fields",
    "decode_items",
    "encode",
]

SCHEMA_VERSION = 1
"""Incremented when a reader of the previous version would misread a record; not for a new kind or a new last field."""

Value: TypeAlias = int | bytes | dict[int, int | bytes | None] | None


_LAST = b"\x00"


class SchemaError(ValueError):
    """A value that is not a record, or not one of this schema."""


class Kind(IntEnum):
    """The kinds of records; the numbers are permanent. Those below 24 take one byte, and Spark reads only those."""

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
    ARRIVED = 26
    PLACED = 27
    SEEN = 28
    PUBLISHER = 29
    EVENT = 30
    REPLAYED = 31


class Field(IntEnum):
    """The types of fields. All but UINT may be null."""

    UINT = 0
    UINT_OR_NULL = 1
    BYTES = 2
    MAP = 3


class MessageFlag(IntFlag):
    """The field `flags` of messages, wills, queue entries and deliveries."""

    QOS = 0x03
    RETAIN = 0x04
    UTF8 = 0x08
    """Payload Format Indicator 1."""
    CAPTURED = 0x10
    """The message matches `journal.capture`, and this is the publisher's worker: analytics should count it, once."""
    FROM_QUEUE = 0x20
    """DELIVERED, DROPPED: the message was in the queue; its entry there has the other fields."""
    FED = 0x40
    """The message matches FROM of a rule, and this is the publisher's worker: rules should see it, once."""


class Ack(IntEnum):
    """The field `packet` of ACKNOWLEDGED: packet types of MQTT."""

    PUBACK = 4
    PUBREC = 5
    PUBCOMP = 7


class EndReason(IntEnum):
    """The reasons for the end of a session."""

    CLEAN_START = 0
    EXPIRED = 1
    DISCONNECTED = 2
    """The Session Expiry Interval was 0."""
    REMOVED = 3
    """Removed by an administrator."""
    MOVED = 4
    """Moved to another worker's journal, after the number of workers or their weights changed."""
    MOVED_TO_NODE = 5
    """Moved to another node of the cluster, which has all of its messages."""


class DropReason(IntEnum):
    """The reasons why a message was not delivered to a session."""

    QUEUE_FULL = 1
    EXPIRED = 2
    TOO_LARGE = 3
    QOS0 = 4
    MOVED = 5
    """Moved to another member of the shared group."""
    TAKEN = 6
    """Another node of the cluster has it in its journal, with the session."""


class ReleaseReason(IntEnum):
    """The reasons why an incoming QoS 2 packet id was released."""

    PUBREL = 0
    TIMEOUT = 1


class DeferredFor(IntEnum):
    """The field `purpose` of HELD: the destination of the message once there is room."""

    ALL = 1
    """All subscribers."""
    GROUP = 2
    """A member of the shared group, other than `member`."""
    RING = 3
    """The ring of `destination`, as this `record`."""
    TIME = 4
    """All subscribers as of `at_ms`."""
    LOCAL = 5
    """Subscribers of this worker; the message came from another one."""


class WillEnd(IntEnum):
    """The outcomes of a will."""

    DISCARDED = 0
    PUBLISHED = 1


class Detail(IntEnum):
    """The keys of field `details`."""

    PEER = 1
    USERNAME = 2
    KEEPALIVE_S = 3
    LISTENER = 4
    RECEIVE_MAXIMUM = 5
    VERSION = 6


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
        ("attempts", _UINT), ("group", _BYTES), ("filter", _BYTES), ("at_ms", _MAYBE), ("division", _MAYBE),
    ),
    Kind.LET_GO: (("number", _UINT),),
    Kind.ARRIVED: (("origin", _UINT), ("stream", _UINT), ("position", _UINT), ("over", _MAYBE)),
    Kind.PLACED: (
        ("session", _UINT), ("state", _UINT), ("generation", _UINT), ("stamp", _UINT), ("clean_stamp", _UINT), ("peer", _UINT),
        ("granted", _UINT), ("floor", _BYTES), ("base", _BYTES), ("forgotten", _BYTES), ("merged", _BYTES), ("mixed", _MAYBE),
    ),
    Kind.SEEN: (("session", _UINT), ("ids", _BYTES)),
    Kind.PUBLISHER: (("client_id", _BYTES), ("details", _MAP)),
    Kind.EVENT: (("event", _BYTES), ("client_id", _BYTES), ("at_ms", _UINT), ("columns", _BYTES)),
    Kind.REPLAYED: (
        ("session", _UINT), ("filter", _BYTES), ("start_us", _UINT), ("end_us", _MAYBE), ("positions", _MAP), ("over", _MAYBE),
        ("topic_filter", _BYTES), ("incarnations", _MAP),
    ),
}  # fmt: skip
"""The fields of each kind, in their order after the kind."""


@dataclass(slots=True)
class Record:
    """One record as read. `sequence` is its number in the journal, `time_us` the Unix time of its block."""

    sequence: int
    time_us: int
    kind: int
    values: list[Value]

    def __getitem__(self, name: str) -> Value:
        """Returns the field of this name; None if it is null or missing."""
        for at, (field, _) in enumerate(FIELDS.get(self.kind, ())):  # type: ignore[call-overload]
            if field == name:
                return self.values[at] if at < len(self.values) else None
        raise KeyError(name)

    def fields(self) -> dict[str, Value]:
        """Returns name and value of each field that is present."""
        names = FIELDS.get(self.kind, ())  # type: ignore[call-overload]
        return {name: value for (name, _), value in zip(names, self.values, strict=False)}


def encode(kind: Kind, **fields: Value) -> bytes:
    """Returns the bytes of a record; fields not given are null, and omitted at the end. Raises SchemaError."""
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


_NEEDED = frozenset(("client_id", "filter", "id", "topic"))
"""Byte strings without which a record of a session means nothing; `group` and `filter` of a delivery may both be null."""


def check_fields(item: list[Value]) -> None:
    """Raises SchemaError unless the fields of a record of a known kind have their types, and those that it needs are there."""
    kind = Kind(item[0])  # type: ignore[arg-type]
    names = [name for name, _ in FIELDS[kind]]
    for at, (name, allowed) in enumerate(FIELDS[kind], 1):
        value = item[at] if at < len(item) else None
        needed = name in _NEEDED and "group" not in names[:at]
        if isinstance(value, bool) or not _fits(value, allowed) or (needed and value is None):
            raise SchemaError(f"{kind.name}.{name} cannot be {value!r:.100}")


def decode_items(body: bytes, count: int) -> list[list[Value]]:
    """Returns the `count` records of a block as lists that start with the kind. Raises SchemaError if the body does not match."""
    try:
        # As one array, so that the decoder is called once per block. The extra item at the end proves that no bytes remain.
        items = cbor2.loads(b"\x9a" + (count + 1).to_bytes(4, "big") + body + _LAST)
    except (cbor2.CBORDecodeError, ValueError, RecursionError, OverflowError) as error:  # OverflowError: 2**32 items
        raise SchemaError(f"not {count} CBOR items: {error}") from None
    if items.pop() != 0:
        raise SchemaError(f"more than {count} CBOR items")
    for number, item in enumerate(items):
        if type(item) is not list or not item or type(item[0]) is not int:
            raise SchemaError(f"item {number} is not an array that starts with a kind")
    return items  # type: ignore[no-any-return]
