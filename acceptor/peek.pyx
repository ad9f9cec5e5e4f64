"""Reading just enough of a CONNECT to know whose session it is about: the client id. No judgement, no socket.

The worker parses the whole CONNECT and refuses what is to be refused; what cannot be understood here goes to some worker for
that. Only two things end here: bytes that do not begin a CONNECT, and a length beyond the limit.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from shardbroker.mqtt.codec cimport FixedHeader, read_fixed_header, read_varint

from shardbroker.mqtt.errors import MqttError

__all__ = ["peek_client_id"]

cdef enum:
    CONNECT_FIRST = 0x10
    VERSION_5 = 5


cdef int peek(const uint8_t* data, size_t size, uint32_t max_packet, const uint8_t** client_id, uint32_t* length):
    cdef FixedHeader header
    cdef uint32_t at, name, skip, end
    if size == 0:
        return NEED_MORE
    if data[0] != CONNECT_FIRST:
        return NOT_CONNECT
    try:
        if not read_fixed_header(data, size, &header):
            return NEED_MORE
        if <uint64_t>header.size + header.remaining > max_packet:
            return TOO_LARGE
        end = header.size + header.remaining
        at = header.size
        if at + 2 > size:
            return NEED_MORE if at + 2 <= end else UNCLEAR
        name = (<uint32_t>data[at] << 8) | data[at + 1]
        if name != 4 and name != 6:
            return UNCLEAR
        at += 2 + name + 4                 # name, level, flags, keepalive
        if at > end:
            return UNCLEAR
        if at > size:
            return NEED_MORE
        if data[at - 4] & 0x7F == VERSION_5:
            skip = 0
            while at + skip < size and data[at + skip] & 0x80 and skip < 4:
                skip += 1
            if at + skip >= size:
                return NEED_MORE if at + skip < end else UNCLEAR
            at += read_varint(data + at, <uint32_t>(size - at), &skip)
            if skip > end - at:
                return UNCLEAR
            at += skip
        if at + 2 > end:
            return UNCLEAR
        if at + 2 > size:
            return NEED_MORE
        length[0] = (<uint32_t>data[at] << 8) | data[at + 1]
        if at + 2 + length[0] > end:
            return UNCLEAR
        if at + 2 + length[0] > size:
            return NEED_MORE
        client_id[0] = data + at + 2
        return FOUND
    except MqttError:
        return UNCLEAR


def peek_client_id(bytes data not None, uint32_t max_packet=1 << 20):
    """Slow-path form: the client id, None for more, or the name of the outcome."""
    cdef const uint8_t* client_id
    cdef uint32_t length
    cdef int outcome = peek(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), max_packet, &client_id, &length)
    if outcome == FOUND:
        return PyBytes_FromStringAndSize(<const char*>client_id, length)
    return {NEED_MORE: None, NOT_CONNECT: "not_connect", TOO_LARGE: "too_large", UNCLEAR: "unclear"}[outcome]
