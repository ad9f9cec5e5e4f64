"""The hot half of the codec; see codec.pxd."""

from libc.stdlib cimport realloc
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcpy

from shardbroker.mqtt.spec cimport (
    BYTE, MESSAGE_EXPIRY_INTERVAL, PAIR, PAYLOAD_FORMAT_INDICATOR, PUBLISH, PUBREL, RESPONSE_TOPIC, STRING, SUBSCRIBE,
    SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, TOPIC_ALIAS_INVALID, UINT16, UINT32, UNSUBSCRIBE, USER_PROPERTY, VARINT,
)
from shardbroker.mqtt.topics cimport is_utf8

from shardbroker.mqtt.errors import MalformedPacket, MqttError, ProtocolError
from shardbroker.mqtt.spec import PROPERTIES, REASON_CODES, PacketType

cdef enum:
    PROPERTY_IDS = 0x2B                    # one more than the highest

# The tables of spec.py in a form that C can index. packets_of, reason_packets: one bit per packet type.
cdef uint8_t wire_of[PROPERTY_IDS]
cdef uint32_t packets_of[PROPERTY_IDS]
cdef uint32_t reason_packets[256]

for number in range(PROPERTY_IDS):
    packets_of[number] = 0
for number, spec in PROPERTIES.items():
    wire_of[<int>number] = <uint8_t>int(spec.wire)
    packets_of[<int>number] = <uint32_t>sum(1 << packet for packet in spec.packets)
for number in range(256):
    reason_packets[number] = <uint32_t>sum(1 << packet for packet in REASON_CODES.get(number, ("", ()))[1])

# Properties of a PUBLISH without its alias and expiry; valid until the next parse_publish.
cdef uint8_t* scratch = NULL
cdef size_t scratch_capacity = 0


cdef int read_fixed_header(const uint8_t* data, size_t size, FixedHeader* header) except -1:
    cdef uint32_t value = 0, i = 0
    cdef uint8_t byte
    if size > 1 and data[1] < 0x80:            # most packets are small
        header.first = data[0]
        header.remaining = data[1]
        header.size = 2
        return 1
    while True:
        if i + 1 >= size:
            return 0
        byte = data[i + 1]
        value |= <uint32_t>(byte & 0x7F) << (7 * i)
        i += 1
        if not byte & 0x80:
            break
        if i == 4:
            raise MalformedPacket("remaining length of more than four bytes")
    if i > 1 and byte == 0:
        raise MalformedPacket("remaining length is not in its shortest form", "MQTT-1.5.5-1")
    header.first = data[0]
    header.remaining = value
    header.size = i + 1
    return 1


cdef int read_varint(const uint8_t* data, uint32_t size, uint32_t* value) except -1:
    """Returns the number of bytes used, 1..4. Raises MalformedPacket if the integer is incomplete."""
    cdef uint32_t i = 0
    value[0] = 0
    while i < 4:
        if i >= size:
            raise MalformedPacket("packet ends within a variable byte integer")
        value[0] |= <uint32_t>(data[i] & 0x7F) << (7 * i)
        i += 1
        if not data[i - 1] & 0x80:
            if i > 1 and data[i - 1] == 0:
                raise MalformedPacket("variable byte integer is not in its shortest form", "MQTT-1.5.5-1")
            return i
    raise MalformedPacket("variable byte integer of more than four bytes")


cdef uint32_t text_end(const uint8_t* data, uint32_t at, uint32_t size, bint utf8) except? 0:
    """Returns the offset after a length-prefixed field."""
    cdef uint32_t length
    if at + 2 > size:
        raise MalformedPacket("packet ends within a length")
    length = (<uint32_t>data[at] << 8) | data[at + 1]
    if at + 2 + length > size:
        raise MalformedPacket("a field exceeds the packet", "MQTT-3.1.4-1")
    if utf8 and not is_utf8(data + at + 2, length):
        raise MalformedPacket("a string is not UTF-8 or contains U+0000", "MQTT-1.5.4-1")
    return at + 2 + length


