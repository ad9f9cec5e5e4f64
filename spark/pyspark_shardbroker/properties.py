"""Decodes MQTT 5.0 properties, which journals keep encoded, to names and text (MQTT 5.0 §2.2.2)."""

from functools import lru_cache

__all__ = ["NAMES", "decode_properties"]

NAMES = {
    0x01: ("payload_format_indicator", 1),
    0x02: ("message_expiry_interval", 4),
    0x03: ("content_type", "text"),
    0x08: ("response_topic", "text"),
    0x09: ("correlation_data", "binary"),
    0x0B: ("subscription_identifier", "varint"),
    0x23: ("topic_alias", 2),
    0x26: ("user_property", "pair"),
}
"""Properties of a PUBLISH: name, and size of its number in bytes or its other type."""

Decoded = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]


class _CutOff(ValueError):
    pass


@lru_cache(maxsize=4096)
def decode_properties(encoded: bytes) -> Decoded:
    """Returns properties by name, binary ones in hexadecimal, and user properties in order, repeated names included.

    Undecodable bytes are returned in hexadecimal under the name `undecoded`: the broker validates properties on receipt.
    """
    found: dict[str, str] = {}
    users: list[tuple[str, str]] = []
    at = 0
    try:
        while at < len(encoded):
            start = at
            name, kind = NAMES[encoded[at]]
            at += 1
            if isinstance(kind, int):
                found[name] = str(int.from_bytes(_take(encoded, at, kind), "big"))
                at += kind
            elif kind == "varint":
                value, at = _varint(encoded, at)
                found[name] = f"{found[name]},{value}" if name in found else str(value)
            elif kind == "pair":
                key, at = _string(encoded, at)
                text, at = _string(encoded, at)
                users.append((key.decode(errors="replace"), text.decode(errors="replace")))
            else:
                text, at = _string(encoded, at)
                found[name] = text.hex() if kind == "binary" else text.decode(errors="replace")
    except (KeyError, _CutOff):
        found["undecoded"] = encoded[start:].hex()
    return tuple(found.items()), tuple(users)


def _take(encoded: bytes, at: int, size: int) -> bytes:
    if at + size > len(encoded):
        raise _CutOff
    return encoded[at : at + size]


def _string(encoded: bytes, at: int) -> tuple[bytes, int]:
    size = int.from_bytes(_take(encoded, at, 2), "big")
    return _take(encoded, at + 2, size), at + 2 + size


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 28, 7):
        byte = _take(encoded, at, 1)[0]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _CutOff
