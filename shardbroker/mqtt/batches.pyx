"""Packets of a client, many at a time: a batch of PUBLISH as one block of bytes, and what a read has brought."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from shardbroker.mqtt.codec cimport AckView, FixedHeader, parse_ack, read_fixed_header, varint_size, write_varint
from shardbroker.mqtt.packets cimport decode_body
from shardbroker.mqtt.spec cimport PUBLISH_FIRST

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import ReasonCode

__all__ = ["encode_acks", "encode_publishes", "publish_size", "split_packets"]

cdef enum:
    TEXT_MAX = 65535                       # bytes of a topic (MQTT 5.0 §1.5.4)
    REMAINING_MAX = 268435455              # bytes of a packet behind its fixed header (MQTT 5.0 §1.5.5)


cdef uint64_t remaining_of(bytes topic, int qos, bytes properties, bytes payload, uint8_t version) except 0:
    """Returns the remaining length of a PUBLISH. Raises ValueError if no packet can have it."""
    cdef uint64_t topic_size = PyBytes_GET_SIZE(topic), properties_size = PyBytes_GET_SIZE(properties), size
    if topic_size == 0 or topic_size > TEXT_MAX:
        raise ValueError(f"topic: must be 1 to {TEXT_MAX} bytes, got {topic_size}")
    size = 2 + topic_size + (2 if qos else 0) + PyBytes_GET_SIZE(payload)
    if version == 5:
        size += properties_size + varint_size(<uint32_t>min(properties_size, <uint64_t>REMAINING_MAX))
    if size > REMAINING_MAX:
        raise ValueError(f"message: must be at most {REMAINING_MAX} bytes, got {size}")
    return size


def publish_size(bytes topic not None, int qos, bytes properties not None, bytes payload not None, uint8_t version) -> int:
    """Returns the bytes of a PUBLISH, with its fixed header. properties: encoded, without the length in front. Raises ValueError."""
    cdef uint64_t size = remaining_of(topic, qos, properties, payload, version)
    return 1 + varint_size(<uint32_t>size) + size


def encode_publishes(list messages not None, uint8_t version) -> bytes:
    """Returns the packets of messages (flags, packet id, topic, properties, payload), one behind the other.

    flags: DUP, QoS and RETAIN as in the first byte of PUBLISH; the packet id is left out at QoS 0. properties: encoded, left out
    but in version 5. Raises ValueError for a message that no packet can have.
    """
    cdef uint64_t total = 0, size
    cdef int flags
    cdef uint32_t packet_id
    cdef bytes topic, properties, payload, out
    cdef uint8_t* target
    for flags, _, topic, properties, payload in messages:
        size = remaining_of(topic, flags & 6, properties, payload, version)
        total += 1 + varint_size(<uint32_t>size) + size
    out = PyBytes_FromStringAndSize(NULL, total)
    target = <uint8_t*>PyBytes_AS_STRING(out)
    for flags, packet_id, topic, properties, payload in messages:
        target[0] = <uint8_t>(PUBLISH_FIRST | flags)
        target = write_varint(target + 1, <uint32_t>remaining_of(topic, flags & 6, properties, payload, version))
        target[0] = <uint8_t>(PyBytes_GET_SIZE(topic) >> 8)
        target[1] = <uint8_t>(PyBytes_GET_SIZE(topic) & 0xFF)
        target = put(target + 2, topic)
        if flags & 6:
            target[0] = <uint8_t>(packet_id >> 8)
            target[1] = <uint8_t>(packet_id & 0xFF)
            target += 2
        if version == 5:
            target = put(write_varint(target, <uint32_t>PyBytes_GET_SIZE(properties)), properties)
        target = put(target, payload)
    return out


cdef uint8_t* put(uint8_t* target, bytes text) noexcept:
    memcpy(target, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return target + PyBytes_GET_SIZE(text)


def encode_acks(uint8_t first, list packet_ids not None) -> bytes:
    """Returns acknowledgements without a reason code, which means success in version 5 too. first: their first byte."""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 * len(packet_ids))
    cdef uint8_t* target = <uint8_t*>PyBytes_AS_STRING(out)
    cdef uint32_t packet_id
    for packet_id in packet_ids:
        target[0], target[1], target[2], target[3] = first, 2, <uint8_t>(packet_id >> 8), <uint8_t>(packet_id & 0xFF)
        target += 4
    return out


def split_packets(bytes data not None, uint8_t version, uint32_t most) -> tuple:
    """Returns (packets, bytes used) of what was received; the rest is the begin of a packet.

    An acknowledgement of PUBLISH or PUBREL is (packet type, packet id, reason code), any other packet an object of packets.py.
    most: bytes of a packet that are accepted. Raises MqttError.
    """
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef size_t size = PyBytes_GET_SIZE(data), at = 0
    cdef FixedHeader header
    cdef AckView ack
    cdef int kind
    cdef list found = []
    while read_fixed_header(start + at, size - at, &header):
        if header.remaining > most:
            raise MqttError(ReasonCode.PACKET_TOO_LARGE, f"a packet of {header.remaining} bytes, allowed are {most}")
        if <uint64_t>header.size + header.remaining > size - at:
            break
        kind = header.first >> 4
        if 4 <= kind <= 7:
            parse_ack(header.first, start + at + header.size, header.remaining, version, &ack)
            found.append((kind, ack.packet_id, ack.reason_code))
        else:
            found.append(decode_body(header.first, start + at + header.size, header.remaining, version))
        at += header.size + header.remaining
    return found, at