cdef uint32_t property_end(const uint8_t* data, uint32_t at, uint32_t size, uint8_t identifier) except? 0:
    """Checks the encoding of the value at `at` and returns the offset after it."""
    cdef uint8_t wire = wire_of[identifier]
    cdef uint32_t end, number
    if wire == BYTE:
        end = at + 1
    elif wire == UINT16:
        end = at + 2
    elif wire == UINT32:
        end = at + 4
    elif wire == VARINT:
        return at + read_varint(data + at, size - at, &number)
    elif wire == PAIR:
        return text_end(data, text_end(data, at, size, True), size, True)   # [MQTT-1.5.7-1]
    else:
        return text_end(data, at, size, wire == STRING)
    if end > size:
        raise MalformedPacket("packet ends within a property")
    return end


cdef uint32_t next_property(const uint8_t* data, uint32_t at, uint32_t size, uint32_t packet, uint64_t* seen, uint8_t* identifier) except? 0:
    """Checks the property at `at` against the tables and returns the offset after it."""
    cdef uint32_t number, value_at
    value_at = at + read_varint(data + at, size - at, &number)
    if number >= PROPERTY_IDS or packets_of[number] == 0:
        raise MalformedPacket(f"unknown property 0x{number:02x}")
    if not packets_of[number] & (<uint32_t>1 << packet):
        raise MalformedPacket(f"property 0x{number:02x} is not allowed in {PacketType(packet).name}")
    if seen[0] & (<uint64_t>1 << number) and number != USER_PROPERTY and not (number == SUBSCRIPTION_IDENTIFIER and packet == PUBLISH):
        raise ProtocolError(f"property 0x{number:02x} twice in {PacketType(packet).name}")
    seen[0] |= <uint64_t>1 << number
    identifier[0] = <uint8_t>number
    return property_end(data, value_at, size, <uint8_t>number)


cdef int parse_publish(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, PublishView* view) except -1:
    cdef uint32_t at, length
    view.qos = (first >> 1) & 3
    view.dup = (first >> 3) & 1
    view.retain = first & 1
    view.packet_id = 0
    view.topic_alias = 0
    view.has_expiry = False
    view.expiry_s = 0
    view.payload_format = 0
    view.properties = NULL
    view.properties_size = 0
    if view.qos == 3:
        raise MalformedPacket("QoS 3", "MQTT-3.3.1-4")
    if view.dup and view.qos == 0:
        raise MalformedPacket("DUP at QoS 0", "MQTT-3.3.1-2")
    at = text_end(body, 0, size, False)
    view.topic = body + 2
    view.topic_size = at - 2
    if view.qos:
        if at + 2 > size:
            raise MalformedPacket("PUBLISH ends within its packet id")
        view.packet_id = (<uint16_t>body[at] << 8) | body[at + 1]
        at += 2
        if view.packet_id == 0:
            raise ProtocolError("packet id 0", "MQTT-2.2.1-3" if version == 5 else "MQTT-2.3.1-1")
    if version == 5:
        at += read_varint(body + at, size - at, &length)
        if length > size - at:
            raise MalformedPacket("properties exceed the packet")
        if length:
            parse_publish_properties(body + at, length, view)
        at += length
    view.payload = body + at
    view.payload_size = size - at
    return 0


cdef int parse_publish_properties(const uint8_t* data, uint32_t size, PublishView* view) except -1:
    cdef uint32_t at = 0, end, kept = 0
    cdef uint64_t seen = 0
    cdef uint8_t identifier
    cdef bint strip = False
    while at < size:
        end = next_property(data, at, size, PUBLISH, &seen, &identifier)
        if identifier == TOPIC_ALIAS:
            strip = True
            view.topic_alias = (<uint16_t>data[end - 2] << 8) | data[end - 1]
            if view.topic_alias == 0:
                raise MqttError(TOPIC_ALIAS_INVALID, "topic alias 0", "MQTT-3.3.2-8")
        elif identifier == MESSAGE_EXPIRY_INTERVAL:
            strip = True
            view.has_expiry = True
            view.expiry_s = (<uint32_t>data[end - 4] << 24) | (<uint32_t>data[end - 3] << 16) | (<uint32_t>data[end - 2] << 8) | data[end - 1]
        elif identifier == PAYLOAD_FORMAT_INDICATOR:
            view.payload_format = data[end - 1]
            if view.payload_format > 1:
                raise ProtocolError(f"payload format {view.payload_format}")
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            raise ProtocolError("subscription identifier in a PUBLISH from a client", "MQTT-3.3.4-6")
        elif identifier == RESPONSE_TOPIC:
            check_response_topic(data + at + 3, end - at - 3)
        at = end
    if not strip:
        view.properties = data
        view.properties_size = size
        return 0
    keep_scratch(size)
    at = 0
    seen = 0
    while at < size:
        end = next_property(data, at, size, PUBLISH, &seen, &identifier)
        if identifier != TOPIC_ALIAS and identifier != MESSAGE_EXPIRY_INTERVAL:
            memcpy(scratch + kept, data + at, end - at)
            kept += end - at
        at = end
    view.properties = scratch
    view.properties_size = kept
    return 0


