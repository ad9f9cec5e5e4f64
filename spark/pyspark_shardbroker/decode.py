"""CBOR records to Arrow columns, all records of a window at once.

Python's CBOR decoders make objects, which limit their speed. This module makes no object per record. `_compiled`, if it was built,
finds and measures the records; without a compiler numpy does the same in some ten times the time:

    1. candidates     every place in the window that looks like the start of a record: an array's head and a kind
    2. lockstep       field by field, all candidates of a shape at a time: type of the item, its number, start of the next one
    3. chain          from the start of each block, each record gives the place of the next: false candidates are left out
    4. columns        only the wanted ones; Python never touches byte strings: Arrow gathers them out of the window

What the lockstep cannot decode (maps, arrays of 16 items and more), a slow reader in plain Python decodes record by record.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_shardbroker.records import FIELDS, NAMING
from pyspark_shardbroker.segments import PADDING, Blocks, Window
from pyspark_shardbroker.slow_cbor import BYTES, NULL, OTHER, UINT, BadRecord, SlowRecord, read_record

try:
    import pyspark_shardbroker._compiled as _compiled
except ImportError:
    _compiled = None

__all__ = ["BadBlock", "Records", "as_text", "binary_array", "decode_window"]

_NOTHING, _SLOW = -1, -2
"""Instead of the next candidate: the following bytes are not one; only the slow reader can determine the next."""
_HEADS = np.full(256, OTHER, np.uint8)
_HEADS[0x00:0x1C] = UINT
_HEADS[0x40:0x5C] = BYTES
_HEADS[0xF6] = NULL
"""First byte of an item -> its type."""
_WIDTHS = np.zeros(256, np.uint8)
for _major in (0x00, 0x40):
    _WIDTHS[_major + 24 : _major + 28] = (1, 2, 4, 8)
"""First byte of an item -> bytes of its number after it; 0: the number is in the first byte."""
_SHIFTS = (64 - 8 * _WIDTHS.astype(np.uint64)) & np.uint64(63)
_ID_HEAD, _ID_BYTES = 0x50, 17
"""A message id: first byte, and size with that byte."""
_FIRST_HEADS = np.zeros((25, 256), bool)
for _kind in range(1, 24):
    _FIRST_HEADS[_kind, 0x00:0x1C] = True
    _FIRST_HEADS[_kind, 0x40:0x5C] = True
_FIRST_HEADS[1] = False
_FIRST_HEADS[1, _ID_HEAD] = True
"""Kind, first byte of the first field -> whether a record can begin like this. Excludes most false candidates."""


@dataclass
class _Field:
    """A field of a group of records: types of the items (one for all, or an array), numbers or lengths, starts of the bytes."""

    head: Any
    value: np.ndarray
    start: np.ndarray


@dataclass
class _Group:
    """Candidates of one kind with the same number of fields. rows: their places among the records; -1: not a record."""

    kind: int
    candidates: np.ndarray
    fields: dict[str, _Field]
    rows: np.ndarray


class BadBlock(Exception):
    """A block with unreadable records and a correct checksum: its number in the window, and the fault."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


