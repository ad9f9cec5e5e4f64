"""Reading and writing of trace contexts; see trace_context.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy, memset

from shardbroker.mqtt.spec cimport USER_PROPERTY

__all__ = ["parse_context", "renewed"]

cdef const uint8_t* PARENT = b"traceparent"
cdef const uint8_t* STATE = b"tracestate"
cdef const uint8_t* DIGITS = b"0123456789abcdef"

cdef enum:
    PARENT_NAME = 11                       # bytes of these names
    STATE_NAME = 10
    NEW_SIZE = 1 + 2 + PARENT_NAME + 2 + PARENT_SIZE


cdef inline uint32_t length_at(const uint8_t* data, uint32_t at, uint32_t size) noexcept:
    """Returns the length of the text at `at`; more than is left if there is no whole one."""
    cdef uint32_t length
    if size - at < 2:
        return size
    length = (<uint32_t>data[at] << 8) | data[at + 1]
    return length if length <= size - at - 2 else size


cdef inline uint32_t other_end(const uint8_t* data, uint32_t at, uint32_t size) noexcept:
    """Returns the end of the property at `at`, other than a User Property; size if it is unknown or incomplete."""
    cdef uint8_t identifier = data[at]
    cdef uint32_t length
    at += 1
    if identifier == 0x01:                 # Payload Format Indicator
        at += 1
    elif identifier == 0x02:               # Message Expiry Interval
        at += 4
    elif identifier == 0x23:               # Topic Alias
        at += 2
    elif identifier == 0x03 or identifier == 0x08 or identifier == 0x09:   # Content Type, Response Topic, Correlation Data
        length = length_at(data, at, size)
        at = at + 2 + length if length < size else size
    elif identifier == 0x0B:               # Subscription Identifier
        while at < size and data[at] & 0x80:
            at += 1
        at += 1
    else:
        return size
    return at if at < size else size


cdef inline int digit(uint8_t character) noexcept:
    """Returns the value of a hexadecimal digit in lower case, -1 of anything else."""
    if c"0" <= character <= c"9":
        return character - c"0"
    if c"a" <= character <= c"f":
        return character - c"a" + 10
    return -1


cdef bint read_hex(const uint8_t* text, int count, uint8_t* target) noexcept:
    """Reads `count` bytes. False: another character, or all of them are 0."""
    cdef uint8_t seen = 0
    cdef int i, high, low
    for i in range(count):
        high, low = digit(text[2 * i]), digit(text[2 * i + 1])
        if high < 0 or low < 0:
            return False
        target[i] = <uint8_t>(high << 4 | low)
        seen |= target[i]
    return seen != 0


cdef bint read_parent(const uint8_t* text, uint32_t size, TraceContext* found) noexcept:
    """Reads a traceparent (W3C Trace Context §3.2); of a later version the part that is known, as §4 says."""
    cdef int version_high, version_low, flags_high, flags_low
    if size < PARENT_SIZE or text[2] != c"-" or text[35] != c"-" or text[52] != c"-":
        return False
    version_high, version_low = digit(text[0]), digit(text[1])
    flags_high, flags_low = digit(text[53]), digit(text[54])
    if version_high < 0 or version_low < 0 or flags_high < 0 or flags_low < 0:
        return False
    if version_high == 15 and version_low == 15:
        return False
    if size > PARENT_SIZE and ((version_high == 0 and version_low == 0) or text[PARENT_SIZE] != c"-"):
        return False
    found.flags = <uint8_t>(flags_low & (SAMPLED | RANDOM_ID))
    return read_hex(text + 3, TRACE_ID_BYTES, found.trace_id) and read_hex(text + 36, SPAN_ID_BYTES, found.parent_id)


cdef Finding find_context(const uint8_t* properties, uint32_t size, TraceContext* found) noexcept:
    cdef uint32_t at = 0, name_size, value_size
    cdef const uint8_t* name
    cdef int parents = 0
    found.state_size = 0
    while at < size and at < <uint32_t>SEARCHED_MAX:
        if properties[at] != USER_PROPERTY:
            at = other_end(properties, at, size)
            continue
        at += 1
        name_size = length_at(properties, at, size)
        if name_size >= size:
            break
        name = properties + at + 2
        at += 2 + name_size
        value_size = length_at(properties, at, size)
        if value_size >= size:
            break
        at += 2
        if name_size == PARENT_NAME and memcmp(name, PARENT, PARENT_NAME) == 0:
            parents += 1
            found.at, found.size = at, value_size
        elif name_size == STATE_NAME and not found.state_size and value_size <= <uint32_t>STATE_MAX \
                and memcmp(name, STATE, STATE_NAME) == 0:
            found.state_at, found.state_size = at, value_size
        at += value_size
    if not parents:
        return CONTEXT_ABSENT
    if parents > 1 or not read_parent(properties + found.at, found.size, found):
        return CONTEXT_INVALID
    return CONTEXT_VALID


cdef uint8_t* write_hex(uint8_t* target, const uint8_t* source, int count) noexcept:
    cdef int i
    for i in range(count):
        target[2 * i] = DIGITS[source[i] >> 4]
        target[2 * i + 1] = DIGITS[source[i] & 15]
    return target + 2 * count


cdef void write_parent(uint8_t* target, const uint8_t* trace_id, const uint8_t* span_id, uint8_t flags) noexcept:
    cdef uint8_t version = 0
    target = write_hex(target, &version, 1)
    target[0] = c"-"
    target = write_hex(target + 1, trace_id, TRACE_ID_BYTES)
    target[0] = c"-"
    target = write_hex(target + 1, span_id, SPAN_ID_BYTES)
    target[0] = c"-"
    write_hex(target + 1, &flags, 1)


cdef bytes with_parent(const uint8_t* properties, uint32_t size, const TraceContext* found, const uint8_t* span_id):
    cdef uint32_t rest = found.at + found.size
    cdef bytes copy = PyBytes_FromStringAndSize(NULL, size - found.size + PARENT_SIZE)
    cdef uint8_t* target = <uint8_t*>PyBytes_AS_STRING(copy)
    memcpy(target, properties, found.at)
    target[found.at - 2] = 0
    target[found.at - 1] = PARENT_SIZE
    write_parent(target + found.at, found.trace_id, span_id, found.flags)
    memcpy(target + found.at + PARENT_SIZE, properties + rest, size - rest)
    return copy


cdef bytes with_new(const uint8_t* properties, uint32_t size, const uint8_t* trace_id, const uint8_t* span_id, uint8_t flags):
    cdef bytes copy = PyBytes_FromStringAndSize(NULL, NEW_SIZE + <Py_ssize_t>size)
    cdef uint8_t* target = <uint8_t*>PyBytes_AS_STRING(copy)
    target[0] = USER_PROPERTY
    target[1], target[2] = 0, PARENT_NAME
    memcpy(target + 3, PARENT, PARENT_NAME)
    target += 3 + PARENT_NAME
    target[0], target[1] = 0, PARENT_SIZE
    write_parent(target + 2, trace_id, span_id, flags)
    if size:
        memcpy(target + 2 + PARENT_SIZE, properties, size)
    return copy


def parse_context(bytes properties not None) -> tuple | None:
    """Returns trace id, parent id, flags and tracestate of encoded properties; None without a valid context."""
    cdef TraceContext found
    memset(&found, 0, sizeof(found))
    if find_context(<const uint8_t*>PyBytes_AS_STRING(properties), <uint32_t>len(properties), &found) != CONTEXT_VALID:
        return None
    state = properties[found.state_at:found.state_at + found.state_size] if found.state_size else b""
    return found.trace_id[:TRACE_ID_BYTES], found.parent_id[:SPAN_ID_BYTES], found.flags, state


def renewed(bytes properties not None, bytes span_id not None) -> bytes:
    """Returns properties with a valid context whose parent is another span of 8 bytes."""
    cdef TraceContext found
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(properties)
    if len(span_id) != SPAN_ID_BYTES or find_context(data, <uint32_t>len(properties), &found) != CONTEXT_VALID:
        raise ValueError("must be properties with a valid context, and a span id of 8 bytes")
    return with_parent(data, <uint32_t>len(properties), &found, <const uint8_t*>PyBytes_AS_STRING(span_id))
