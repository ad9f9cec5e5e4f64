# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Compiled form of the numpy code in `decode.py` and `columns.py`: finds and measures records, and assembles columns.

Two passes over the records. The first finds where each begins and counts their kinds, so that the second can write the fields of
each kind contiguously, which makes them columns.

    place       0 1 2 3 | 4 5 | 6 7 8 ...          records sorted by kind, in their order within it
    row         0 1 4 6 | 2 5 | 3 7 8 ...          number of the record in the window
    head, value, start                             of each field, one row of the matrix for a field

Both return None at the first bytes that are not a record: the slower decoder then determines the fault and its place.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

import numpy as np

__all__ = ["FIELDS_MAX", "encode", "find", "gather", "hexadecimal", "spread"]

FIELDS_MAX = 16
"""Fields of a record that are stored; more belong to a later version."""
cdef enum:
    FIELDS = 16
    KINDS = 24
    MISSING = 0
    UINT = 1
    BYTES = 2
    NONE = 3
    OTHER = 4
    DEEPEST = 4

cdef extern from *:
    """
    #define SHARDBROKER_MIX 0x9E3779B97F4A7C15ULL
    """
    const uint64_t MIX "SHARDBROKER_MIX"
    const int64_t INT32_MAX

cdef struct Item:
    uint8_t major
    uint8_t info
    uint64_t value
    const uint8_t* behind


cdef inline bint take(const uint8_t* at, const uint8_t* end, Item* item) noexcept nogil:
    """Reads the head of an item: its number, and the start of its content. False: truncated, or of indefinite length."""
    cdef int width
    cdef uint64_t value = 0
    if at >= end:
        return False
    item.major = at[0] >> 5
    item.info = at[0] & 31
    at += 1
    if item.info < 24:
        item.value = item.info
        item.behind = at
        return True
    if item.info > 27:
        return False
    width = 1 << (item.info - 24)
    if end - at < width:
        return False
    while width:
        value = value << 8 | at[0]
        at += 1
        width -= 1
    item.value = value
    item.behind = at
    return True


cdef const uint8_t* skip(const uint8_t* at, const uint8_t* end, int depth) noexcept nogil:
    """Returns the position after the item, or NULL if the item has a type that records do not use."""
    cdef Item item
    cdef uint64_t left
    if depth > DEEPEST or not take(at, end, &item):
        return <const uint8_t*>0
    if item.major <= 1:
        return item.behind
    if item.major <= 3:
        return item.behind + item.value if item.value <= <uint64_t>(end - item.behind) else <const uint8_t*>0
    if item.major <= 5:
        if item.value > <uint64_t>(end - item.behind):
            return <const uint8_t*>0
        left = item.value * (item.major - 3)
        at = item.behind
        while left:
            at = skip(at, end, depth + 1)
            if at == <const uint8_t*>0:
                return at
            left -= 1
        return at
    if item.major == 7 and 20 <= item.info <= 22:
        return item.behind
    return <const uint8_t*>0


