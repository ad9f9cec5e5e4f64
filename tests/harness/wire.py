"""MQTT 3.1, 3.1.1 and 5.0 on the wire, written for tests and independent of the broker's codec.

Builders make any packet, right or wrong: each takes `flags` to override the low nibble of the first byte and
`tail` to append raw bytes to the body (the remaining length covers them). The parser is strict: whatever a
broker may not send raises `WireError`, so that a test sees it even if it did not look for it.

Versions are the protocol levels: 3 (MQTT 3.1), 4 (MQTT 3.1.1), 5 (MQTT 5.0).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import pack, unpack_from
from typing import Any

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 8, 9, 10, 11
PINGREQ, PINGRESP, DISCONNECT, AUTH = 12, 13, 14, 15

PROTOCOL_NAMES = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}

PROPERTIES: dict[str, tuple[int, str]] = {
    "payload_format_indicator": (0x01, "u8"),
    "message_expiry_interval": (0x02, "u32"),
    "content_type": (0x03, "string"),
    "response_topic": (0x08, "string"),
    "correlation_data": (0x09, "binary"),
    "subscription_identifier": (0x0B, "varint"),
    "session_expiry_interval": (0x11, "u32"),
    "assigned_client_identifier": (0x12, "string"),
    "server_keep_alive": (0x13, "u16"),
    "authentication_method": (0x15, "string"),
    "authentication_data": (0x16, "binary"),
    "request_problem_information": (0x17, "u8"),
    "will_delay_interval": (0x18, "u32"),
    "request_response_information": (0x19, "u8"),
    "response_information": (0x1A, "string"),
    "server_reference": (0x1C, "string"),
    "reason_string": (0x1F, "string"),
    "receive_maximum": (0x21, "u16"),
    "topic_alias_maximum": (0x22, "u16"),
    "topic_alias": (0x23, "u16"),
    "maximum_qos": (0x24, "u8"),
    "retain_available": (0x25, "u8"),
    "user_property": (0x26, "pair"),
    "maximum_packet_size": (0x27, "u32"),
    "wildcard_subscription_available": (0x28, "u8"),
    "subscription_identifier_available": (0x29, "u8"),
    "shared_subscription_available": (0x2A, "u8"),
}
"""Name to (identifier, kind); MQTT 5.0 §2.2.2.2."""

REPEATABLE = frozenset({"user_property", "subscription_identifier"})
"""Properties whose value is a list here, since they may come more than once."""

_BY_ID = {number: (name, kind) for name, (number, kind) in PROPERTIES.items()}
_REASON = frozenset({"reason_string", "user_property"})
_SERVER_PROPERTIES: dict[int, frozenset[str]] = {
    CONNACK: _REASON
    | {
        "session_expiry_interval",
        "assigned_client_identifier",
        "server_keep_alive",
        "authentication_method",
        "authentication_data",
        "response_information",
        "server_reference",
        "receive_maximum",
        "topic_alias_maximum",
        "maximum_qos",
        "retain_available",
        "maximum_packet_size",
        "wildcard_subscription_available",
        "subscription_identifier_available",
        "shared_subscription_available",
    },
    PUBLISH: frozenset(
        {
            "payload_format_indicator",
            "message_expiry_interval",
            "content_type",
            "response_topic",
            "correlation_data",
            "subscription_identifier",
            "topic_alias",
            "user_property",
        }
    ),
    PUBACK: _REASON,
    PUBREC: _REASON,
    PUBREL: _REASON,
    PUBCOMP: _REASON,
    SUBACK: _REASON,
    UNSUBACK: _REASON,
    DISCONNECT: _REASON | {"server_reference"},
    AUTH: _REASON | {"authentication_method", "authentication_data"},
}
"""What a server may send in each packet; MQTT 5.0 table 2-4."""

Properties = dict[str, Any]
PropertiesLike = Mapping[str, Any] | Iterable[tuple[str, Any]] | bytes | None
Text = str | bytes


class WireError(AssertionError):
    """The broker sent bytes that the standard does not allow."""


# --- builders -----------------------------------------------------------------------------------------------


def u16(number: int) -> bytes:
    return pack("!H", number)


def u32(number: int) -> bytes:
    return pack("!I", number)


def varint(number: int) -> bytes:
    """Variable byte integer, shortest form (MQTT 5.0 §1.5.5)."""
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def string(text: Text) -> bytes:
    """Length-prefixed string; bytes are taken as they are, so ill-formed UTF-8 can be sent."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    return u16(len(raw)) + raw


