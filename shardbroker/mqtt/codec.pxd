"""The hot half of the codec: headers, PUBLISH and its acknowledgements, from pointers into C structs.

Each view borrows the caller's bytes and is valid as long as these are. All functions raise only `MqttError` (see errors.py).
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.mqtt.buffer cimport Buffer


cdef struct FixedHeader:
    uint8_t first                  # packet type << 4 | flags
    uint32_t remaining             # announced length of the rest, bytes
    uint32_t size                  # length of this header itself, 2..5 bytes

cdef struct PublishView:
    uint8_t qos
    bint dup
    bint retain
    uint16_t packet_id             # 0 at QoS 0
    const uint8_t* topic           # not checked for UTF-8 or wildcards, see topics.check_topic_name
    uint32_t topic_size
    uint16_t topic_alias           # 0: the property is absent (an alias of 0 raises)
    bint has_expiry
    uint32_t expiry_s              # Message Expiry Interval as received
    uint8_t payload_format         # Payload Format Indicator, 0 when absent
    const uint8_t* properties      # properties that are passed on unchanged, in order: all but alias and expiry,
    uint32_t properties_size       # without a length prefix. Valid until the next parse_publish.
    const uint8_t* payload
    uint32_t payload_size

cdef struct AckView:
    uint16_t packet_id
    uint8_t reason_code

# Returns 1 if the header is complete (`header` is filled), 0 if more bytes are needed.
cdef int read_fixed_header(const uint8_t* data, size_t size, FixedHeader* header) except -1
# `body` is the packet after the fixed header, `size` its announced length, `version` 3, 4 or 5.
cdef int parse_publish(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, PublishView* view) except -1
# parse_ack takes PUBACK, PUBREC, PUBREL and PUBCOMP; it checks flags, reason codes and properties.
# are_flags_of_31 returns whether the flags of a packet other than PUBLISH are allowed by MQTT 3.1 §2.1: QoS 1 where the packet has
# a QoS, any DUP, the others unused.
cdef bint are_flags_of_31(uint8_t first) noexcept
cdef int parse_ack(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, AckView* view) except -1

# varint_size returns the size in bytes of a variable byte integer, 1..4. write_varint encodes it and returns the byte after it.
cdef uint32_t varint_size(uint32_t value) noexcept
cdef uint8_t* write_varint(uint8_t* target, uint32_t value) noexcept
# Writes PUBACK, PUBREC, PUBREL or PUBCOMP in the shortest form; `first` is the whole first byte (0x40, 0x50, 0x62, 0x70).
cdef int write_ack(Buffer out, uint8_t first, uint16_t packet_id, uint8_t reason_code, uint8_t version) except -1

# Writes SUBACK (0x90) or UNSUBACK (0xB0) without properties. A 3.x UNSUBACK has no codes: `codes` is empty then.
cdef int write_codes(Buffer out, uint8_t first, uint16_t packet_id, bytes codes, uint8_t version) except -1

# Parts shared with the other half of the codec (packets.pyx). `end` functions return the offset after a field.
cdef int read_varint(const uint8_t* data, uint32_t size, uint32_t* value) except -1
cdef uint32_t text_end(const uint8_t* data, uint32_t at, uint32_t size, bint utf8) except? 0
cdef uint32_t next_property(const uint8_t* data, uint32_t at, uint32_t size, uint32_t packet, uint64_t* seen, uint8_t* identifier) except? 0
cdef int check_response_topic(const uint8_t* topic, uint32_t size) except -1
