"""Properties of MQTT 5.0 that pass from one broker to another, and the user property by which a message is known again."""

from typing import Any

from shardbroker.flows.sinks.row import Row
from shardbroker.mqtt.packets import encode_properties
from shardbroker.mqtt.spec import PropertyId

__all__ = ["INTO", "VIA", "Properties", "has_passed"]

VIA = "shardbroker-via"
"""Name of a user property: the id of a broker of this kind that has sent the message to another one, once for each."""
INTO = "shardbroker-in"
"""Likewise of a broker whose source has received the message: it may pass on, but is not received there again."""
TEXTS = {
    "Content-Type": PropertyId.CONTENT_TYPE,
    "Response-Topic": PropertyId.RESPONSE_TOPIC,
    "Correlation-Data": PropertyId.CORRELATION_DATA,
}
TEXT_MAX = 65_535


def has_passed(pairs: Any, origin: str) -> bool:
    """Returns whether a message has left the broker of an origin before. pairs: its user properties, as columns of rules are."""
    return any(one["key"] == VIA and one["value"] == origin for one in pairs)


class Properties:
    """origin: of the data directory here; empty: messages are not marked."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._mark = [(VIA.encode(), origin.encode())] if origin else []
        self._usual = encode_properties({PropertyId.USER_PROPERTY: self._mark}) if origin else b""

    def is_own(self, row: Row) -> bool:
        """Returns whether the message of a row has left this broker before."""
        given = row.properties
        return given is not None and bool(self._origin) and has_passed(given.get("User-Property-Pairs", ()), self._origin)

    def of(self, row: Row) -> bytes:
        """Returns the properties of a row's message, encoded. Raises ValueError."""
        given = row.properties
        if not given:
            return self._usual
        found: dict[int, Any] = {}
        if given.get("Payload-Format-Indicator") in (0, 1):
            found[PropertyId.PAYLOAD_FORMAT_INDICATOR] = given["Payload-Format-Indicator"]
        for name, number in TEXTS.items():
            if name in given:
                found[number] = _bytes(given[name])
        pairs = [(_bytes(one["key"]), _bytes(one["value"])) for one in given.get("User-Property-Pairs", ())] + self._mark
        if pairs:
            found[PropertyId.USER_PROPERTY] = pairs
        encoded: bytes = encode_properties(found)
        return encoded


def _bytes(value: Any) -> bytes:
    found = value if isinstance(value, bytes) else str(value).encode()
    if len(found) > TEXT_MAX:
        raise ValueError("property")
    return found
