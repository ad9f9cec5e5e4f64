"""Writing the CBOR subset of records (docs/journal-format.md): each function writes at `at` and returns where it ended.

The caller has made room: UINT_BYTES for a number or an array's head, UINT_BYTES + size for a byte string.
"""
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    UINT_BYTES = 9                         # longest head
    MAJOR_UINT = 0x00
    MAJOR_BYTES = 0x40
    MAJOR_ARRAY = 0x80
    CBOR_NULL = 0xF6


cdef inline uint8_t* put_head(uint8_t* at, int major, uint64_t value) noexcept:
    cdef int i
    if value < 24:
        at[0] = major | <uint8_t>value
        return at + 1
    if value <= 0xFF:
        at[0] = major | 24
        at[1] = <uint8_t>value
        return at + 2
    if value <= 0xFFFF:
        at[0] = major | 25
        at[1] = <uint8_t>(value >> 8)
        at[2] = <uint8_t>value
        return at + 3
    if value <= 0xFFFFFFFF:
        at[0] = major | 26
        for i in range(4):
            at[1 + i] = <uint8_t>(value >> (24 - 8 * i))
        return at + 5
    at[0] = major | 27
    for i in range(8):
        at[1 + i] = <uint8_t>(value >> (56 - 8 * i))
    return at + 9


cdef inline uint8_t* put_uint(uint8_t* at, uint64_t value) noexcept:
    return put_head(at, MAJOR_UINT, value)


# An array of `items` < 24.
cdef inline uint8_t* put_array(uint8_t* at, int items) noexcept:
    at[0] = MAJOR_ARRAY | items
    return at + 1


cdef inline uint8_t* put_bytes(uint8_t* at, const void* source, size_t size) noexcept:
    at = put_head(at, MAJOR_BYTES, size)
    memcpy(at, source, size)
    return at + size


# A message id: always 16 bytes, big-endian.
cdef inline uint8_t* put_id(uint8_t* at, uint64_t high, uint64_t low) noexcept:
    cdef int i
    at[0] = MAJOR_BYTES | 16
    for i in range(8):
        at[1 + i] = <uint8_t>(high >> (56 - 8 * i))
        at[9 + i] = <uint8_t>(low >> (56 - 8 * i))
    return at + 17


cdef inline uint8_t* put_null(uint8_t* at) noexcept:
    at[0] = CBOR_NULL
    return at + 1
