"""Encodes the CBOR subset of records (docs/journal-format.md): each function writes at `at` and returns the end.

The caller must have reserved: UINT_BYTES for a number or an array's head, UINT_BYTES + size for a byte string.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t value)
    uint32_t htobe32(uint32_t value)
    uint64_t htobe64(uint64_t value)

cdef enum:
    UINT_BYTES = 9                         # size of the longest head
    MAJOR_UINT = 0x00
    MAJOR_BYTES = 0x40
    MAJOR_ARRAY = 0x80
    CBOR_NULL = 0xF6


cdef inline uint8_t* put_head(uint8_t* at, int major, uint64_t value) noexcept:
    cdef uint16_t two
    cdef uint32_t four
    cdef uint64_t eight
    if value < 24:
        at[0] = major | <uint8_t>value
        return at + 1
    if value >> 8 == 0:
        at[0] = major | 24
        at[1] = <uint8_t>value
        return at + 2
    if value >> 16 == 0:
        at[0] = major | 25
        two = htobe16(<uint16_t>value)
        memcpy(at + 1, &two, 2)
        return at + 3
    if value >> 32 == 0:                   # a comparison with 0xFFFFFFFF would be one of Python numbers
        at[0] = major | 26
        four = htobe32(<uint32_t>value)
        memcpy(at + 1, &four, 4)
        return at + 5
    at[0] = major | 27
    eight = htobe64(value)
    memcpy(at + 1, &eight, 8)
    return at + 9


cdef inline uint8_t* put_uint(uint8_t* at, uint64_t value) noexcept:
    return put_head(at, MAJOR_UINT, value)


# The head of an array of `items` < 24.
cdef inline uint8_t* put_array(uint8_t* at, int items) noexcept:
    at[0] = MAJOR_ARRAY | items
    return at + 1


cdef inline uint8_t* put_bytes(uint8_t* at, const void* source, size_t size) noexcept:
    at = put_head(at, MAJOR_BYTES, size)
    memcpy(at, source, size)
    return at + size


# A message id: always 16 bytes, big-endian.
cdef inline uint8_t* put_id(uint8_t* at, uint64_t high, uint64_t low) noexcept:
    cdef uint64_t[2] id
    id[0] = htobe64(high)
    id[1] = htobe64(low)
    at[0] = MAJOR_BYTES | 16
    memcpy(at + 1, id, 16)
    return at + 17


cdef inline uint8_t* put_null(uint8_t* at) noexcept:
    at[0] = CBOR_NULL
    return at + 1
