# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The records of a window's blocks, found and measured by compiled code: what `decode.py` does with numpy where this is not built.

Two passes over the records. The first finds where each begins and counts their kinds, so that the second can write the fields of
each kind side by side: they are then columns already.

    place       0 1 2 3 | 4 5 | 6 7 8 ...          records sorted by kind, in their order within it
    row         0 1 4 6 | 2 5 | 3 7 8 ...          number of the record in the window
    head, value, start                             of each field, one row of the matrix for a field

Anything that is not a record ends it with None: the slower decoder then says what is wrong and where.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

import numpy as np

__all__ = ["FIELDS_MAX", "find"]

FIELDS_MAX = 16
"""Fields of a record that are noted; more are of a later version."""
cdef enum:
    FIELDS = 16
    KINDS = 24
    MISSING = 0
    UINT = 1
    BYTES = 2
    NONE = 3
    OTHER = 4
    DEEPEST = 4


cdef struct Item:
    uint8_t major
    uint8_t info
    uint64_t value
    const uint8_t* behind


cdef inline bint take(const uint8_t* at, const uint8_t* end, Item* item) noexcept nogil:
    """The head of an item: its number, and where what follows begins. False: it is cut off, or of indefinite length."""
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
    """Behind the item, or NULL if it is none that records have."""
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
    """The records of these blocks.

    Returns kind of each record, first place of each kind, row of each place, matrices of what items are, their numbers and where
    they begin, rows with a field that only the slow reader can read with their places in the window, and the numbers of records
    that are left out because their kind is not known here. None: there is something that is no record.
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
        for left in range(counts[block]):
            begin = here
            if not take(here, end, &array) or array.major != 4 or array.value == 0 or array.value > <uint64_t>(end - here):
                return None
            if not take(array.behind, end, &item):
                return None
            here = array.behind
            for field in range(array.value):
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