def prop(name: str, value: Any) -> bytes:
    """One property; a list (for repeatable ones) makes several."""
    number, kind = PROPERTIES[name]
    if name in REPEATABLE and isinstance(value, list):
        return b"".join(prop(name, one) for one in value)
    if kind == "pair":
        return bytes([number]) + string(value[0]) + string(value[1])
    encode = {"u8": lambda v: bytes([v]), "u16": u16, "u32": u32, "varint": varint}.get(kind, string)
    return bytes([number]) + encode(value)


def properties(values: PropertiesLike) -> bytes:
    """A property block with its length. A mapping or a list of (name, value); bytes are the raw block
    without its length."""
    if values is None:
        body = b""
    elif isinstance(values, bytes):
        body = values
    else:
        items = values.items() if isinstance(values, Mapping) else values
        body = b"".join(prop(name, value) for name, value in items)
    return varint(len(body)) + body


def packet(kind: int, body: bytes = b"", flags: int = 0, length: int | None = None) -> bytes:
    """A control packet; `length` overrides the remaining length that is announced."""
    return bytes([kind << 4 | flags]) + varint(len(body) if length is None else length) + body


@dataclass(frozen=True)
class Will:
    topic: Text
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: PropertiesLike = None


def connect(
    client_id: Text = "",
    version: int = 5,
    *,
    clean: bool = True,
    keepalive: int = 60,
    will: Will | None = None,
    username: Text | None = None,
    password: Text | None = None,
    properties: PropertiesLike = None,
    protocol_name: Text | None = None,
    level: int | None = None,
    connect_flags: int | None = None,
    flags: int = 0,
    tail: bytes = b"",
) -> bytes:
    """CONNECT. `connect_flags` overrides the flags byte only; the payload follows the other arguments."""
    bits = 0x02 if clean else 0
    payload = string(client_id)
    if will is not None:
        bits |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        if version >= 5:
            payload += _properties(will.properties)
        payload += string(will.topic) + string(will.payload)
    if username is not None:
        bits |= 0x80
        payload += string(username)
    if password is not None:
        bits |= 0x40
        payload += string(password)
    head = string(PROTOCOL_NAMES[version] if protocol_name is None else protocol_name)
    head += bytes([version if level is None else level, bits if connect_flags is None else connect_flags])
    head += u16(keepalive)
    if version >= 5:
        head += _properties(properties)
    return packet(CONNECT, head + payload + tail, flags)


def publish(
    topic: Text,
    payload: bytes = b"",
    *,
    version: int = 5,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int | None = None,
    properties: PropertiesLike = None,
    flags: int | None = None,
) -> bytes:
    """PUBLISH. A packet id is written for QoS 1 and 2 (0 if None), and for QoS 0 only if one is given."""
    body = string(topic)
    if qos or packet_id is not None:
        body += u16(packet_id or 0)
    if version >= 5:
        body += _properties(properties)
    bits = (8 if dup else 0) | qos << 1 | int(retain)
    return packet(PUBLISH, body + payload, bits if flags is None else flags)