def find(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] lengths, const int64_t[::1] counts):
    """Finds the records of these blocks.

    Returns kind of each record, first place of each kind, row of each place, matrices of the items' types, numbers and starts, rows
    with a field that only the slow reader can decode with their places in the window, and the numbers of records skipped because of
    an unknown kind. None: some bytes are not a record.
    """
    cdef Py_ssize_t total = 0, block, at = 0, row = 0, place
    cdef int64_t left
    cdef const uint8_t* base = &data[0]
    cdef const uint8_t* here
    cdef const uint8_t* end
    cdef const uint8_t* begin
    cdef Item array, item
    cdef uint64_t field, fields, most = 0
    cdef uint8_t kind
    cdef bint odd
    for block in range(counts.shape[0]):
        total += counts[block]
    found_kinds, found_starts = np.empty(total, np.uint8), np.empty(total, np.int64)
    cdef uint8_t[::1] kinds = found_kinds
    cdef int64_t[::1] starts = found_starts
    cdef Py_ssize_t[KINDS + 1] firsts
    cdef Py_ssize_t[KINDS] nexts
    skipped = []
    for place in range(KINDS + 1):
        firsts[place] = 0
    for block in range(counts.shape[0]):
        here = base + offsets[block]
        end = here + lengths[block]
        for left in range(counts[block]):  # no-cython-lint: typed
            begin = here
            if not take(here, end, &array) or array.major != 4 or array.value == 0 or array.value > <uint64_t>(end - here):
                return None
            if not take(array.behind, end, &item):
                return None
            here = array.behind
            for field in range(array.value):               # no-cython-lint: typed
                here = skip(here, end, 0)
                if here == <const uint8_t*>0:
                    return None
            if item.major == 0 and 0 < item.value < KINDS and array.value > 1:
                kinds[row] = <uint8_t>item.value
                starts[row] = begin - base
                firsts[item.value + 1] += 1
                most = max(most, array.value - 1)
                row += 1
            else:
                skipped.append(at)
            at += 1
        if here != end:
            return None
    for place in range(KINDS):
        firsts[place + 1] += firsts[place]
        nexts[place] = firsts[place]
    most = min(most, <uint64_t>FIELDS)
    rows, heads = np.empty(row, np.int64), np.zeros((most, row), np.uint8)
    values, begins = np.zeros((most, row), np.uint64), np.zeros((most, row), np.int64)
    if row == 0:
        return found_kinds[:0], [0] * (KINDS + 1), rows, heads, values, begins, [], skipped
    cdef int64_t[::1] row_of = rows
    cdef uint8_t[:, ::1] head = heads
    cdef uint64_t[:, ::1] value = values
    cdef int64_t[:, ::1] start = begins
    end = base + data.shape[0]
    slow = []
    for at in range(row):
        kind = kinds[at]
        place = nexts[kind]
        nexts[kind] = place + 1
        row_of[place] = at
        here = base + starts[at]
        take(here, end, &array)
        take(array.behind, end, &item)
        here = item.behind
        fields = min(array.value - 1, <uint64_t>FIELDS)
        odd = False
        for field in range(fields):
            take(here, end, &item)
            value[field, place] = item.value
            start[field, place] = item.behind - base
            if item.major == 0:
                head[field, place] = UINT
                here = item.behind
            elif item.major == 2:
                head[field, place] = BYTES
                here = item.behind + item.value
            elif item.major == 7 and item.info == 22:
                head[field, place] = NONE
                value[field, place] = 0
                here = item.behind
            else:
                head[field, place] = OTHER
                odd = True
                here = skip(here, end, 0)
        if odd:
            slow.append((at, starts[at]))
    return found_kinds[:row], [firsts[place] for place in range(KINDS + 1)], rows, heads, values, begins, slow, skipped


# --- columns ----------------------------------------------------------------------------------------------------------------


def gather(const uint8_t[::1] data, const uint8_t[::1] heads, const uint64_t[::1] lengths, const int64_t[::1] starts):
    """Returns the byte strings of a field contiguously: offsets and bytes, as in Arrow. An item of another type is an empty string."""
    cdef Py_ssize_t row, rows = heads.shape[0]
    cdef int64_t total = 0, at = 0
    for row in range(rows):
        if heads[row] == BYTES:
            total += <int64_t>lengths[row]
    if total > INT32_MAX:
        raise OverflowError(f"{total} bytes in one column")
    found_offsets, found = np.empty(rows + 1, np.int32), np.empty(max(total, 1), np.uint8)
    cdef int32_t[::1] offsets = found_offsets
    cdef uint8_t[::1] out = found
    for row in range(rows):
        offsets[row] = <int32_t>at
        if heads[row] == BYTES:
            memcpy(&out[at], &data[starts[row]], <size_t>lengths[row])
            at += <int64_t>lengths[row]
    offsets[rows] = <int32_t>at
    return found_offsets, found[:total]


