"""Extracts the client id from the start of a CONNECT, without validation and without a socket.

    0x10 | remaining length | 2 + name | level | flags | keepalive | 5.0: length, properties | 2 + client id | ...
                              `- start                              `- behind

The worker parses and validates the whole CONNECT; a CONNECT that is unclear here is left to any worker to refuse. Only two cases
end here: bytes that do not begin a CONNECT, and a length above the limit.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from shardbroker.mqtt.spec cimport BRIDGE_BIT, CONNECT

__all__ = ["peek_client_id"]

cdef enum:
    VERSION_5 = 5
    NAME_31 = 6                            # size of "MQIsdp"
    CONNECT_31_LEAST = 14                  # bytes behind the fixed header in MQTT 3.1, with an empty client id
    NAME_311 = 4                           # size of "MQTT"
    AFTER_NAME = 4                         # level, flags, keepalive, bytes
    VARINT_MAX = 4                         # bytes


cdef int varint(const uint8_t* data, size_t size, uint32_t* value) noexcept:
    """Decodes a variable byte integer. Returns the bytes used; 0: incomplete, -1: too long. The worker rejects overlong forms."""
    cdef int i
    value[0] = 0
    for i in range(<int>VARINT_MAX):
        if <size_t>i >= size:
            return 0
        value[0] |= <uint32_t>(data[i] & 0x7F) << (7 * i)
        if not data[i] & 0x80:
            return i + 1
    return -1


cdef int beyond(uint64_t need, uint64_t end) noexcept:
    """Returns NEED_MORE if the missing bytes can still arrive, UNCLEAR if the packet ends before them."""
    return NEED_MORE if need <= end else UNCLEAR


cdef int peek(const uint8_t* data, size_t size, uint32_t max_packet, const uint8_t** client_id, uint32_t* length) noexcept:
    cdef uint32_t remaining, properties, name, id_size
    cdef uint64_t at, end, here            # offsets; `here`: end of the received part of this packet
    cdef int used
    if size == 0:
        return NEED_MORE
    if data[0] >> 4 != CONNECT:
        return NOT_CONNECT
    used = varint(data + 1, size - 1, &remaining)
    if used > 0 and data[0] & 15 and remaining < CONNECT_31_LEAST:
        return NOT_CONNECT
    if used <= 0:
        return NEED_MORE if used == 0 else UNCLEAR
    at = 1 + used
    end = at + remaining
    if end > max_packet:
        return TOO_LARGE
    here = min(<uint64_t>size, end)
    if at + 2 > here:
        return beyond(at + 2, end)
    name = (<uint32_t>data[at] << 8) | data[at + 1]
    if data[0] & 15 and name != NAME_31:
        return NOT_CONNECT                 # reserved flags are ignored in MQTT 3.1 only; a TLS record, for example, looks like this
    if name != NAME_31 and name != NAME_311:
        return UNCLEAR
    at += 2 + name + AFTER_NAME
    if at > here:
        return beyond(at, end)
    if data[at - AFTER_NAME] & ~BRIDGE_BIT == VERSION_5:
        used = varint(data + at, here - at, &properties)
        if used <= 0:
            return beyond(here + 1, end) if used == 0 else UNCLEAR
        at += used + properties
    if at + 2 > here:
        return beyond(at + 2, end)
    id_size = (<uint32_t>data[at] << 8) | data[at + 1]
    if at + 2 + id_size > here:
        return beyond(at + 2 + id_size, end)
    client_id[0] = data + at + 2
    length[0] = id_size
    return FOUND


cdef int protocol_level(const uint8_t* data, size_t size) noexcept:
    cdef uint32_t remaining
    cdef uint64_t at
    cdef int used
    if size < 2:
        return 0
    used = varint(data + 1, size - 1, &remaining)
    at = 1 + used
    if used <= 0 or at + 2 > size:
        return 0
    at += 2 + ((<uint32_t>data[at] << 8) | data[at + 1])
    return data[at] & ~BRIDGE_BIT if at < size else 0


def peek_client_id(bytes data not None, uint32_t max_packet=1 << 20):
    """Peeks from Python (slow path): the client id, None for more bytes, or the name of the outcome."""
    cdef const uint8_t* client_id = NULL
    cdef uint32_t length = 0
    cdef int outcome = peek(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), max_packet, &client_id, &length)
    if outcome == FOUND:
        return PyBytes_FromStringAndSize(<const char*>client_id, length)
    return {NEED_MORE: None, NOT_CONNECT: "not_connect", TOO_LARGE: "too_large", UNCLEAR: "unclear"}[outcome]