def ack(
    kind: int,
    packet_id: int,
    *,
    version: int = 5,
    code: int | None = None,
    properties: PropertiesLike = None,
    flags: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP: the short form unless a code or properties are given."""
    body = u16(packet_id)
    if code is not None or properties is not None:
        body += bytes([code or 0])
    if properties is not None:
        body += _properties(properties)
    default = 2 if kind == PUBREL else 0
    return packet(kind, body + tail, default if flags is None else flags)


def puback(packet_id: int, **options: Any) -> bytes:
    return ack(PUBACK, packet_id, **options)


def pubrec(packet_id: int, **options: Any) -> bytes:
    return ack(PUBREC, packet_id, **options)


def pubrel(packet_id: int, **options: Any) -> bytes:
    return ack(PUBREL, packet_id, **options)


def pubcomp(packet_id: int, **options: Any) -> bytes:
    return ack(PUBCOMP, packet_id, **options)


def subscribe(
    packet_id: int,
    filters: Iterable[tuple[Text, int]],
    *,
    version: int = 5,
    properties: PropertiesLike = None,
    flags: int = 2,
    tail: bytes = b"",
) -> bytes:
    """SUBSCRIBE; each filter comes with its options byte (in 3.1.1 just the QoS)."""
    body = u16(packet_id)
    if version >= 5:
        body += _properties(properties)
    body += b"".join(string(text) + bytes([options]) for text, options in filters)
    return packet(SUBSCRIBE, body + tail, flags)


def options(qos: int = 0, no_local: bool = False, retain_as_published: bool = False, retain_handling: int = 0) -> int:
    """Subscription options byte (MQTT 5.0 §3.8.3.1)."""
    return qos | (4 if no_local else 0) | (8 if retain_as_published else 0) | retain_handling << 4


def unsubscribe(
    packet_id: int,
    filters: Iterable[Text],
    *,
    version: int = 5,
    properties: PropertiesLike = None,
    flags: int = 2,
    tail: bytes = b"",
) -> bytes:
    body = u16(packet_id)
    if version >= 5:
        body += _properties(properties)
    return packet(UNSUBSCRIBE, body + b"".join(map(string, filters)) + tail, flags)


def pingreq(flags: int = 0, tail: bytes = b"") -> bytes:
    return packet(PINGREQ, tail, flags)


def disconnect(
    *,
    version: int = 5,
    code: int | None = None,
    properties: PropertiesLike = None,
    flags: int = 0,
    tail: bytes = b"",
) -> bytes:
    """DISCONNECT: empty unless a code or properties are given (5.0 only)."""
    body = b""
    if version >= 5 and (code is not None or properties is not None):
        body = bytes([code or 0])
        if properties is not None:
            body += _properties(properties)
    return packet(DISCONNECT, body + tail, flags)


def auth(code: int | None = None, properties: PropertiesLike = None, *, flags: int = 0, tail: bytes = b"") -> bytes:
    body = b""
    if code is not None or properties is not None:
        body = bytes([code or 0]) + _properties(properties)
    return packet(AUTH, body + tail, flags)


_properties = properties

# --- what a server sends ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packet:
    """A parsed packet; `raw` holds all its bytes."""

    raw: bytes = field(repr=False, compare=False, kw_only=True, default=b"")


@dataclass(frozen=True)
class Connack(Packet):
    session_present: bool
    code: int
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True)
class Publish(Packet):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int | None
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True)
class Ack(Packet):
    packet_id: int
    code: int = 0
    properties: Properties = field(default_factory=dict)


class Puback(Ack):
    pass


class Pubrec(Ack):
    pass


class Pubrel(Ack):
    pass


class Pubcomp(Ack):
    pass


@dataclass(frozen=True)
class Suback(Packet):
    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True)
class Unsuback(Packet):
    """`codes` is empty before 5.0."""

    packet_id: int
    codes: tuple[int, ...] = ()
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True)
class Pingresp(Packet):
    pass


@dataclass(frozen=True)
class Disconnect(Packet):
    code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True)
class Auth(Packet):
    code: int = 0
    properties: Properties = field(default_factory=dict)


class _Reader:
    """Takes fields off a packet body; running past the end is a WireError."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.body):
            raise WireError(f"field runs past the end of the packet: {self.body.hex(' ')}")
        self.at += size
        return self.body[self.at - size : self.at]

    def rest(self) -> bytes:
        return self.take(len(self.body) - self.at)

    @property
    def left(self) -> int:
        return len(self.body) - self.at

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(unpack_from("!H", self.take(2))[0])

    def u32(self) -> int:
        return int(unpack_from("!I", self.take(4))[0])

    def varint(self) -> int:
        value, shift = 0, 0
        for _ in range(4):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if len(varint(value)) * 7 != shift:
                    raise WireError("variable byte integer is not in its shortest form")
                return value
        raise WireError("variable byte integer of more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.u16())

    def string(self) -> str:
        raw = self.binary()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"string is not UTF-8: {raw.hex(' ')}") from error
        if "\0" in text:
            raise WireError("string contains U+0000")
        return text

    def pair(self) -> tuple[str, str]:
        return self.string(), self.string()

    def properties(self, kind: int) -> Properties:
        block = _Reader(self.take(self.varint()))
        found: Properties = {}
        while block.left:
            number = block.varint()
            if number not in _BY_ID:
                raise WireError(f"unknown property 0x{number:02x}")
            name, type_ = _BY_ID[number]
            if name not in _SERVER_PROPERTIES[kind]:
                raise WireError(f"property {name} is not allowed in packet type {kind}")
            value = getattr(block, type_)()
            if name in REPEATABLE:
                found.setdefault(name, []).append(value)
            elif name in found:
                raise WireError(f"property {name} twice")
            else:
                found[name] = value
        return found


def parse(buffer: bytes, version: int) -> tuple[Packet, int] | None:
    """The first packet that a server sent in `buffer` and its size in bytes; None if it is incomplete.

    Raises WireError if a server of this version may not send it.
    """
    size, shift, at = 0, 0, 1
    while True:
        if at >= len(buffer):
            return None
        byte = buffer[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
        if at > 4:
            raise WireError(f"remaining length of more than four bytes: {buffer[:5].hex(' ')}")
    if at - 1 != len(varint(size)):
        raise WireError("remaining length is not in its shortest form")
    if len(buffer) < at + size:
        return None
    raw = bytes(buffer[: at + size])
    return _decode(raw[0] >> 4, raw[0] & 0x0F, _Reader(raw[at:]), version, raw), at + size


def _decode(kind: int, flags: int, body: _Reader, version: int, raw: bytes) -> Packet:
    if kind != PUBLISH and flags != (2 if kind == PUBREL else 0):
        raise WireError(f"reserved flags are wrong: {raw[:2].hex(' ')}")
    if kind not in _DECODERS or (version < 5 and kind in (DISCONNECT, AUTH)):
        raise WireError(f"a server may not send this: {raw[:32].hex(' ')}")
    found: Packet = _DECODERS[kind](body, flags, version, raw)
    if body.left:
        raise WireError(f"{body.left} bytes behind the end of the packet: {raw.hex(' ')}")
    return found


def _connack(body: _Reader, flags: int, version: int, raw: bytes) -> Connack:
    bits, code = body.u8(), body.u8()
    if bits > (0 if version == 3 else 1):
        raise WireError(f"reserved CONNACK flags are set: {raw.hex(' ')}")
    if version < 5 and code > 5:
        raise WireError(f"CONNACK return code {code} is not defined")
    if code and bits:
        raise WireError("session present in a refusal")
    return Connack(bool(bits), code, body.properties(CONNACK) if version >= 5 else {}, raw=raw)


def _publish(body: _Reader, flags: int, version: int, raw: bytes) -> Publish:
    qos = flags >> 1 & 3
    if qos == 3 or (qos == 0 and flags & 8):
        raise WireError(f"PUBLISH flags 0x{flags:x}")
    topic = body.string()
    packet_id = body.u16() if qos else None
    if packet_id == 0:
        raise WireError("packet id 0")
    found = body.properties(PUBLISH) if version >= 5 else {}
    if not topic and "topic_alias" not in found:
        raise WireError("PUBLISH with neither a topic nor an alias")
    if "+" in topic or "#" in topic:
        raise WireError(f"PUBLISH to a topic with a wildcard: {topic!r}")
    return Publish(topic, body.rest(), qos, bool(flags & 1), bool(flags & 8), packet_id, found, raw=raw)


def _ack(kind: int, cls: type[Ack]) -> Any:
    def decode(body: _Reader, flags: int, version: int, raw: bytes) -> Ack:
        packet_id = body.u16()
        code = body.u8() if version >= 5 and body.left else 0
        found = body.properties(kind) if version >= 5 and body.left else {}
        return cls(packet_id, code, found, raw=raw)

    return decode


def _suback(body: _Reader, flags: int, version: int, raw: bytes) -> Suback:
    packet_id = body.u16()
    found = body.properties(SUBACK) if version >= 5 else {}
    codes = tuple(body.rest())
    if not codes or (version < 5 and not set(codes) <= {0, 1, 2, 0x80}):
        raise WireError(f"SUBACK codes {codes}")
    return Suback(packet_id, codes, found, raw=raw)


def _unsuback(body: _Reader, flags: int, version: int, raw: bytes) -> Unsuback:
    packet_id = body.u16()
    if version < 5:
        return Unsuback(packet_id, raw=raw)
    found = body.properties(UNSUBACK)
    return Unsuback(packet_id, tuple(body.rest()), found, raw=raw)


def _pingresp(body: _Reader, flags: int, version: int, raw: bytes) -> Pingresp:
    return Pingresp(raw=raw)


def _coded(kind: int, cls: type[Disconnect] | type[Auth]) -> Any:
    def decode(body: _Reader, flags: int, version: int, raw: bytes) -> Packet:
        code = body.u8() if body.left else 0
        return cls(code, body.properties(kind) if body.left else {}, raw=raw)

    return decode


_DECODERS: dict[int, Any] = {
    CONNACK: _connack,
    PUBLISH: _publish,
    PUBACK: _ack(PUBACK, Puback),
    PUBREC: _ack(PUBREC, Pubrec),
    PUBREL: _ack(PUBREL, Pubrel),
    PUBCOMP: _ack(PUBCOMP, Pubcomp),
    SUBACK: _suback,
    UNSUBACK: _unsuback,
    PINGRESP: _pingresp,
    DISCONNECT: _coded(DISCONNECT, Disconnect),
    AUTH: _coded(AUTH, Auth),
}