cdef inline uint64_t hashed(const uint8_t* at, uint64_t length) noexcept nogil:
    """Returns a hash of a byte string, eight bytes at a time. It does not resist long keys made to collide: `encode` is then slow,
    but correct."""
    cdef uint64_t found = length * MIX, word
    while length >= 8:
        memcpy(&word, at, 8)
        found = (found ^ word) * MIX
        found ^= found >> 29
        at += 8
        length -= 8
    word = 0
    memcpy(&word, at, <size_t>length)
    found = (found ^ word) * MIX
    return found ^ (found >> 32)


def encode(const uint8_t[::1] data, const uint8_t[::1] heads, const uint64_t[::1] lengths, const int64_t[::1] starts):
    """Returns each distinct byte string of a field once: number of each row's, and the row of each number's first occurrence. -1:
    none."""
    cdef Py_ssize_t row, rows = heads.shape[0], place, size = 1024, other
    cdef int32_t number, count = 0
    cdef uint64_t hash
    found_codes, found_firsts = np.empty(rows, np.int32), np.empty(rows, np.int64)
    cdef int32_t[::1] codes = found_codes
    cdef int64_t[::1] firsts = found_firsts
    cdef uint64_t[::1] hashes = np.empty(rows, np.uint64)
    cdef int32_t[::1] table = np.full(size, -1, np.int32)
    for row in range(rows):
        if heads[row] != BYTES:
            codes[row] = -1
            continue
        hash = hashed(&data[starts[row]], lengths[row])
        place = <Py_ssize_t>(hash & <uint64_t>(size - 1))
        while True:
            number = table[place]
            if number < 0:
                break
            other = firsts[number]
            if (
                hashes[number] == hash
                and lengths[other] == lengths[row]
                and memcmp(&data[starts[other]], &data[starts[row]], <size_t>lengths[row]) == 0
            ):
                break
            place = (place + 1) & (size - 1)
        if number < 0:
            number = count
            table[place] = number
            hashes[number] = hash
            firsts[number] = row
            count += 1
            if 2 * count > size:
                size *= 4
                table = np.full(size, -1, np.int32)
                for other in range(count):
                    place = <Py_ssize_t>(hashes[other] & <uint64_t>(size - 1))
                    while table[place] >= 0:
                        place = (place + 1) & (size - 1)
                    table[place] = <int32_t>other
        codes[row] = number
    return found_codes, found_firsts[:count]


def hexadecimal(const uint8_t[:, ::1] rows):
    """Returns rows of bytes as text, two hexadecimal digits each."""
    cdef Py_ssize_t row, at, width = rows.shape[1]
    cdef uint8_t byte
    found = np.empty((rows.shape[0], 2 * width), np.uint8)
    cdef uint8_t[:, ::1] out = found
    cdef const char* digits = b"0123456789abcdef"
    for row in range(rows.shape[0]):
        for at in range(width):
            byte = rows[row, at]
            out[row, 2 * at] = digits[byte >> 4]
            out[row, 2 * at + 1] = digits[byte & 15]
    return found


def spread(const int32_t[::1] codes, const int32_t[::1] offsets, const int32_t[::1] values):
    """Returns each row's list, out of lists `values[offsets[number]:offsets[number + 1]]`: offsets and values. -1: empty."""
    cdef Py_ssize_t row, rows = codes.shape[0]
    cdef int64_t total = 0
    cdef int32_t code, at = 0, length
    for row in range(rows):
        if codes[row] >= 0:
            total += offsets[codes[row] + 1] - offsets[codes[row]]
    if total > INT32_MAX:
        raise OverflowError(f"{total} levels in one column")
    found_offsets, found = np.empty(rows + 1, np.int32), np.empty(max(total, 1), np.int32)
    cdef int32_t[::1] out_offsets = found_offsets
    cdef int32_t[::1] out = found
    for row in range(rows):
        out_offsets[row] = at
        code = codes[row]
        if code >= 0:
            length = offsets[code + 1] - offsets[code]
            memcpy(&out[at], &values[offsets[code]], 4 * length)
            at += length
    out_offsets[rows] = at
    return found_offsets, found[:total]
