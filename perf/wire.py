"""The packets that a load test needs before and after its messages, MQTT 3.1, 3.1.1 and 5.0. No hot code."""

from collections.abc import Iterable
from struct import pack

from shardbroker.mqtt.spec import PROPERTIES, PacketType, PropertyId, Wire

__all__ = ["DISCONNECT", "PINGREQ", "connect", "publish_head", "receive_maximum", "subscribe", "unsubscribe"]

DISCONNECT = b"\xe0\x00"
PINGREQ = b"\xc0\x00"
RECEIVE_MAXIMUM_DEFAULT = 65_535
"""MQTT 5.0 §3.2.2.3.3"""
SIZES = {Wire.BYTE: 1, Wire.UINT16: 2, Wire.UINT32: 4}
FIXED_SIZES = {
    number: SIZES[spec.wire] for number, spec in PROPERTIES.items() if PacketType.CONNACK in spec.packets and spec.wire in SIZES
}
"""Bytes of the values of CONNACK properties that have a fixed size; all others are strings (MQTT 5.0 §2.2.2.2)."""


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def text(value: str) -> bytes:
    data = value.encode()
    return pack(">H", len(data)) + data


def packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + varint(len(body)) + body


def connect(
    client_id: str,
    version: int,
    clean: bool = True,
    keepalive: int = 0,
    username: str | None = None,
    password: str | None = None,
    session_expiry: int | None = None,
) -> bytes:
    """Returns a CONNECT packet; without a keepalive by default, so that a silent subscriber stays connected."""
    flags = 0x02 * clean | 0x80 * (username is not None) | 0x40 * (password is not None)
    head = text("MQIsdp" if version == 3 else "MQTT") + pack(">BBH", version, flags, keepalive)
    if version == 5:
        expiry = b"" if session_expiry is None else b"\x11" + pack(">I", session_expiry)
        head += varint(len(expiry)) + expiry
    texts = (client_id, username, password)
    return packet(0x10, head + b"".join(text(value) for value in texts if value is not None))


def subscribe(filters: Iterable[str], qos: int, version: int, packet_id: int = 1) -> bytes:
    properties = b"\x00" if version == 5 else b""
    entries = b"".join(text(topic_filter) + bytes([qos]) for topic_filter in filters)
    return packet(0x82, pack(">H", packet_id) + properties + entries)


def unsubscribe(filters: Iterable[str], version: int, packet_id: int = 1) -> bytes:
    properties = b"\x00" if version == 5 else b""
    return packet(0xA2, pack(">H", packet_id) + properties + b"".join(map(text, filters)))


def publish_head(topic: str, qos: int, payload: int, version: int, retain: bool = False) -> bytes:
    """Returns a PUBLISH up to its payload of `payload` bytes; at QoS 1 and 2 with a packet id of 0 to be patched."""
    head = text(topic) + (b"\x00\x00" if qos else b"") + (b"\x00" if version == 5 else b"")
    return bytes([0x30 | qos << 1 | retain]) + varint(len(head) + payload) + head


def receive_maximum(properties: bytes) -> int:
    """Returns the Receive Maximum in a 5.0 CONNACK's properties (without their length), or the default."""
    at = 0
    while at < len(properties):
        identifier = properties[at]
        at += 1
        if identifier == PropertyId.RECEIVE_MAXIMUM:
            return int.from_bytes(properties[at : at + 2])
        if identifier in FIXED_SIZES:
            at += FIXED_SIZES[identifier]
            continue
        for _ in range(2 if identifier == PropertyId.USER_PROPERTY else 1):
            at += 2 + int.from_bytes(properties[at : at + 2])
    return RECEIVE_MAXIMUM_DEFAULT
