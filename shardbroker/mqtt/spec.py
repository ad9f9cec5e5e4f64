"""The tables of the protocol: packet types, properties, reason codes. All other protocol constants are derived from these.

spec.pxd has the same names for C; tests/mqtt/test_spec.py compares the two.
"""

from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "BRIDGE_BIT",
    "FAILURE",
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
    """The packet types of MQTT 5.0 §2.1.2. AUTH exists in 5.0 only; WILL denotes the will properties inside CONNECT."""

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

BRIDGE_BIT = 0x80
"""The bit of the protocol level in CONNECT that mosquitto's bridges set."""


class Wire(IntEnum):
    """The encoding of a property's value (MQTT 5.0 §1.5)."""

    BYTE = 0
    UINT16 = 1
    UINT32 = 2
    VARINT = 3
    STRING = 4
    BINARY = 5
    PAIR = 6


class PropertyId(IntEnum):
    """The property identifiers of MQTT 5.0 §2.2.2.2."""

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
    """The rules of a property: encoding, packets, whether it may repeat, must not be 0 (nonzero), must be 0 or 1 (flag)."""

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


class ReasonCode(IntEnum):
    """The reason codes of MQTT 5.0 §2.4. A row is the code and the packets that it is defined for."""

    packets: frozenset[PacketType]

    def __new__(cls, code: int, packets: frozenset[PacketType]) -> "ReasonCode":
        member = int.__new__(cls, code)
        member._value_ = code
        member.packets = packets
        return member

    SUCCESS = 0x00, _ANSWERS
    GRANTED_QOS_1 = 0x01, _SUB
    GRANTED_QOS_2 = 0x02, _SUB
    DISCONNECT_WITH_WILL_MESSAGE = 0x04, _in(P.DISCONNECT)
    NO_MATCHING_SUBSCRIBERS = 0x10, _ACK
    NO_SUBSCRIPTION_EXISTED = 0x11, _in(P.UNSUBACK)
    CONTINUE_AUTHENTICATION = 0x18, _in(P.AUTH)
    REAUTHENTICATE = 0x19, _in(P.AUTH)
    UNSPECIFIED_ERROR = 0x80, _LEAVE | _ACK | _SUB | _in(P.UNSUBACK)
    MALFORMED_PACKET = 0x81, _LEAVE
    PROTOCOL_ERROR = 0x82, _LEAVE
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83, _LEAVE | _ACK | _SUB | _in(P.UNSUBACK)
    UNSUPPORTED_PROTOCOL_VERSION = 0x84, _in(P.CONNACK)
    CLIENT_IDENTIFIER_NOT_VALID = 0x85, _in(P.CONNACK)
    BAD_USER_NAME_OR_PASSWORD = 0x86, _in(P.CONNACK)
    NOT_AUTHORIZED = 0x87, _LEAVE | _ACK | _SUB | _in(P.UNSUBACK)
    SERVER_UNAVAILABLE = 0x88, _in(P.CONNACK)
    SERVER_BUSY = 0x89, _LEAVE
    BANNED = 0x8A, _in(P.CONNACK)
    SERVER_SHUTTING_DOWN = 0x8B, _in(P.DISCONNECT)
    BAD_AUTHENTICATION_METHOD = 0x8C, _LEAVE
    KEEP_ALIVE_TIMEOUT = 0x8D, _in(P.DISCONNECT)
    SESSION_TAKEN_OVER = 0x8E, _in(P.DISCONNECT)
    TOPIC_FILTER_INVALID = 0x8F, _SUB | _in(P.UNSUBACK, P.DISCONNECT)
    TOPIC_NAME_INVALID = 0x90, _LEAVE | _ACK
    PACKET_IDENTIFIER_IN_USE = 0x91, _ACK | _SUB | _in(P.UNSUBACK)
    PACKET_IDENTIFIER_NOT_FOUND = 0x92, _in(P.PUBREL, P.PUBCOMP)
    RECEIVE_MAXIMUM_EXCEEDED = 0x93, _in(P.DISCONNECT)
    TOPIC_ALIAS_INVALID = 0x94, _in(P.DISCONNECT)
    PACKET_TOO_LARGE = 0x95, _LEAVE
    MESSAGE_RATE_TOO_HIGH = 0x96, _in(P.DISCONNECT)
    QUOTA_EXCEEDED = 0x97, _LEAVE | _ACK | _SUB
    ADMINISTRATIVE_ACTION = 0x98, _in(P.DISCONNECT)
    PAYLOAD_FORMAT_INVALID = 0x99, _LEAVE | _ACK
    RETAIN_NOT_SUPPORTED = 0x9A, _LEAVE
    QOS_NOT_SUPPORTED = 0x9B, _LEAVE
    USE_ANOTHER_SERVER = 0x9C, _LEAVE
    SERVER_MOVED = 0x9D, _LEAVE
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E, _SUB | _in(P.DISCONNECT)
    CONNECTION_RATE_EXCEEDED = 0x9F, _LEAVE
    MAXIMUM_CONNECT_TIME = 0xA0, _in(P.DISCONNECT)
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1, _SUB | _in(P.DISCONNECT)
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2, _SUB | _in(P.DISCONNECT)


FAILURE = 0x80
"""The lowest reason code that reports a failure (MQTT 5.0 §2.4)."""

REASON_CODES: dict[int, tuple[str, frozenset[PacketType]]] = {code: (code.name.lower(), code.packets) for code in ReasonCode}
"""Maps a reason code to its name and the packets that it is defined for."""

R = ReasonCode

_RETURN_CODES: dict[int, int] = {
    R.UNSUPPORTED_PROTOCOL_VERSION: 1,
    R.CLIENT_IDENTIFIER_NOT_VALID: 2,
    R.SERVER_UNAVAILABLE: 3,
    R.SERVER_BUSY: 3,
    R.QUOTA_EXCEEDED: 3,
    R.USE_ANOTHER_SERVER: 3,
    R.SERVER_MOVED: 3,
    R.CONNECTION_RATE_EXCEEDED: 3,
    R.BAD_USER_NAME_OR_PASSWORD: 4,
    R.NOT_AUTHORIZED: 5,
    R.BANNED: 5,
    R.BAD_AUTHENTICATION_METHOD: 5,
}


def connack_return_code(reason_code: int) -> int | None:
    """Returns the CONNACK return code of 3.1 and 3.1.1 for a 5.0 reason code; None: close without CONNACK [MQTT-3.2.2-6]."""
    return _RETURN_CODES.get(reason_code)


_CLOSING_WORDS: dict[int, str] = {R.SUCCESS: "normal", R.KEEP_ALIVE_TIMEOUT: "keepalive_timeout", R.SESSION_TAKEN_OVER: "takenover"}
"""Reason codes that EMQX has a different word for."""


def closing_word(reason_code: int, by_network: bool) -> str:
    """Returns the reason of a disconnection for event messages; `by_network`: no DISCONNECT was sent or received."""
    if by_network:
        return "tcp_closed"
    if reason_code not in REASON_CODES:
        return f"0x{reason_code:02x}"
    return _CLOSING_WORDS.get(reason_code) or REASON_CODES[reason_code][0]
