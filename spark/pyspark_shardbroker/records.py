"""The records of a journal (docs/journal-format.md) as tables: kinds, their fields, and the resulting columns."""

__all__ = ["FIELDS", "KINDS", "KIND_NUMBERS", "NAMING", "PACKETS", "REASONS"]

KINDS = {
    1: "message", 2: "session_created", 3: "session_resumed", 4: "session_named", 5: "disconnected", 6: "session_ended",
    7: "subscribed", 8: "unsubscribed", 9: "queued", 10: "delivered", 11: "acknowledged", 12: "dropped", 13: "received",
    14: "released", 15: "will_set", 16: "will_cleared", 17: "will_delayed", 18: "checkpoint", 19: "not_captured", 20: "consumed",
    21: "forwarded", 22: "session_saved", 23: "synced",
}  # fmt: skip
"""Number -> name, the value of column `type`."""
KIND_NUMBERS = {name: number for number, name in KINDS.items()}

NAMING = (2, 3, 4, 22)
"""Kinds whose first two fields are session and client id."""

_SESSION = ("session", "client_id", "version", "expiry_ms", "details")

FIELDS: dict[int, tuple[str, ...]] = {
    1: ("id", "topic", "payload", "flags", "expires_ms", "properties", "publisher"),
    2: _SESSION,
    3: _SESSION,
    4: ("session", "client_id"),
    5: ("session", "reason", "expires_ms"),
    6: ("session", "reason"),
    7: ("session", "filter", "options", "identifier"),
    8: ("session", "filter"),
    9: ("session", "id", "flags", "priority", "ids", "group", "filter"),
    10: ("session", "packet_id", "id", "flags", "ids", "group", "filter"),
    11: ("session", "packet_id", "packet", "reason"),
    12: ("session", "id", "flags", "reason"),
    13: ("session", "packet_id", "id"),
    14: ("session", "packet_id", "reason"),
    15: ("session", "topic", "payload", "flags", "properties", "delay_s", "expiry_s", "origin"),
    16: ("session", "reason"),
    17: ("session", "at_ms"),
    18: ("snapshot", "position", "keep_from"),
    19: ("count", "from_us", "errno"),
    20: ("rings", "producer", "position", "weights"),
    21: ("rings", "destination", "position", "id", "record", "member", "attempts", "group", "filter", "until_arrived"),
    22: _SESSION,
    23: ("position", "arrived"),
}
"""Fields of each kind in order. Fields with the same meaning have the same name in all kinds."""

PACKETS = {4: "puback", 5: "pubrec", 7: "pubcomp"}
REASONS: dict[int, dict[int, str]] = {
    6: {0: "clean_start", 1: "expired", 2: "disconnected", 3: "removed", 4: "moved"},
    12: {1: "queue_full", 2: "expired", 3: "too_large", 4: "qos0", 5: "moved"},
    14: {0: "pubrel", 1: "timeout"},
    16: {0: "discarded", 1: "published"},
}
"""Kind -> reason -> its name. Other kinds have reason codes of MQTT."""