cdef int keep_scratch(size_t size) except -1:
    global scratch, scratch_capacity
    cdef uint8_t* larger
    if size > scratch_capacity:
        larger = <uint8_t*>realloc(scratch, size)
        if larger == NULL:
            raise MemoryError(f"no memory for {size} bytes of properties")
        scratch = larger
        scratch_capacity = size
    return 0


cdef int check_response_topic(const uint8_t* topic, uint32_t size) except -1:
    if size == 0 or memchr(topic, c"+", size) != NULL or memchr(topic, c"#", size) != NULL:
        raise ProtocolError("response topic is empty or has a wildcard", "MQTT-3.3.2-14")
    return 0


cdef bint are_flags_of_31(uint8_t first) noexcept:
    cdef uint8_t kind = first >> 4
    return first & 6 == 2 if kind == PUBREL or kind == SUBSCRIBE or kind == UNSUBSCRIBE else True


cdef int parse_ack(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, AckView* view) except -1:
    cdef uint8_t kind = first >> 4, identifier
    cdef uint32_t at, length
    cdef uint64_t seen = 0
    if size == 2 and first & 0x0F == (2 if kind == PUBREL else 0) and (body[0] or body[1]):
        view.packet_id = (<uint16_t>body[0] << 8) | body[1]
        view.reason_code = 0
        return 0
    if first & 0x0F != (2 if kind == PUBREL else 0) and not (version == 3 and are_flags_of_31(first)):
        raise MalformedPacket(f"flags 0x{first & 15:x} in {PacketType(kind).name}", "MQTT-3.6.1-1" if kind == PUBREL else "MQTT-2.1.3-1")
    if size < 2 or (version < 5 and size != 2):
        raise MalformedPacket(f"{PacketType(kind).name} of {size} bytes")
    view.packet_id = (<uint16_t>body[0] << 8) | body[1]
    view.reason_code = 0
    if view.packet_id == 0:
        raise ProtocolError("packet id 0", "MQTT-2.2.1-3")
    if size > 2:
        view.reason_code = body[2]
        if not reason_packets[view.reason_code] & (<uint32_t>1 << kind):
            raise ProtocolError(f"reason code 0x{view.reason_code:02x} in {PacketType(kind).name}", f"MQTT-3.{kind}.2-1")
    if size > 3:
        at = 3 + read_varint(body + 3, size - 3, &length)
        if length != size - at:
            raise MalformedPacket("properties do not end with the packet")
        while at < size:
            at = next_property(body, at, size, kind, &seen, &identifier)
    return 0


cdef uint32_t varint_size(uint32_t value) noexcept:
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


cdef uint8_t* write_varint(uint8_t* target, uint32_t value) noexcept:
    while value > 127:
        target[0] = (value & 0x7F) | 0x80
        target += 1
        value >>= 7
    target[0] = <uint8_t>value
    return target + 1


cdef int write_codes(Buffer out, uint8_t first, uint16_t packet_id, bytes codes, uint8_t version) except -1:
    cdef uint32_t count = <uint32_t>PyBytes_GET_SIZE(codes), size = 2 + (1 if version == 5 else 0) + count
    cdef uint8_t* target = out.reserve(1 + varint_size(size) + size)
    target[0] = first
    target = write_varint(target + 1, size)
    target[0] = <uint8_t>(packet_id >> 8)
    target[1] = <uint8_t>(packet_id & 0xFF)
    target += 2
    if version == 5:
        target[0] = 0                      # no properties
        target += 1
    memcpy(target, PyBytes_AS_STRING(codes), count)
    return 0


cdef int write_ack(Buffer out, uint8_t first, uint16_t packet_id, uint8_t reason_code, uint8_t version) except -1:
    cdef bint coded = version == 5 and reason_code != 0
    cdef uint8_t* target = out.reserve(5 if coded else 4)
    target[0] = first
    target[1] = 3 if coded else 2
    target[2] = packet_id >> 8
    target[3] = packet_id & 0xFF
    if coded:
        target[4] = reason_code
    return 0
