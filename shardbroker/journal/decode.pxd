"""Decodes the CBOR subset of records (docs/journal-format.md) into tuples: the counterpart of encode.pxd.

    record in a block   [kind, field, ...]              ->   (sequence, kind, field, ...)
                        u, b, null, map of u to those        int, bytes, None, dict

Every byte was covered by the checksum of its block, but a head is never trusted with more bytes or items than the body has.
"""
from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    KINDS_IN_MASK = 64                     # larger kinds are decoded only if all are wanted

cdef struct Wanted:
    uint64_t kinds                         # a bit for each kind
    bint all_kinds
    uint8_t flags                          # messages with any of these flags; 0: all messages

# Appends the record at `at` to `found`, unless it is not wanted. Returns its end; NULL if it is not a record of the subset.
cdef const uint8_t* decode_record(const uint8_t* at, const uint8_t* end, uint64_t sequence, const Wanted* wanted, list found) except? NULL
