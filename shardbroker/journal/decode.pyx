"""Records as tuples; see decode.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_FromUnsignedLongLong
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uint8_t, uint64_t

from shardbroker.journal.cbor cimport CBOR_NULL, MAJOR_ARRAY, MAJOR_BYTES, MAJOR_UINT
from shardbroker.journal.encode cimport KIND_MESSAGE

__all__: list[str] = []

cdef enum:
    FLAGS_ITEM = 4                         # of a message, after its kind
    MAJOR_MAP = 0xA0


cdef const uint8_t* skip_map(const uint8_t* at, const uint8_t* end) noexcept:
    cdef uint64_t pairs = 0
    at = take_head(at, end, &pairs)
    while at != NULL and pairs:
        if at >= end or at[0] & MAJOR_MASK != MAJOR_UINT:
            return NULL
        at = skip_scalar(at, end)
        if at != NULL:
            at = skip_scalar(at, end)
        pairs -= 1
    return at


cdef const uint8_t* skip_item(const uint8_t* at, const uint8_t* end) noexcept:
    return skip_map(at, end) if at < end and at[0] & MAJOR_MASK == MAJOR_MAP else skip_scalar(at, end)


cdef inline object value_of(const uint8_t* at, const uint8_t* end):
    """Returns the value at `at`, which was skipped before and so is valid."""
    cdef uint64_t value = 0
    cdef int major = at[0] & MAJOR_MASK
    if at[0] == CBOR_NULL:
        return None
    if major == MAJOR_MAP:
        return dict_of(at, end)
    at = take_head(at, end, &value)
    if major == MAJOR_BYTES:
        return PyBytes_FromStringAndSize(<const char*>at, <Py_ssize_t>value)
    return PyLong_FromUnsignedLongLong(value)


cdef dict dict_of(const uint8_t* at, const uint8_t* end):
    cdef dict found = {}
    cdef uint64_t pairs = 0, _
    cdef const uint8_t* key
    at = take_head(at, end, &pairs)
    for _ in range(pairs):
        key = at
        at = skip_scalar(key, end)
        found[value_of(key, end)] = value_of(at, end)
        at = skip_scalar(at, end)
    return found


cdef const uint8_t* decode_record(const uint8_t* at, const uint8_t* end, uint64_t sequence, const Wanted* wanted, list found) except? NULL:
    cdef uint64_t items = 0, kind = 0, flags = 0, i
    cdef const uint8_t* fields
    cdef const uint8_t* next
    if at >= end or at[0] & MAJOR_MASK != MAJOR_ARRAY:
        return NULL
    at = take_head(at, end, &items)
    # An item has at least one byte: no more memory is requested than the body justifies.
    if at == NULL or items == 0 or items > <uint64_t>(end - at) or at[0] & MAJOR_MASK != MAJOR_UINT:
        return NULL
    fields = at
    at = take_head(at, end, &kind)
    if at == NULL:
        return NULL
    for i in range(1, items):
        next = skip_item(at, end)
        if next == NULL:
            return NULL
        if i == FLAGS_ITEM and kind == KIND_MESSAGE and at[0] & MAJOR_MASK == MAJOR_UINT:
            take_head(at, end, &flags)
        at = next
    if not wanted.all_kinds and (kind >= KINDS_IN_MASK or not wanted.kinds >> kind & 1):
        return at
    if kind == KIND_MESSAGE and wanted.flags and not flags & wanted.flags:
        return at
    found.append(tuple_of(sequence, fields, items, end))
    return at


cdef tuple tuple_of(uint64_t sequence, const uint8_t* at, uint64_t items, const uint8_t* end):
    cdef tuple record = PyTuple_New(<Py_ssize_t>items + 1)
    cdef object value = PyLong_FromUnsignedLongLong(sequence)
    cdef uint64_t i
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, 0, value)
    for i in range(items):
        value = value_of(at, end)
        Py_INCREF(value)
        PyTuple_SET_ITEM(record, <Py_ssize_t>i + 1, value)
        at = skip_item(at, end)
    return record
