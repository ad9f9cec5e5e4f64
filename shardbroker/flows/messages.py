"""Records of journals as columns of rules (rules/events.py), with names and forms of EMQX."""

from typing import Any, NamedTuple

import cbor2

from shardbroker.mqtt.spec import PropertyId
from shardbroker.rules.functions.arguments import from_octets
from shardbroker.rules.values import UNDEFINED

__all__ = ["ANONYMOUS", "PROPERTY_NAMES", "Publisher", "columns_of_event", "publisher_of"]

PEER, USERNAME = 1, 2
"""Keys of `details` of a publisher record."""


PROPERTY_NAMES = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: "Payload-Format-Indicator",
    PropertyId.MESSAGE_EXPIRY_INTERVAL: "Message-Expiry-Interval",
    PropertyId.CONTENT_TYPE: "Content-Type",
    PropertyId.RESPONSE_TOPIC: "Response-Topic",
    PropertyId.CORRELATION_DATA: "Correlation-Data",
}
"""Of the columns `pub_props`; user properties have places of their own."""


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
    name = from_octets(peer) if isinstance(peer, bytes) else UNDEFINED
    host = name.rpartition(":")[0].strip("[]") if isinstance(name, str) else UNDEFINED
    return Publisher(from_octets(username) if isinstance(username, bytes) else UNDEFINED, name, host)


def columns_of_event(record: tuple[Any, ...], node: str) -> dict[str, Any]:
    """Returns the columns of an event record: (sequence, kind, event, client id, Unix ms, columns)."""
    event, client_id, at_ms, encoded = record[2:6]
    columns: dict[str, Any] = cbor2.loads(encoded)
    if isinstance(columns.get("payload"), bytes):
        columns["payload"] = from_octets(columns["payload"])
    if client_id:
        columns["clientid"] = from_octets(client_id)
    return {**columns, "event": event.decode(), "timestamp": at_ms, "node": node}