class Records:
    """The records of a window, in order."""

    def __init__(
        self, data: np.ndarray, kinds: np.ndarray, sequence: np.ndarray, time_us: np.ndarray, groups: list[_Group],
        slow: dict[int, SlowRecord],
    ) -> None:  # fmt: skip
        self.data = data
        self.kinds = kinds
        self.sequence = sequence
        self.time_us = time_us
        self._groups = groups
        self._slow = slow
        self._cache: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._made: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def keep(self, mask: np.ndarray) -> "Records":
        """Returns the records for which the mask is true."""
        if mask.all():
            return self
        at = np.flatnonzero(mask)
        moved = np.full(len(self) + 1, -1, np.int64)  # the last entry is for rows that are already -1
        moved[at] = np.arange(len(at))
        groups = [_Group(group.kind, group.candidates, group.fields, moved[group.rows]) for group in self._groups]
        slow = {int(moved[row]): record for row, record in self._slow.items() if moved[row] >= 0}
        return Records(self.data, self.kinds[at], self.sequence[at], self.time_us[at], groups, slow)

    def field(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns for each record the type of the item in this field, its number or length, and the start of its bytes."""
        if name not in self._cache:
            self._cache[name] = self._field(name)
        return self._cache[name]

    def _field(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        head = np.zeros(len(self), np.uint8)
        value = np.zeros(len(self), np.uint64)
        start = np.zeros(len(self), np.int64)
        for group in self._groups:
            part = group.fields.get(name)
            if part is None:
                continue
            if len(group.rows) == len(self) and group.rows[0] == 0 and group.rows[-1] == len(self) - 1 and not self._slow:
                head[:] = part.head  # the group covers all records
                return head, part.value, part.start
            there = group.rows >= 0
            rows = group.rows[there]
            head[rows] = part.head[there] if isinstance(part.head, np.ndarray) else part.head
            value[rows], start[rows] = part.value[there], part.start[there]
        for row, record in self._slow.items():
            names = FIELDS.get(int(self.kinds[row]), ())
            if name in names and names.index(name) < len(record.items):
                head[row], value[row], start[row] = record.items[names.index(name)]
        return head, value, start

    def has(self, name: str) -> bool:
        """Returns whether any of these records may have this field."""
        return any(name in group.fields for group in self._groups) or bool(self._slow)

    @property
    def maps(self) -> dict[int, dict[int, Any]]:
        """Returns row -> field `details`, for rows that have one."""
        return {row: record.details for row, record in self._slow.items() if record.details}

    # --- plain columns ------------------------------------------------------------------------------------------------------

    def numbers(self, name: str, type: pa.DataType) -> pa.Array:
        """Returns a field of unsigned numbers; null where the field is null or missing."""
        if not self.has(name):
            return pa.nulls(len(self), type)
        head, value, _ = self.field(name)
        return _with_nulls(value.astype(type.to_pandas_dtype()), head == UINT, type)

    def once(self, name: str, make: Callable[["Records"], Any]) -> Any:
        """Returns a value that several columns share, made at the first call."""
        if name not in self._made:
            self._made[name] = make(self)
        return self._made[name]

    def binary(self, name: str) -> pa.Array:
        """Returns a field of bytes."""

        def gather(_: Records) -> pa.Array:
            if not self.has(name):
                return pa.nulls(len(self), pa.binary())
            head, value, start = self.field(name)
            if not (head == BYTES).any():
                return pa.nulls(len(self), pa.binary())
            if _compiled is None:
                return self._gather(start, value.astype(np.int64), head == BYTES)
            return binary_array(head == BYTES, *_compiled.gather(self.data, head, value, start))

        return self.once(f"binary {name}", gather)

    def encoded(self, name: str) -> pa.DictionaryArray:
        """Returns a field of bytes as a dictionary of distinct values."""

        def encode(_: Records) -> pa.DictionaryArray:
            if _compiled is None or not self.has(name):
                return self.binary(name).dictionary_encode()
            head, value, start = self.field(name)
            codes, firsts = _compiled.encode(self.data, head, value, start)
            offsets, text = _compiled.gather(self.data, head[firsts], value[firsts], start[firsts])
            different = binary_array(np.ones(len(firsts), bool), offsets, text)
            return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), different)

        return self.once(f"encoded {name}", encode)

    def _gather(self, start: np.ndarray, length: np.ndarray, valid: np.ndarray) -> pa.Array:
        """Gathers byte strings out of the window, which Arrow treats as an array of strings: wanted ones and gaps in turn."""
        count = len(start)
        # A row without a value is an empty string at the end of the previous one.
        behind = np.maximum.accumulate(np.where(valid, start + length, 0))
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[0:-1:2] = np.where(valid, start, behind)
        offsets[1::2] = behind
        offsets[-1] = behind[-1]
        strings = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)])
        wanted = pa.array(np.arange(0, 2 * count, 2, dtype=np.int64), mask=None if valid.all() else ~valid)
        return strings.take(wanted)

    def text(self, name: str) -> pa.Array:
        """Returns a field of UTF-8."""
        return self.once(f"text {name}", lambda records: as_text(records.binary(name)))

    def flag(self, bit: int) -> pa.Array:
        """Returns a bit of field `flags`."""
        if not self.has("flags"):
            return pa.nulls(len(self), pa.bool_())
        head, value, _ = self.field("flags")
        return pa.array((value & np.uint64(bit)) != 0, mask=head != UINT)

    def sessions(self) -> dict[int, bytes]:
        """Returns session number -> client id, from the records that have both."""
        naming = np.isin(self.kinds, NAMING)
        if not naming.any():
            return {}
        number = self.field("session")[1][naming].tolist()
        _, length, start = (part[naming].tolist() for part in self.field("client_id"))
        return {session: self.data[at : at + size].tobytes() for session, at, size in zip(number, start, length, strict=True)}


def _with_nulls(values: np.ndarray, valid: np.ndarray, type: pa.DataType) -> pa.Array:
    return pa.array(values, type, mask=None if valid.all() else ~valid)


def binary_array(valid: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    """Returns an Arrow array of contiguous strings."""
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(valid), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def as_text(binary: pa.Array) -> pa.Array:
    """Returns bytes as UTF-8 text."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        # The broker rejects invalid UTF-8, but journals may be older than that check.
        return pa.array([None if one is None else one.decode(errors="replace") for one in binary.to_pylist()], pa.string())


# --- finding records --------------------------------------------------------------------------------------------------------------


def decode_window(window: Window) -> Records:
    """Returns all records of the window's blocks. Raises BadBlock."""
    data, blocks = window.data, window.blocks
    counts = np.array(blocks.count, np.int64)
    if _compiled is not None:
        found = _compiled.find(data, np.array(blocks.offset, np.int64), np.array(blocks.length, np.int64), counts)
        if found is not None:  # otherwise the slower decoder determines the fault
            return _of_columns(data, blocks, counts, *found)
    candidates, kinds = _find(data)
    groups, ends = _measure(data, candidates, kinds)
    chain, skipped, slow = _follow(data, blocks, counts, candidates, ends)
    sequence, time_us = _numbered(blocks, counts, skipped)
    if chain is None:
        for group in groups:
            group.rows = group.candidates
        return Records(data, kinds, sequence, time_us, groups, {})
    at = np.array(chain, np.int64)
    rows = np.full(len(candidates), -1, np.int64)
    rows[at] = np.arange(len(at))
    for group in groups:
        group.rows = rows[group.candidates]
    return Records(data, kinds[at], sequence, time_us, groups, {int(rows[one]): record for one, record in slow.items()})


def _numbered(blocks: Blocks, counts: np.ndarray, skipped: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns sequence and time of each record that is not skipped."""
    shift = np.array(blocks.first, np.int64) - (np.cumsum(counts) - counts)
    sequence = np.repeat(shift, counts) + np.arange(int(counts.sum()))
    time_us = np.repeat(np.array(blocks.time_us, np.int64), counts)
    return (np.delete(sequence, skipped), np.delete(time_us, skipped)) if skipped else (sequence, time_us)


def _of_columns(
    data: np.ndarray, blocks: Blocks, counts: np.ndarray, kinds: np.ndarray, firsts: list[int], rows: np.ndarray,
    heads: np.ndarray, values: np.ndarray, starts: np.ndarray, slow: list[tuple[int, int]], skipped: list[int],
) -> Records:  # fmt: skip
    """Builds Records from the result of the compiled decoder."""
    groups = []
    for kind, names in FIELDS.items():
        mine = slice(firsts[kind], firsts[kind + 1])
        if mine.start < mine.stop:
            # A kind has fewer fields than the longest one of the window; a later version's may have more.
            parts = zip(names, heads[:, mine], values[:, mine], starts[:, mine], strict=False)
            fields = {name: _Field(head, value, start) for name, head, value, start in parts}
            groups.append(_Group(kind, rows[mine], fields, rows[mine]))
    sequence, time_us = _numbered(blocks, counts, skipped)
    read = {row: read_record(data, at, len(data)) for row, at in slow}
    return Records(data, kinds, sequence, time_us, groups, read)


def _find(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places where records may begin, and their kinds."""
    heads = data[: len(data) - PADDING]
    candidates = np.flatnonzero((heads - np.uint8(0x82)) < 14)  # arrays of 2 to 15 items
    kinds = data[candidates + 1]
    likely = _FIRST_HEADS[np.minimum(kinds, 0x18), data[candidates + 2]]
    return (candidates, kinds) if likely.all() else (candidates[likely], kinds[likely])


def _measure(data: np.ndarray, candidates: np.ndarray, kinds: np.ndarray) -> tuple[list[_Group], np.ndarray]:
    """Returns the fields of all candidates, group by group, and the end of each; _SLOW where only the slow reader can find it."""
    ends = np.full(len(candidates), _SLOW, np.int64)
    groups = []
    shapes = kinds.astype(np.int64) << 4 | data[candidates] & 15
    for shape in np.unique(shapes).tolist():
        members = np.flatnonzero(shapes == shape)
        while len(members):
            group = _Group(shape >> 4, members, {}, members)
            end, good = _lockstep(data, group, candidates[members], (shape & 15) - 1)
            if good is None:
                ends[members] = end
                groups.append(group)
                break
            members = members[good]  # again, without those that it cannot read
    return groups, ends


def _lockstep(data: np.ndarray, group: _Group, at: Any, fields: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Walks the fields of the group's candidates. Returns their ends, or a mask of the readable ones if not all are."""
    size = len(data) - PADDING
    numbers = np.ndarray((len(data) - 8,), ">u8", data.data, 0, (1,))
    names = FIELDS.get(group.kind, ())
    at = at + 2
    for place in range(fields):
        first = data[at]
        low, high = int(first.min()), int(first.max())
        head: Any = UINT if high < 0x1C else BYTES if low >= 0x40 and high < 0x5C else _HEADS[first]
        if isinstance(head, np.ndarray) and (head == OTHER).any():
            return at, head != OTHER
        widths: Any
        if low == high or (low >> 5 == high >> 5 and (high & 0x1F) < 24):
            widths = int(_WIDTHS[high])
        else:
            widths = _WIDTHS[first]
        if isinstance(widths, int) and widths == 0:
            value = first & np.uint8(0x1F)
        else:
            value = numbers[at + 1].astype(np.uint64) >> _SHIFTS[first]
            if not isinstance(widths, int):
                value = np.where(widths == 0, first & np.uint8(0x1F), value)
        start = at + (1 + widths)
        if isinstance(head, np.ndarray):
            value = np.where(head == NULL, 0, value)
            taken = np.where(head == BYTES, value, 0)
        else:
            taken = value if head == BYTES else None  # type: ignore[assignment]
        at = start
        if taken is not None:
            if int(taken.max()) > size:
                return at, taken <= size
            at = start + taken.astype(np.int64)
            if int(at.max()) > size:
                return at, at <= size
        if place < len(names):
            group.fields[names[place]] = _Field(head, value, start)
    return at, None


def _follow(
    data: np.ndarray, blocks: Blocks, counts: np.ndarray, candidates: np.ndarray, ends: np.ndarray
) -> tuple[list[int] | None, list[int], dict[int, SlowRecord]]:
    """Returns the candidates that are records, in order (None: all of them), the places of records skipped because of an unknown
    kind, and the results of the slow reader, by candidate."""
    offsets = np.array(blocks.offset, np.int64)
    behind = offsets + np.array(blocks.length, np.int64)
    firsts = np.searchsorted(candidates, offsets)
    if len(candidates) == int(counts.sum()) and (np.append(firsts[1:], len(candidates)) - firsts == counts).all():
        wanted = np.append(candidates[1:], 0)
        wanted[firsts + counts - 1] = behind
        if (wanted == ends).all() and (candidates[firsts] == offsets).all():
            return None, [], {}
    following = np.searchsorted(candidates, ends)
    following[following == len(candidates)] = 0
    if len(candidates):
        following[candidates[following] != ends] = _NOTHING
    following[ends == _SLOW] = _SLOW
    return _walk(data, blocks, behind.tolist(), candidates.tolist(), firsts.tolist(), following.tolist(), ends.tolist())


def _walk(
    data: np.ndarray, blocks: Blocks, behind: list[int], places: list[int], firsts: list[int], following: list[int], ends: list[int]
) -> tuple[list[int], list[int], dict[int, SlowRecord]]:
    """Returns the same as _follow, record by record."""
    chain: list[int] = []
    skipped: list[int] = []
    slow: dict[int, SlowRecord] = {}
    add = chain.append
    for number, (offset, end, count, here) in enumerate(zip(blocks.offset, behind, blocks.count, firsts, strict=True)):
        mark = len(chain)
        if here < len(places) and places[here] == offset:
            for _ in range(count):
                if here < 0:
                    break
                add(here)
                here = following[here]
            else:
                if ends[chain[-1]] == end:
                    continue
        del chain[mark:]
        position = offset
        for _ in range(count):
            here = bisect_left(places, position)
            known = here < len(places) and places[here] == position
            if known and ends[here] != _SLOW:
                add(here)
                position = ends[here]
                continue
            try:
                record = read_record(data, position, end)
            except BadRecord as error:
                raise BadBlock(number, str(error)) from None
            if known:
                slow[here] = record
                add(here)
            else:
                skipped.append(len(chain) + len(skipped))
            position = record.end
        if position != end:
            raise BadBlock(number, f"its {count} records end at byte {position - offset} of {end - offset}")
    return chain, skipped, slow
