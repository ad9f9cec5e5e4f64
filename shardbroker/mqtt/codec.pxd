"""The hot half of the codec: headers, PUBLISH and its acknowledgements, from pointers into C structs.

Every view borrows the caller's bytes: it is valid as long as they are. Every function raises only
`MqttError` (see errors.py).
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
    const uint8_t* topic           # NOT checked for UTF-8 or wildcards: see topics.check_topic_name
    uint32_t topic_size
    uint16_t topic_alias           # 0: the property was absent (an alias of 0 raises)
    bint has_expiry
    uint32_t expiry_s              # Message Expiry Interval as received
    uint8_t payload_format         # Payload Format Indicator, 0 when absent
    const uint8_t* properties      # what is passed on unchanged, in order: all but alias and expiry.
    uint32_t properties_size       # Without a length prefix. Valid until the next parse_publish.
    const uint8_t* payload
    uint32_t payload_size

cdef struct AckView:
    uint16_t packet_id
    uint8_t reason_code

# 1: complete, `header` is filled; 0: more bytes are needed.
cdef int read_fixed_header(const uint8_t* data, size_t size, FixedHeader* header) except -1
# `body` is what follows the fixed header, `size` = its announced length, `version` is 3, 4 or 5.
cdef int parse_publish(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, PublishView* view) except -1
# PUBACK, PUBREC, PUBREL, PUBCOMP; checks flags, reason codes and properties.
# Flags of a packet that is no PUBLISH, as MQTT 3.1 §2.1 has them: QoS 1 where a packet has one, DUP as the client likes, the others unused.
cdef bint are_flags_of_31(uint8_t first) noexcept
cdef int parse_ack(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version, AckView* view) except -1

# Size in bytes of a variable byte integer of this value, 1..4; and its encoder, which returns the byte after it.
cdef uint32_t varint_size(uint32_t value) noexcept
cdef uint8_t* write_varint(uint8_t* target, uint32_t value) noexcept
# PUBACK/PUBREC/PUBREL/PUBCOMP in the shortest form; `first` is the whole first byte (0x40, 0x50, 0x62, 0x70).
cdef int write_ack(Buffer out, uint8_t first, uint16_t packet_id, uint8_t reason_code, uint8_t version) except -1

# SUBACK (0x90) or UNSUBACK (0xB0) without properties; `codes` are left out of a 3.x UNSUBACK by passing none.
cdef int write_codes(Buffer out, uint8_t first, uint16_t packet_id, bytes codes, uint8_t version) except -1

# Pieces that the other half of the codec (packets.pyx) shares. `end` functions return the offset after a field.
cdef int read_varint(const uint8_t* data, uint32_t size, uint32_t* value) except -1
cdef uint32_t text_end(const uint8_t* data, uint32_t at, uint32_t size, bint utf8) except? 0
cdef uint32_t next_property(const uint8_t* data, uint32_t at, uint32_t size, uint32_t packet, uint64_t* seen, uint8_t* identifier) except? 0
cdef int check_response_topic(const uint8_t* topic, uint32_t size) except -1
