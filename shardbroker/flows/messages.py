"""Records of journals as columns of rules (rules/events.py), with names and forms of EMQX."""

from typing import Any, NamedTuple

import cbor2

from shardbroker.mqtt.spec import PROPERTIES, PropertyId, Wire
from shardbroker.rules.values import UNDEFINED

__all__ = ["ANONYMOUS", "Publisher", "columns_of", "columns_of_event", "publisher_of"]

PEER, USERNAME = 1, 2
"""Keys of `details` of a publisher record."""
NAMES: dict[int, str] = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: "Payload-Format-Indicator",
    PropertyId.CONTENT_TYPE: "Content-Type",
    PropertyId.RESPONSE_TOPIC: "Response-Topic",
    PropertyId.CORRELATION_DATA: "Correlation-Data",
}
FLAGS = tuple({"dup": False, "retain": retain} for retain in (False, True))


class Publisher(NamedTuple):
    """What is known of a connection besides its client id."""

    username: Any = UNDEFINED
    peername: Any = UNDEFINED
    peerhost: Any = UNDEFINED


ANONYMOUS = Publisher()


def publisher_of(details: dict[int, Any] | None) -> Publisher:
    """Returns the publisher of a record `publisher`."""
    if not details:
        return ANONYMOUS
    username, peer = details.get(USERNAME), details.get(PEER)
    name = _text(peer) if isinstance(peer, bytes) else UNDEFINED
    host = name.rpartition(":")[0].strip("[]") if isinstance(name, str) else UNDEFINED
    return Publisher(_text(username) if isinstance(username, bytes) else UNDEFINED, name, host)


def columns_of(record: tuple[Any, ...], at_ms: int, publisher: Publisher, node: str) -> dict[str, Any]:
    """Returns the columns of a message record: (sequence, kind, id, topic, payload, flags, expires_ms, properties, publisher)."""
    flags: int = record[5]
    properties, client_id = record[7], record[8]
    try:  # once for all three: nearly every message is text
        payload, topic, client = record[4].decode(), record[3].decode(), client_id.decode() if client_id else UNDEFINED
    except UnicodeDecodeError:
        payload, topic, client = _text(record[4]), _text(record[3]), _text(client_id) if client_id else UNDEFINED
    return {
        "event": "message.publish",
        "id": record[2].hex().upper(),
        "payload": payload,
        "topic": topic,
        "qos": flags & 3,
        "flags": FLAGS[flags >> 2 & 1],
        "clientid": client,
        "username": publisher.username,
        "peerhost": publisher.peerhost,
        "peername": publisher.peername,
        "publish_received_at": at_ms,
        "pub_props": _properties(properties) if properties else {},
        "client_attrs": {},
        "timestamp": at_ms,
        "node": node,
    }


def columns_of_event(record: tuple[Any, ...], node: str) -> dict[str, Any]:
    """Returns the columns of an event record: (sequence, kind, event, client id, Unix ms, columns)."""
    event, client_id, at_ms, encoded = record[2:6]
    columns: dict[str, Any] = cbor2.loads(encoded)
    if isinstance(columns.get("payload"), bytes):
        columns["payload"] = _text(columns["payload"])
    if client_id:
        columns["clientid"] = _text(client_id)
    return {**columns, "event": event.decode(), "timestamp": at_ms, "node": node}


def _text(value: bytes) -> str | bytes:
    """Returns text, or the bytes where they are no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _properties(encoded: bytes) -> dict[str, Any]:
    """Returns the properties of a PUBLISH. User properties are a map, the last of each name, and all of them as pairs."""
    found: dict[str, Any] = {}
    pairs: list[dict[str, Any]] = []
    at = 0
    while at < len(encoded):
        number, at = encoded[at], at + 1
        name, wire = NAMES.get(number), PROPERTIES[number].wire
        if wire is Wire.PAIR:
            key, at = _block(encoded, at)
            value, at = _block(encoded, at)
            pairs.append({"key": _text(key), "value": _text(value)})
        elif wire is Wire.BYTE:
            found[name or str(number)], at = encoded[at], at + 1
        elif wire in (Wire.STRING, Wire.BINARY):
            value, at = _block(encoded, at)
            found[name or str(number)] = _text(value)
        else:
            break  # PUBLISH has no other that is passed on
    if pairs:
        found["User-Property"] = {one["key"]: one["value"] for one in pairs}
        found["User-Property-Pairs"] = pairs
    return found


def _block(encoded: bytes, at: int) -> tuple[bytes, int]:
    """Returns a value with a length of two bytes in front, and the offset behind it."""
    end = at + 2 + int.from_bytes(encoded[at : at + 2], "big")
    return encoded[at + 2 : end], end
