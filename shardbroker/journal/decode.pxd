"""Decodes the CBOR subset of records (docs/journal-format.md) into tuples: the counterpart of encode.pxd.

    record in a block   [kind, field, ...]              ->   (sequence, kind, field, ...)
                        u, b, null, map of u to those        int, bytes, None, dict

Every byte was covered by the checksum of its block, but a head is never trusted with more bytes or items than the body has.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from shardbroker.journal.cbor cimport CBOR_NULL, MAJOR_BYTES, MAJOR_UINT

cdef extern from "<endian.h>" nogil:
    uint16_t be16toh(uint16_t value)
    uint32_t be32toh(uint32_t value)
    uint64_t be64toh(uint64_t value)

cdef enum:
    KINDS_IN_MASK = 64                     # larger kinds are decoded only if all are wanted
    MAJOR_MASK = 0xE0

cdef struct Wanted:
    uint64_t kinds                         # a bit for each kind
    bint all_kinds
    uint8_t flags                          # messages with any of these flags; 0: all messages

# Appends the record at `at` to `found`, unless it is not wanted. Returns its end; NULL if it is not a record of the subset.
cdef const uint8_t* decode_record(const uint8_t* at, const uint8_t* end, uint64_t sequence, const Wanted* wanted, list found) except? NULL
# Returns the end of an item: a number, a byte string, null or a map of them; NULL for anything else.
cdef const uint8_t* skip_item(const uint8_t* at, const uint8_t* end) noexcept

# Reads the number in the head at `at`, which is below `end`. Returns the end of the head, or NULL.
cdef inline const uint8_t* take_head(const uint8_t* at, const uint8_t* end, uint64_t* value) noexcept:
    cdef int info = at[0] & 31
    cdef uint16_t two
    cdef uint32_t four
    cdef uint64_t eight
    if info < 24:
        value[0] = info
        return at + 1
    if info > 27 or end - at <= (1 << (info - 24)):
        return NULL
    if info == 24:
        value[0] = at[1]
        return at + 2
    if info == 25:
        memcpy(&two, at + 1, 2)
        value[0] = be16toh(two)
        return at + 3
    if info == 26:
        memcpy(&four, at + 1, 4)
        value[0] = be32toh(four)
        return at + 5
    memcpy(&eight, at + 1, 8)
    value[0] = be64toh(eight)
    return at + 9

# Returns the end of a number, a byte string or null; NULL for anything else.
cdef inline const uint8_t* skip_scalar(const uint8_t* at, const uint8_t* end) noexcept:
    cdef uint64_t value = 0
    cdef int major
    if at >= end:
        return NULL
    if at[0] == CBOR_NULL:
        return at + 1
    major = at[0] & MAJOR_MASK
    if major != MAJOR_UINT and major != MAJOR_BYTES:
        return NULL
    at = take_head(at, end, &value)
    if at == NULL or major == MAJOR_UINT:
        return at
    return at + value if value <= <uint64_t>(end - at) else NULL
