"""Messages of MQTT-SN 1.2, without I/O: one datagram is one message.

    length (1 byte, or 0x01 and 2 bytes) | message type | fields of fixed size | one field that takes the rest

LAYOUTS has the fields of every message (MQTT-SN §5.4); reading and writing follow from it. Behind a forwarder, a message has a
header of its own in front (MQTT-SN §5.5):

    length (1 byte, of this header) | 0xFE | ctrl | wireless node id | message
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "CLEAN", "DUP", "LAYOUTS", "QOS_NEGATIVE", "RETAIN", "WILL", "Kind", "Message", "MqttSnError", "ReturnCode", "TopicKind",
    "decode", "encode_publish", "qos_of", "short_id", "short_name", "unwrap",
]  # fmt: skip

ENCAPSULATED = 0xFE
NODE_MAX = 64
"""Longest wireless node id that is accepted, bytes: it is kept with each device behind a forwarder."""
LONG_FORM = 0x01
"""First byte of a message whose length takes two more bytes (MQTT-SN §5.2.1)."""
SHORT_MAX = 255
DUP, RETAIN, WILL, CLEAN = 0x80, 0x10, 0x08, 0x04
"""Flags (MQTT-SN §5.3.4)."""
QOS_NEGATIVE = 3
"""The two bits of QoS -1."""


class Kind(IntEnum):
    """Message types (MQTT-SN §5.2.2)."""

    ADVERTISE = 0x00
    SEARCHGW = 0x01
    GWINFO = 0x02
    CONNECT = 0x04
    CONNACK = 0x05
    WILLTOPICREQ = 0x06
    WILLTOPIC = 0x07
    WILLMSGREQ = 0x08
    WILLMSG = 0x09
    REGISTER = 0x0A
    REGACK = 0x0B
    PUBLISH = 0x0C
    PUBACK = 0x0D
    PUBCOMP = 0x0E
    PUBREC = 0x0F
    PUBREL = 0x10
    SUBSCRIBE = 0x12
    SUBACK = 0x13
    UNSUBSCRIBE = 0x14
    UNSUBACK = 0x15
    PINGREQ = 0x16
    PINGRESP = 0x17
    DISCONNECT = 0x18
    WILLTOPICUPD = 0x1A
    WILLTOPICRESP = 0x1B
    WILLMSGUPD = 0x1C
    WILLMSGRESP = 0x1D


class ReturnCode(IntEnum):
    """Return codes (MQTT-SN §5.3.10)."""

    ACCEPTED = 0
    CONGESTION = 1
    INVALID_TOPIC_ID = 2
    NOT_SUPPORTED = 3


class TopicKind(IntEnum):
    """What a topic is named by (MQTT-SN §5.3.4). NORMAL is a registered id, or in SUBSCRIBE and UNSUBSCRIBE a topic name."""

    NORMAL = 0
    PREDEFINED = 1
    SHORT = 2


class MqttSnError(Exception):
    """A datagram that is no message of MQTT-SN. It is counted and not answered."""


class Layout(NamedTuple):
    """The fields of a message. A field of one letter: `B` one byte, `H` two bytes."""

    fields: tuple[tuple[str, str], ...] = ()
    has_rest: bool = False
    """Whether a field without a fixed size follows: Message.data."""
    may_be_empty: bool = False
    """Whether the message may also have none of its fields."""


_TOPIC, _ID, _CODE, _FLAGS = ("topic_id", "H"), ("msg_id", "H"), ("code", "B"), ("flags", "B")
LAYOUTS: dict[Kind, Layout] = {
    Kind.ADVERTISE: Layout((("gateway_id", "B"), ("duration", "H"))),
    Kind.SEARCHGW: Layout((("radius", "B"),)),
    Kind.GWINFO: Layout((("gateway_id", "B"),), has_rest=True),
    Kind.CONNECT: Layout((_FLAGS, ("protocol", "B"), ("duration", "H")), has_rest=True),
    Kind.CONNACK: Layout((_CODE,)),
    Kind.WILLTOPICREQ: Layout(),
    Kind.WILLTOPIC: Layout((_FLAGS,), has_rest=True, may_be_empty=True),
    Kind.WILLMSGREQ: Layout(),
    Kind.WILLMSG: Layout(has_rest=True),
    Kind.REGISTER: Layout((_TOPIC, _ID), has_rest=True),
    Kind.REGACK: Layout((_TOPIC, _ID, _CODE)),
    Kind.PUBLISH: Layout((_FLAGS, _TOPIC, _ID), has_rest=True),
    Kind.PUBACK: Layout((_TOPIC, _ID, _CODE)),
    Kind.PUBCOMP: Layout((_ID,)),
    Kind.PUBREC: Layout((_ID,)),
    Kind.PUBREL: Layout((_ID,)),
    Kind.SUBSCRIBE: Layout((_FLAGS, _ID), has_rest=True),
    Kind.SUBACK: Layout((_FLAGS, _TOPIC, _ID, _CODE)),
    Kind.UNSUBSCRIBE: Layout((_FLAGS, _ID), has_rest=True),
    Kind.UNSUBACK: Layout((_ID,)),
    Kind.PINGREQ: Layout(has_rest=True),
    Kind.PINGRESP: Layout(),
    Kind.DISCONNECT: Layout((("duration", "H"),), may_be_empty=True),
    Kind.WILLTOPICUPD: Layout((_FLAGS,), has_rest=True, may_be_empty=True),
    Kind.WILLTOPICRESP: Layout((_CODE,)),
    Kind.WILLMSGUPD: Layout(has_rest=True),
    Kind.WILLMSGRESP: Layout((_CODE,)),
}
_STRUCTS = {kind: struct.Struct("!" + "".join(size for _, size in layout.fields)) for kind, layout in LAYOUTS.items()}
_READERS = {
    int(kind): (kind, _STRUCTS[kind], tuple(name for name, _ in layout.fields), layout.has_rest, layout.may_be_empty)
    for kind, layout in LAYOUTS.items()
}
_PUBLISH_HEAD = struct.Struct("!BBBHH")


@dataclass(slots=True)
class Message:
    """A message; fields that its kind does not have are at their defaults."""

    kind: Kind
    flags: int = 0
    topic_id: int = 0
    msg_id: int = 0
    code: int = 0
    duration: int = 0
    """Seconds; in DISCONNECT, 0 stands for the message without it."""
    gateway_id: int = 0
    radius: int = 0
    protocol: int = 1
    data: bytes = b""
    """Client id, topic name, payload, or the two bytes of a topic id or short name in SUBSCRIBE and UNSUBSCRIBE."""

    def encode(self) -> bytes:
        """Returns the datagram. Raises ValueError if no message can be that long."""
        layout = LAYOUTS[self.kind]
        if layout.may_be_empty and not (self.flags or self.duration or self.data):
            return bytes((2, self.kind))
        head = _STRUCTS[self.kind].pack(*(getattr(self, name) for name, _ in layout.fields))
        return _framed(self.kind, head + self.data)


def _framed(kind: int, body: bytes) -> bytes:
    size = len(body) + 2
    if size <= SHORT_MAX:
        return bytes((size, kind)) + body
    if size + 2 > 0xFFFF:
        raise ValueError(f"message: must be at most {0xFFFF} bytes, got {size + 2}")
    return struct.pack("!BHB", LONG_FORM, size + 2, kind) + body


def encode_publish(flags: int, topic_id: int, msg_id: int, payload: bytes) -> bytes:
    """Returns a PUBLISH. Raises ValueError if no message can be that long."""
    size = len(payload) + 7
    if size <= SHORT_MAX:
        return _PUBLISH_HEAD.pack(size, Kind.PUBLISH, flags, topic_id, msg_id) + payload
    return _framed(Kind.PUBLISH, _STRUCTS[Kind.PUBLISH].pack(flags, topic_id, msg_id) + payload)


def decode(data: bytes) -> Message:
    """Returns the message of a datagram. Raises MqttSnError."""
    size = len(data)
    if size < 2:
        raise MqttSnError(f"a datagram of {size} bytes")
    length, at = data[0], 2
    if length == LONG_FORM:
        if size < 4:
            raise MqttSnError("a message without its length")
        length, at = data[1] << 8 | data[2], 4
    if length != size:
        raise MqttSnError(f"length: must be that of the datagram, {size}, got {length}")
    reader = _READERS.get(data[at - 1])
    if reader is None:
        raise MqttSnError(f"message type 0x{data[at - 1]:02x} is not defined")
    kind, fields, names, has_rest, may_be_empty = reader
    end = at + fields.size
    if kind is Kind.PUBLISH and size >= end:  # most messages: without a loop
        flags, topic_id, msg_id = fields.unpack_from(data, at)
        return Message(kind, flags, topic_id, msg_id, data=data[end:])
    message = Message(kind)
    if size < end or (size > end and not has_rest):
        if size == at and may_be_empty:
            return message
        raise MqttSnError(f"{kind.name}: {size} bytes")
    for name, value in zip(names, fields.unpack_from(data, at)):  # noqa: B905  both are of one layout; the check costs 80 ns
        setattr(message, name, value)
    if has_rest:
        message.data = data[end:]
    return message


def qos_of(flags: int) -> int:
    """Returns the two bits of QoS; 3 is QoS -1."""
    return flags >> 5 & 3


def short_id(topic: bytes) -> int:
    """Returns the topic id that holds a topic of two bytes (MQTT-SN §5.3.11)."""
    return topic[0] << 8 | topic[1]


def short_name(topic_id: int) -> bytes:
    """Returns the topic of a short topic id."""
    return topic_id.to_bytes(2, "big")


def unwrap(data: bytes) -> tuple[bytes, bytes]:
    """Returns the header of a forwarder, empty without one, and the message behind it. Raises MqttSnError."""
    if len(data) < 2 or data[1] != ENCAPSULATED or data[0] == LONG_FORM:
        return b"", data
    size = data[0]
    if not 3 <= size <= len(data):
        raise MqttSnError(f"header of a forwarder of {size} bytes, in {len(data)}")
    if size - 3 > NODE_MAX:
        raise MqttSnError(f"a wireless node id of {size - 3} bytes, allowed are {NODE_MAX}")
    return data[:size], data[size:]
