"""Packets as objects, in both directions: the packets off the hot path, and those that tests and the simulator exchange.

Text fields are bytes (checked UTF-8). Properties are a dict {property id: value}, or None if there are no properties. Values are
integers or bytes; User Property is a list of (name, value), Subscription Identifier an int in SUBSCRIBE and a list of int in
PUBLISH.

    decode(data, offset, version) -> (packet, next offset) | None (more bytes are needed) | raises MqttError
    packet.encode(version) -> bytes
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint16_t, uint64_t

from shardbroker.mqtt.codec cimport (
    AckView, FixedHeader, are_flags_of_31, check_response_topic, next_property, parse_ack, read_fixed_header, read_varint,
    text_end, write_varint,
)
from shardbroker.mqtt.spec cimport (
    AUTH, AUTH_FIRST, BRIDGE_BIT, CLIENT_IDENTIFIER_NOT_VALID, CONNACK, CONNACK_FIRST, CONNECT, CONNECT_FIRST, DISCONNECT_FIRST,
    PINGREQ, PINGRESP, PUBACK_FIRST, PUBCOMP_FIRST, PUBLISH, PUBLISH_FIRST, PUBREC_FIRST, PUBREL_FIRST, QUOTA_EXCEEDED, SUBACK,
    SUBACK_FIRST, SUBSCRIBE, SUBSCRIBE_FIRST, TOPIC_ALIAS_INVALID, UNSUBACK, UNSUBACK_FIRST, UNSUBSCRIBE, UNSUBSCRIBE_FIRST,
    UNSUPPORTED_PROTOCOL_VERSION, WILL,
)

from shardbroker.mqtt.errors import MalformedPacket, MqttError, ProtocolError
from shardbroker.mqtt.spec import PROPERTIES, REASON_CODES, PacketType, PropertyId, Wire

__all__ = [
    "Auth", "Connack", "Connect", "Disconnect", "Pingreq", "Pingresp", "Puback", "Pubcomp", "Publish", "Pubrec", "Pubrel",
    "Suback", "Subscribe", "Unsuback", "Unsubscribe", "Will", "decode", "encode_properties",
]


# --- packets ------------------------------------------------------------------------------------------------------------------


cdef class Packet:
    """The base of all packets: equality and representation by the fields listed in `fields`."""

    type = None
    fields = ()

    def __eq__(self, other):
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.fields)

    def __hash__(self):
        return hash((type(self), repr(self)))

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.fields)})"

    def encode(self, version):
        """Returns the packet as bytes for protocol version 3 (3.1), 4 (3.1.1) or 5."""
        raise NotImplementedError(type(self).__name__)


cdef class Will(Packet):
    """The will inside CONNECT (MQTT 5.0 §3.1.3.2)."""

    fields = ("topic", "payload", "qos", "retain", "properties")

    def __init__(self, bytes topic not None, bytes payload not None, qos=0, retain=False, properties=None):
        self.topic, self.payload, self.qos, self.retain, self.properties = topic, payload, qos, retain, properties


cdef class Connect(Packet):
    """CONNECT (MQTT 5.0 §3.1). `bridge`: the peer is a mosquitto bridge."""

    fields = ("version", "client_id", "clean_start", "keepalive_s", "username", "password", "will", "properties", "bridge")
    type = PacketType.CONNECT

    def __init__(self, version, client_id, clean_start=True, keepalive_s=60, username=None, password=None, will=None,
                 properties=None, bridge=False):
        self.version, self.client_id, self.clean_start, self.keepalive_s = version, client_id, clean_start, keepalive_s
        self.username, self.password, self.will = username, password, will
        self.properties, self.bridge = properties, bridge

    def encode(self, version):
        flags = 2 if self.clean_start else 0
        if self.will is not None:
            flags |= 4 | (self.will.qos << 3) | (0x20 if self.will.retain else 0)
        if self.username is not None:
            flags |= 0x80
        if self.password is not None:
            flags |= 0x40
        name = b"MQIsdp" if self.version == 3 else b"MQTT"
        level = self.version | (BRIDGE_BIT if self.bridge else 0)
        parts = [field(name), bytes((level, flags)), uint16_field(self.keepalive_s)]
        if self.version == 5:
            parts.append(property_block(self.properties))
        parts.append(field(self.client_id))
        if self.will is not None:
            if self.version == 5:
                parts.append(property_block(self.will.properties))
            parts += [field(self.will.topic), field(self.will.payload)]
        parts += [field(text) for text in (self.username, self.password) if text is not None]
        return framed(CONNECT_FIRST, parts)


class Connack(Packet):
    """CONNACK (MQTT 5.0 §3.2); in 3.x `reason_code` is the return code."""

    __slots__ = fields = ("session_present", "reason_code", "properties")
    type = PacketType.CONNACK

    def __init__(self, session_present, reason_code, properties=None):
        self.session_present, self.reason_code, self.properties = bool(session_present), reason_code, properties

    def encode(self, version):
        parts = [bytes((self.session_present, self.reason_code))]
        if version == 5:
            parts.append(property_block(self.properties))
        return framed(CONNACK_FIRST, parts)


class Publish(Packet):
    """PUBLISH (MQTT 5.0 §3.3)."""

    __slots__ = fields = ("topic", "payload", "qos", "retain", "dup", "packet_id", "properties")
    type = PacketType.PUBLISH

    def __init__(self, topic, payload=b"", qos=0, retain=False, dup=False, packet_id=0, properties=None):
        self.topic, self.payload, self.qos, self.retain = topic, payload, qos, bool(retain)
        self.dup, self.packet_id, self.properties = bool(dup), packet_id, properties

    def encode(self, version):
        parts = [field(self.topic)]
        if self.qos:
            parts.append(self.packet_id.to_bytes(2, "big"))
        if version == 5:
            parts.append(property_block(self.properties))
        parts.append(self.payload)
        return framed(PUBLISH_FIRST | self.dup << 3 | self.qos << 1 | self.retain, parts)


class Acknowledgement(Packet):
    """The base of PUBACK, PUBREC, PUBREL and PUBCOMP (MQTT 5.0 §3.4 to §3.7)."""

    __slots__ = fields = ("packet_id", "reason_code", "properties")
    first = 0

    def __init__(self, packet_id, reason_code=0, properties=None):
        self.packet_id, self.reason_code, self.properties = packet_id, reason_code, properties

    def encode(self, version):
        parts = [uint16_field(self.packet_id)]
        if version == 5 and (self.reason_code or self.properties):
            parts.append(bytes((self.reason_code,)))
            if self.properties:
                parts.append(property_block(self.properties))
        return framed(self.first, parts)


class Puback(Acknowledgement):
    """PUBACK (MQTT 5.0 §3.4)."""
    __slots__ = ()
    type, first = PacketType.PUBACK, PUBACK_FIRST


class Pubrec(Acknowledgement):
    """PUBREC (MQTT 5.0 §3.5)."""
    __slots__ = ()
    type, first = PacketType.PUBREC, PUBREC_FIRST


class Pubrel(Acknowledgement):
    """PUBREL (MQTT 5.0 §3.6)."""
    __slots__ = ()
    type, first = PacketType.PUBREL, PUBREL_FIRST


class Pubcomp(Acknowledgement):
    """PUBCOMP (MQTT 5.0 §3.7)."""
    __slots__ = ()
    type, first = PacketType.PUBCOMP, PUBCOMP_FIRST


cdef class Subscribe(Packet):
    """SUBSCRIBE (MQTT 5.0 §3.8); `topics` are (filter, options byte)."""

    fields = ("packet_id", "topics", "properties")
    type = PacketType.SUBSCRIBE

    def __init__(self, packet_id, topics, properties=None):
        self.packet_id, self.topics, self.properties = packet_id, topics, properties

    def encode(self, version):
        parts = [uint16_field(self.packet_id)]
        if version == 5:
            parts.append(property_block(self.properties))
        for filter, options in self.topics:
            parts += [field(filter), bytes((options,))]
        return framed(SUBSCRIBE_FIRST, parts)


class Suback(Packet):
    """SUBACK (MQTT 5.0 §3.9); `codes` has one byte per filter."""

    __slots__ = fields = ("packet_id", "codes", "properties")
    type, first = PacketType.SUBACK, SUBACK_FIRST

    def __init__(self, packet_id, codes, properties=None):
        self.packet_id, self.codes, self.properties = packet_id, codes, properties

    def encode(self, version):
        parts = [uint16_field(self.packet_id)]
        if version == 5:
            parts.append(property_block(self.properties))
        return framed(self.first, [*parts, self.codes])


cdef class Unsubscribe(Packet):
    """UNSUBSCRIBE (MQTT 5.0 §3.10)."""

    fields = ("packet_id", "filters", "properties")
    type = PacketType.UNSUBSCRIBE

    def __init__(self, packet_id, filters, properties=None):
        self.packet_id, self.filters, self.properties = packet_id, filters, properties

    def encode(self, version):
        parts = [uint16_field(self.packet_id)]
        if version == 5:
            parts.append(property_block(self.properties))
        return framed(UNSUBSCRIBE_FIRST, parts + [field(filter) for filter in self.filters])


class Unsuback(Packet):
    """UNSUBACK (MQTT 5.0 §3.11); in 3.x it has no codes."""

    __slots__ = fields = ("packet_id", "codes", "properties")
    type = PacketType.UNSUBACK

    def __init__(self, packet_id, codes=b"", properties=None):
        self.packet_id, self.codes, self.properties = packet_id, codes, properties

    def encode(self, version):
        parts = [uint16_field(self.packet_id)]
        if version == 5:
            parts += [property_block(self.properties), self.codes]
        return framed(UNSUBACK_FIRST, parts)


class Pingreq(Packet):
    """PINGREQ (MQTT 5.0 §3.12)."""

    __slots__ = ()
    type = PacketType.PINGREQ

    def encode(self, version):
        return b"\xc0\x00"


class Pingresp(Packet):
    """PINGRESP (MQTT 5.0 §3.13)."""

    __slots__ = ()
    type = PacketType.PINGRESP

    def encode(self, version):
        return b"\xd0\x00"


cdef class Disconnect(Packet):
    """DISCONNECT (MQTT 5.0 §3.14); in 3.x it has neither reason code nor properties."""

    fields = ("reason_code", "properties")
    type, first = PacketType.DISCONNECT, DISCONNECT_FIRST

    def __init__(self, reason_code=0, properties=None):
        self.reason_code, self.properties = reason_code, properties

    def encode(self, version):
        if version < 5 or not (self.reason_code or self.properties):
            return framed(self.first, [])
        parts = [bytes((self.reason_code,))]
        if self.properties:
            parts.append(property_block(self.properties))
        return framed(self.first, parts)


class Auth(Packet):
    """AUTH (MQTT 5.0 §3.15)."""

    __slots__ = fields = ("reason_code", "properties")
    type = PacketType.AUTH

    def __init__(self, reason_code=0, properties=None):
        self.reason_code, self.properties = reason_code, properties

    def encode(self, version):
        if not (self.reason_code or self.properties):
            return framed(AUTH_FIRST, [])
        return framed(AUTH_FIRST, [bytes((self.reason_code,)), property_block(self.properties)])


ACKNOWLEDGEMENTS = {4: Puback, 5: Pubrec, 6: Pubrel, 7: Pubcomp}


# --- encoding -----------------------------------------------------------------------------------------------------------------


cdef bytes field(bytes text):
    """Encodes a field as its length and its bytes (MQTT 5.0 §1.5.4 and §1.5.6)."""
    return len(text).to_bytes(2, "big") + text


cdef bytes uint16_field(uint16_t value):
    return bytes((value >> 8, value & 0xFF))


cdef bytes varint(uint32_t value):
    cdef uint8_t encoded[4]
    return PyBytes_FromStringAndSize(<char*>encoded, write_varint(encoded, value) - encoded)


cdef bytes framed(int first, list parts):
    cdef bytes body = b"".join(parts)
    return bytes((first,)) + varint(<uint32_t>len(body)) + body


cdef bytes property_block(properties):
    """Encodes a length and the properties; an empty set is a 0 [MQTT-2.2.2-1]."""
    if not properties:
        return b"\0"
    cdef bytes encoded = encode_properties(properties)
    return varint(<uint32_t>len(encoded)) + encoded


def encode_properties(properties) -> bytes:
    """Encodes properties one after the other, without the length in front."""
    cdef list parts = []
    for identifier, value in properties.items():
        wire = PROPERTIES[identifier].wire
        if isinstance(value, list):
            values = value
        else:
            values = (value,)
        for one in values:
            parts.append(bytes((identifier,)))
            if wire == Wire.BYTE:
                parts.append(bytes((one,)))
            elif wire == Wire.UINT16:
                parts.append(one.to_bytes(2, "big"))
            elif wire == Wire.UINT32:
                parts.append(one.to_bytes(4, "big"))
            elif wire == Wire.VARINT:
                parts.append(varint(one))
            elif wire == Wire.PAIR:
                parts += [field(one[0]), field(one[1])]
            else:
                parts.append(field(one))
    return b"".join(parts)


# --- decoding -----------------------------------------------------------------------------------------------------------------


cdef class Reader:
    """Reads the body of a packet field by field, each checked against the end of the body."""
    cdef const uint8_t* data
    cdef uint32_t at, size

    cdef int need(self, uint32_t count) except -1:
        if count > self.size - self.at:
            raise MalformedPacket("packet ends too early", "MQTT-3.1.4-1")
        return 0

    cdef uint8_t byte(self) except? 0:
        self.need(1)
        self.at += 1
        return self.data[self.at - 1]

    cdef uint16_t uint16(self) except? 0:
        self.need(2)
        self.at += 2
        return (<uint16_t>self.data[self.at - 2] << 8) | self.data[self.at - 1]

    cdef bytes text(self, bint utf8):
        cdef uint32_t begin = self.at + 2
        self.at = text_end(self.data, self.at, self.size, utf8)
        return PyBytes_FromStringAndSize(<const char*>self.data + begin, self.at - begin)

    cdef bytes tail(self):
        cdef uint32_t begin = self.at
        self.at = self.size
        return PyBytes_FromStringAndSize(<const char*>self.data + begin, self.size - begin)

    cdef dict properties(self, uint32_t packet):
        """Reads a block of properties; returns None if the block is empty."""
        cdef uint32_t length, end, begin
        cdef uint64_t seen = 0
        cdef uint8_t identifier
        cdef dict found = None
        self.at += read_varint(self.data + self.at, self.size - self.at, &length)
        self.need(length)
        end = self.at + length
        while self.at < end:
            begin = self.at
            self.at = next_property(self.data, begin, end, packet, &seen, &identifier)
            if found is None:
                found = {}
            put_property(found, packet, identifier, self.data + begin + 1, self.at - begin - 1)
        return found

    cdef int done(self) except -1:
        if self.at != self.size:
            raise MalformedPacket(f"{self.size - self.at} bytes too many")
        return 0


cdef int put_property(dict found, uint32_t packet, uint8_t identifier, const uint8_t* data, uint32_t size) except -1:
    """Puts a value that next_property has checked into the dict, after checking its range."""
    cdef uint32_t number, split
    spec = PROPERTIES[identifier]
    wire = spec.wire
    if wire == Wire.PAIR:
        split = ((<uint32_t>data[0] << 8) | data[1]) + 2
        pairs = found.setdefault(identifier, [])
        if len(pairs) >= USER_PROPERTIES_MAX and packet != PUBLISH:
            raise MqttError(QUOTA_EXCEEDED, f"more than {USER_PROPERTIES_MAX} user properties")
        pairs.append((
            PyBytes_FromStringAndSize(<const char*>data + 2, split - 2),
            PyBytes_FromStringAndSize(<const char*>data + split + 2, size - split - 2),
        ))
        return 0
    if wire == Wire.STRING or wire == Wire.BINARY:
        if identifier == PropertyId.RESPONSE_TOPIC:
            check_response_topic(data + 2, size - 2)
        found[identifier] = PyBytes_FromStringAndSize(<const char*>data + 2, size - 2)
        return 0
    if wire == Wire.VARINT:
        read_varint(data, size, &number)
    else:
        number = 0
        for split in range(size):
            number = (number << 8) | data[split]
    if (spec.nonzero and number == 0) or (spec.flag and number > 1):
        raise ProtocolError(f"property {PropertyId(identifier).name} cannot be {number}")
    if identifier == PropertyId.TOPIC_ALIAS and number == 0:
        raise MqttError(TOPIC_ALIAS_INVALID, "topic alias 0", "MQTT-3.3.2-8")
    if identifier == PropertyId.SUBSCRIPTION_IDENTIFIER and packet == PUBLISH:
        found.setdefault(identifier, []).append(number)
    else:
        found[identifier] = number
    return 0


def decode(bytes data not None, Py_ssize_t offset=0, uint8_t version=5):
    """Returns the packet at `offset` and the offset after it, or None if the packet is incomplete. Raises MqttError."""
    cdef FixedHeader header
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data) + offset
    cdef size_t size = PyBytes_GET_SIZE(data) - offset
    if offset > PyBytes_GET_SIZE(data) or not read_fixed_header(start, size, &header):
        return None
    if <uint64_t>header.size + header.remaining > size:
        return None
    packet = decode_body(header.first, start + header.size, header.remaining, version)
    return packet, offset + header.size + header.remaining


cdef object decode_body(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version):
    cdef int kind = first >> 4
    cdef Reader reader = Reader.__new__(Reader)
    cdef AckView ack
    reader.data = body
    reader.size = size
    if kind == PUBLISH:
        return decode_publish(reader, first, version)
    if 4 <= kind <= 7:
        parse_ack(first, body, size, version, &ack)
        properties = None
        if size > 3:
            reader.at = 3
            properties = reader.properties(kind)
        return ACKNOWLEDGEMENTS[kind](ack.packet_id, ack.reason_code, properties)
    if kind == 0 or (kind == AUTH and version < 5):
        raise MalformedPacket(f"packet type {kind}", "MQTT-4.13.1-1" if version == 5 else "MQTT-4.8.0-1")
    if kind == CONNECT:
        return decode_connect(reader, first)
    if first & 15 != (2 if kind == SUBSCRIBE or kind == UNSUBSCRIBE else 0) and not (version == 3 and are_flags_of_31(first)):
        raise MalformedPacket(f"flags 0x{first & 15:x} in {PacketType(kind).name}", "MQTT-2.1.3-1" if version == 5 else "MQTT-2.2.2-2")
    if kind == CONNACK:
        return decode_connack(reader, version)
    if kind == SUBSCRIBE:
        return decode_subscribe(reader, version)
    if kind == UNSUBSCRIBE:
        return decode_unsubscribe(reader, version)
    if kind == SUBACK or kind == UNSUBACK:
        packet_id = reader.uint16()
        properties = reader.properties(kind) if version == 5 else None
        if kind == UNSUBACK and version < 5:
            reader.done()                  # 3.x has no codes here
        codes = reader.tail()
        for code in codes:
            if version == 5:
                check_reason(code, kind)
        return (Suback if kind == SUBACK else Unsuback)(packet_id, codes, properties)
    if kind == PINGREQ or kind == PINGRESP:
        reader.done()
        return Pingreq() if kind == PINGREQ else Pingresp()
    return decode_coded(reader, kind, version)


cdef object decode_coded(Reader reader, int kind, uint8_t version):
    """Decodes DISCONNECT or AUTH: a reason code and properties, both optional."""
    cdef int code = 0
    cdef dict properties = None
    cdef Disconnect disconnect
    if version == 5 and reader.size:
        code = check_reason(reader.byte(), kind)
        if reader.size > 1:
            properties = reader.properties(kind)
    reader.done()
    if kind == AUTH:
        return Auth(code, properties)
    disconnect = Disconnect.__new__(Disconnect)
    disconnect.reason_code = <uint8_t>code
    disconnect.properties = properties
    return disconnect


cdef int check_reason(int code, int kind) except -1:
    known = REASON_CODES.get(code)
    if known is None or kind not in known[1]:
        raise ProtocolError(f"reason code 0x{code:02x} in {PacketType(kind).name}", f"MQTT-3.{kind}.2-1")
    return code


cdef object decode_publish(Reader reader, uint8_t first, uint8_t version):
    cdef int qos = (first >> 1) & 3
    if qos == 3:
        raise MalformedPacket("QoS 3", "MQTT-3.3.1-4")
    if qos == 0 and first & 8:
        raise MalformedPacket("DUP at QoS 0", "MQTT-3.3.1-2")
    topic = reader.text(True)
    packet_id = reader.uint16() if qos else 0
    if qos and packet_id == 0:
        raise ProtocolError("packet id 0", "MQTT-2.2.1-3")
    properties = reader.properties(PUBLISH) if version == 5 else None
    return Publish(topic, reader.tail(), qos, first & 1, first & 8, packet_id, properties)


cdef object decode_connack(Reader reader, uint8_t version):
    flags = reader.byte()
    if flags > 1:
        raise MalformedPacket(f"CONNACK flags 0x{flags:02x}", "MQTT-3.2.2-1")
    code = reader.byte()
    if version == 5:
        check_reason(code, CONNACK)
    properties = reader.properties(CONNACK) if version == 5 else None
    reader.done()
    return Connack(flags & 1, code, properties)


cdef object decode_subscribe(Reader reader, uint8_t version):
    cdef list topics = []
    cdef int options
    cdef bytes filter
    cdef Subscribe subscribe = Subscribe.__new__(Subscribe)
    subscribe.packet_id = reader.uint16()
    if subscribe.packet_id == 0:
        raise ProtocolError("packet id 0", "MQTT-2.2.1-3" if version == 5 else "MQTT-2.3.1-1")
    if version == 5:
        subscribe.properties = reader.properties(SUBSCRIBE)
    while reader.at < reader.size:
        filter = reader.text(True)         # [MQTT-3.8.3-1]
        options = reader.byte()
        if version == 3:
            options &= 3                   # MQTT 3.1 §3.8 does not use the other bits
        if options & 3 == 3 or (options & 0xC0 if version == 5 else options & 0xFC):
            # [MQTT-3.8.3-5], 3.1.1: [MQTT-3.8.3-4]
            raise MalformedPacket(f"subscription options 0x{options:02x}", "MQTT-3.8.3-5" if version == 5 else "MQTT-3.8.3-4")
        if options & 0x30 == 0x30:
            raise ProtocolError("retain handling 3")
        if options & 4 and filter.startswith(b"$share/"):
            raise ProtocolError("No Local on a shared subscription", "MQTT-3.8.3-4")
        if not filter:
            raise ProtocolError("an empty topic filter", "MQTT-4.7.3-1")
        topics.append((filter, options))
    if not topics:
        raise ProtocolError("SUBSCRIBE without a topic filter", "MQTT-3.8.3-2" if version == 5 else "MQTT-3.8.3-3")
    subscribe.topics = topics
    return subscribe


cdef object decode_unsubscribe(Reader reader, uint8_t version):
    cdef list filters = []
    packet_id = reader.uint16()
    if packet_id == 0:
        raise ProtocolError("packet id 0", "MQTT-2.2.1-3" if version == 5 else "MQTT-2.3.1-1")
    properties = reader.properties(UNSUBSCRIBE) if version == 5 else None
    while reader.at < reader.size:
        filter = reader.text(True)         # [MQTT-3.10.3-1]
        if not filter:
            raise ProtocolError("an empty topic filter", "MQTT-4.7.3-1")
        filters.append(filter)
    if not filters:
        raise ProtocolError("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return Unsubscribe(packet_id, filters, properties)


cdef object decode_connect(Reader reader, uint8_t first):
    """Decodes CONNECT. Name and level are checked first: for another protocol the rest has no meaning (MQTT 5.0 §3.1.2.1)."""
    cdef bytes name = reader.text(False)
    cdef int level = reader.byte(), version = level & 0x7F
    cdef int flags
    cdef uint16_t keepalive_s
    cdef bytes client_id, username = None, password = None
    cdef Will will = None
    cdef dict properties = None
    cdef Connect connect = Connect.__new__(Connect)
    if name == b"MQTT":
        supported = version == 4 or version == 5
    elif name == b"MQIsdp":
        supported = version == 3
    else:
        raise MqttError(UNSUPPORTED_PROTOCOL_VERSION, f"protocol name {name[:20]!r}", "MQTT-3.1.2-1")
    if not supported or (level & BRIDGE_BIT and version == 5):
        raise MqttError(UNSUPPORTED_PROTOCOL_VERSION, f"protocol level {level}, allowed are 3 (MQIsdp), 4 and 5", "MQTT-3.1.2-2")
    if first & 15 and version != 3:
        raise MalformedPacket(f"flags 0x{first & 15:x} in CONNECT", "MQTT-2.1.3-1" if version == 5 else "MQTT-2.2.2-2")
    flags = reader.byte()
    check_connect_flags(flags, version)
    keepalive_s = reader.uint16()
    if version == 5:
        properties = reader.properties(CONNECT)
        if properties is not None and PropertyId.AUTHENTICATION_DATA in properties \
                and PropertyId.AUTHENTICATION_METHOD not in properties:
            raise ProtocolError("authentication data without a method")
    client_id = reader.text(True)          # [MQTT-3.1.3-3] [MQTT-3.1.3-4]
    if flags & 4:
        will_properties = reader.properties(WILL) if version == 5 else None
        topic = reader.text(True)          # [MQTT-3.1.3-11], 3.1.1: [MQTT-3.1.3-10]
        payload = reader.text(False)
        will = Will(topic, payload, (flags >> 3) & 3, (flags & 0x20) != 0, will_properties)
    if flags & 0x80:
        username = reader.text(True)       # [MQTT-3.1.3-12], 3.1.1: [MQTT-3.1.3-11]
    if flags & 0x40:
        password = reader.text(False)
    reader.done()
    if version == 3 and not client_id:
        raise MqttError(CLIENT_IDENTIFIER_NOT_VALID, "MQTT 3.1 needs a client id of 1 to 23 characters")
    connect.version = <uint8_t>version
    connect.client_id = client_id
    connect.clean_start = (flags & 2) != 0
    connect.keepalive_s = keepalive_s
    connect.username = username
    connect.password = password
    connect.will = will
    connect.properties = properties
    connect.bridge = (level & BRIDGE_BIT) != 0
    return connect


cdef int check_connect_flags(int flags, int version) except -1:
    if flags & 1 and version != 3:         # unused in MQTT 3.1 §3.1
        raise MalformedPacket("reserved bit in the CONNECT flags", "MQTT-3.1.2-3")
    if flags & 4:
        if flags & 0x18 == 0x18:
            raise MalformedPacket("will QoS 3", "MQTT-3.1.2-12" if version == 5 else "MQTT-3.1.2-14")
    elif flags & 0x38:
        raise MalformedPacket("will QoS or will retain without a will", "MQTT-3.1.2-11")
    if version < 5 and flags & 0xC0 == 0x40:
        raise MalformedPacket("a password without a user name", "MQTT-3.1.2-22")
    return 0
