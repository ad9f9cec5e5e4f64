"""The tables of the protocol: packet types, properties, reason codes. Everything else is derived from these."""

from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "PROPERTIES",
    "REASON_CODES",
    "PacketType",
    "PropertyId",
    "PropertySpec",
    "ReasonCode",
    "Wire",
    "closing_word",
    "connack_return_code",
]


class PacketType(IntEnum):
    """MQTT 5.0 §2.1.2; AUTH exists in 5.0 only. WILL stands for the will properties inside CONNECT."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


P = PacketType


class Wire(IntEnum):
    """How a property's value is encoded (MQTT 5.0 §1.5)."""

    BYTE = 0
    UINT16 = 1
    UINT32 = 2
    VARINT = 3
    STRING = 4
    BINARY = 5
    PAIR = 6


class PropertyId(IntEnum):
    """MQTT 5.0 §2.2.2.2."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class PropertySpec(NamedTuple):
    """Encoding of a property, the packets it may be in, whether it may repeat, and whether 0 and values above 1 are allowed."""

    wire: Wire
    packets: frozenset[PacketType]
    repeatable: bool = False
    nonzero: bool = False
    flag: bool = False


def _in(*packets: PacketType) -> frozenset[PacketType]:
    return frozenset(packets)


_MESSAGE = _in(P.PUBLISH, P.WILL)
_CONNECTING = _in(P.CONNECT, P.CONNACK)
_ANSWERS = _in(P.CONNACK, P.PUBACK, P.PUBREC, P.PUBREL, P.PUBCOMP, P.SUBACK, P.UNSUBACK, P.DISCONNECT, P.AUTH)
_EVERYWHERE = _ANSWERS | _in(P.CONNECT, P.WILL, P.PUBLISH, P.SUBSCRIBE, P.UNSUBSCRIBE)
I = PropertyId  # noqa: E741

PROPERTIES: dict[int, PropertySpec] = {
    I.PAYLOAD_FORMAT_INDICATOR: PropertySpec(Wire.BYTE, _MESSAGE, flag=True),
    I.MESSAGE_EXPIRY_INTERVAL: PropertySpec(Wire.UINT32, _MESSAGE),
    I.CONTENT_TYPE: PropertySpec(Wire.STRING, _MESSAGE),
    I.RESPONSE_TOPIC: PropertySpec(Wire.STRING, _MESSAGE),
    I.CORRELATION_DATA: PropertySpec(Wire.BINARY, _MESSAGE),
    I.SUBSCRIPTION_IDENTIFIER: PropertySpec(Wire.VARINT, _in(P.PUBLISH, P.SUBSCRIBE), nonzero=True),
    I.SESSION_EXPIRY_INTERVAL: PropertySpec(Wire.UINT32, _CONNECTING | _in(P.DISCONNECT)),
    I.ASSIGNED_CLIENT_IDENTIFIER: PropertySpec(Wire.STRING, _in(P.CONNACK)),
    I.SERVER_KEEP_ALIVE: PropertySpec(Wire.UINT16, _in(P.CONNACK)),
    I.AUTHENTICATION_METHOD: PropertySpec(Wire.STRING, _CONNECTING | _in(P.AUTH)),
    I.AUTHENTICATION_DATA: PropertySpec(Wire.BINARY, _CONNECTING | _in(P.AUTH)),
    I.REQUEST_PROBLEM_INFORMATION: PropertySpec(Wire.BYTE, _in(P.CONNECT), flag=True),
    I.WILL_DELAY_INTERVAL: PropertySpec(Wire.UINT32, _in(P.WILL)),
    I.REQUEST_RESPONSE_INFORMATION: PropertySpec(Wire.BYTE, _in(P.CONNECT), flag=True),
    I.RESPONSE_INFORMATION: PropertySpec(Wire.STRING, _in(P.CONNACK)),
    I.SERVER_REFERENCE: PropertySpec(Wire.STRING, _in(P.CONNACK, P.DISCONNECT)),
    I.REASON_STRING: PropertySpec(Wire.STRING, _ANSWERS),
    I.RECEIVE_MAXIMUM: PropertySpec(Wire.UINT16, _CONNECTING, nonzero=True),
    I.TOPIC_ALIAS_MAXIMUM: PropertySpec(Wire.UINT16, _CONNECTING),
    I.TOPIC_ALIAS: PropertySpec(Wire.UINT16, _in(P.PUBLISH)),
    I.MAXIMUM_QOS: PropertySpec(Wire.BYTE, _in(P.CONNACK), flag=True),
    I.RETAIN_AVAILABLE: PropertySpec(Wire.BYTE, _in(P.CONNACK), flag=True),
    I.USER_PROPERTY: PropertySpec(Wire.PAIR, _EVERYWHERE, repeatable=True),
    I.MAXIMUM_PACKET_SIZE: PropertySpec(Wire.UINT32, _CONNECTING, nonzero=True),
    I.WILDCARD_SUBSCRIPTION_AVAILABLE: PropertySpec(Wire.BYTE, _in(P.CONNACK), flag=True),
    I.SUBSCRIPTION_IDENTIFIER_AVAILABLE: PropertySpec(Wire.BYTE, _in(P.CONNACK), flag=True),
    I.SHARED_SUBSCRIPTION_AVAILABLE: PropertySpec(Wire.BYTE, _in(P.CONNACK), flag=True),
}

_ACK = _in(P.PUBACK, P.PUBREC)
_SUB = _in(P.SUBACK)
_LEAVE = _in(P.CONNACK, P.DISCONNECT)

REASON_CODES: dict[int, tuple[str, frozenset[PacketType]]] = {
    0x00: ("success", _ANSWERS),
    0x01: ("granted_qos_1", _SUB),
    0x02: ("granted_qos_2", _SUB),
    0x04: ("disconnect_with_will_message", _in(P.DISCONNECT)),
    0x10: ("no_matching_subscribers", _ACK),
    0x11: ("no_subscription_existed", _in(P.UNSUBACK)),
    0x18: ("continue_authentication", _in(P.AUTH)),
    0x19: ("reauthenticate", _in(P.AUTH)),
    0x80: ("unspecified_error", _LEAVE | _ACK | _SUB | _in(P.UNSUBACK)),
    0x81: ("malformed_packet", _LEAVE),
    0x82: ("protocol_error", _LEAVE),
    0x83: ("implementation_specific_error", _LEAVE | _ACK | _SUB | _in(P.UNSUBACK)),
    0x84: ("unsupported_protocol_version", _in(P.CONNACK)),
    0x85: ("client_identifier_not_valid", _in(P.CONNACK)),
    0x86: ("bad_user_name_or_password", _in(P.CONNACK)),
    0x87: ("not_authorized", _LEAVE | _ACK | _SUB | _in(P.UNSUBACK)),
    0x88: ("server_unavailable", _in(P.CONNACK)),
    0x89: ("server_busy", _LEAVE),
    0x8A: ("banned", _in(P.CONNACK)),
    0x8B: ("server_shutting_down", _in(P.DISCONNECT)),
    0x8C: ("bad_authentication_method", _LEAVE),
    0x8D: ("keep_alive_timeout", _in(P.DISCONNECT)),
    0x8E: ("session_taken_over", _in(P.DISCONNECT)),
    0x8F: ("topic_filter_invalid", _SUB | _in(P.UNSUBACK, P.DISCONNECT)),
    0x90: ("topic_name_invalid", _LEAVE | _ACK),
    0x91: ("packet_identifier_in_use", _ACK | _SUB | _in(P.UNSUBACK)),
    0x92: ("packet_identifier_not_found", _in(P.PUBREL, P.PUBCOMP)),
    0x93: ("receive_maximum_exceeded", _in(P.DISCONNECT)),
    0x94: ("topic_alias_invalid", _in(P.DISCONNECT)),
    0x95: ("packet_too_large", _LEAVE),
    0x96: ("message_rate_too_high", _in(P.DISCONNECT)),
    0x97: ("quota_exceeded", _LEAVE | _ACK | _SUB),
    0x98: ("administrative_action", _in(P.DISCONNECT)),
    0x99: ("payload_format_invalid", _LEAVE | _ACK),
    0x9A: ("retain_not_supported", _LEAVE),
    0x9B: ("qos_not_supported", _LEAVE),
    0x9C: ("use_another_server", _LEAVE),
    0x9D: ("server_moved", _LEAVE),
    0x9E: ("shared_subscriptions_not_supported", _SUB | _in(P.DISCONNECT)),
    0x9F: ("connection_rate_exceeded", _LEAVE),
    0xA0: ("maximum_connect_time", _in(P.DISCONNECT)),
    0xA1: ("subscription_identifiers_not_supported", _SUB | _in(P.DISCONNECT)),
    0xA2: ("wildcard_subscriptions_not_supported", _SUB | _in(P.DISCONNECT)),
}
"""Reason code -> name, packets it is defined for (MQTT 5.0 §2.4)."""

ReasonCode = IntEnum("ReasonCode", {name.upper(): code for code, (name, _) in REASON_CODES.items()})  # type: ignore[misc]

_RETURN_CODES = {0x84: 1, 0x85: 2, 0x88: 3, 0x89: 3, 0x86: 4, 0x87: 5, 0x8A: 5, 0x8C: 5, 0x97: 3, 0x9F: 3}


def connack_return_code(reason_code: int) -> int | None:
    """The CONNACK return code of 3.1 and 3.1.1 for a 5.0 reason code; None: close without CONNACK [MQTT-3.2.2-6]."""
    return _RETURN_CODES.get(reason_code)


_CLOSING_WORDS = {0x00: "normal", 0x8D: "keepalive_timeout", 0x8E: "takenover"}
"""Where EMQX has a word of its own."""


def closing_word(reason_code: int, by_network: bool) -> str:
    """Why a connection has ended, as event messages say it; `by_network`: without a word of either side."""
    if by_network:
        return "tcp_closed"
    if reason_code not in REASON_CODES:
        return f"0x{reason_code:02x}"
    return _CLOSING_WORDS.get(reason_code) or REASON_CODES[reason_code][0]
