"""Segments of a journal as bytes: headers, valid blocks, and damage between them (docs/journal-format.md).

This is deliberately a second reader of the format beside `shardbroker.journal`: executors have no broker installed. Tests hold both
to the same results.

    pieces of a segment                     [start, end) of the file, each read by one task
    scan(segment, start, end, lowest)  ->   Window(data, blocks) | Damage, ...

A piece owns the blocks that begin in it, and the damage after them. So it does not matter where a segment is cut.
"""

import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from pyspark_shardbroker.errors import TooNewError

try:
    from isal.isal_zlib import crc32  # six times as fast
except ImportError:
    from zlib import crc32

__all__ = [
    "BLOCK_BYTES",
    "SEGMENT_BYTES",
    "SEQUENCE",
    "TIME",
    "Blocks",
    "Damage",
    "Segment",
    "SegmentInfo",
    "Window",
    "crc32",
    "end_of",
    "find_segments",
    "first_time",
    "follow",
    "read_info",
    "scan",
    "seek",
]

SEGMENT_MAGIC = b"\x89SBJ\r\n\x1a\n"
FORMAT_VERSION = 1
SCHEMA_VERSION = 1
SEGMENT_BYTES = 64
BLOCK_MAGIC = b"\xb1\x0cSB"
BLOCK_BYTES = 48
CODEC_PLAIN, CODEC_LOST = 0, 1
INCARNATION_STEP = 1 << 32
WINDOW_BYTES = 2 << 20
"""Bytes read and decoded at once: enough for numpy to be efficient, few enough for the second-level cache."""
PADDING = 32
"""Zeros after the data, so that a decoder may read beyond the end of a record."""
SEEK_BYTES = 64 << 10
"""Precision of a search in a segment."""
PROBE_BYTES = 8 << 10
"""Bytes read at each step of a search for the start of a block."""
SEQUENCE, TIME = 4, 5
"""Indexes in a block's header, for `seek`."""
GUESSES = 16
"""Most attempts to find the writer of a segment with a damaged header by reading through it."""

_SEGMENT = struct.Struct("<8sHHHHHHIQQQQII")
_BLOCK = struct.Struct("<4sIIIQQQBBHI")
_NAME = re.compile(r"([0-9]{20})\.sbj", re.ASCII)


@dataclass(frozen=True)
class Damage:
    """Bytes that are not a valid block, or records missing without a trace (`start == end`)."""

    path: str
    start: int
    end: int
    reason: str
    lost_from: int | None = None
    lost_to: int | None = None
    torn: bool = False
    """The beginning of a block at the end of a journal: the result of a kill, or a write in progress."""

    def __str__(self) -> str:
        where = f"{self.path}: " + (f"bytes {self.start} to {self.end - 1}: " if self.end > self.start else f"byte {self.start}: ")
        lost = self.lost_from is not None and self.lost_to is not None and self.lost_to > self.lost_from
        return where + self.reason + (f"; records {self.lost_from} to {self.lost_to - 1} are lost" if lost else "")  # type: ignore[operator]


@dataclass(frozen=True)
class SegmentInfo:
    """The driver's facts about a segment; sent to the executors."""

    path: str
    first: int
    size: int
    worker: int = 0
    node: int = 0
    created_us: int = 0
    previous_end: int = 0
    incarnation: int | None = None
    problem: str = ""
    """Fault of the header; empty if it is usable."""


@dataclass
class Blocks:
    """Valid blocks in a window, a column each; offsets are those of the bodies in the window."""

    offset: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    time_us: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offset)


@dataclass
class Window:
    """A part of a segment, PADDING zeros after it, and the blocks in it to decode.

    lost: starts of blocks that only record the loss of their records, as noted by a repair. They are not reported again.
    """

    path: str
    at: int
    data: np.ndarray
    blocks: Blocks
    lost: list[int]


def find_segments(directory: Path) -> list[Path]:
    """Returns the segments in a directory, oldest first."""
    return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=lambda path: path.name)


def read_info(path: Path) -> SegmentInfo:
    """Reads a segment's header. Raises TooNewError, OSError."""
    first = int(path.name[:20])
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        packed = file.read(SEGMENT_BYTES)
    if len(packed) < SEGMENT_BYTES:
        return SegmentInfo(str(path), first, size, problem=f"the segment header is cut off after {len(packed)} bytes")
    magic, version, header_size, schema, worker, _, node, _, incarnation, start, previous, created, _, checksum = _SEGMENT.unpack(
        packed
    )
    if magic != SEGMENT_MAGIC:
        return SegmentInfo(str(path), first, size, problem="the segment header has no magic")
    if crc32(packed[:60]) != checksum:
        return SegmentInfo(str(path), first, size, problem="the segment header fails its checksum")
    if version != FORMAT_VERSION or header_size != SEGMENT_BYTES or schema > SCHEMA_VERSION:
        raise TooNewError(
            f"{path}: format {version} with records of schema {schema} is not known to this pyspark_shardbroker, which reads "
            f"format {FORMAT_VERSION} up to schema {SCHEMA_VERSION}: install a newer one"
        )
    problem = "" if start == first else f"the header begins with {start}, the name with {first}"
    return SegmentInfo(str(path), first, size, worker, node, created, previous, incarnation, problem)


class Segment:
    """An open segment file. Raises OSError; FileNotFoundError if retention has removed it."""

    def __init__(self, info: SegmentInfo, known: frozenset[int] = frozenset()) -> None:
        self.info = info
        self.fd = os.open(info.path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.fd).st_size
        self._known = known

    def __enter__(self) -> "Segment":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, offset: int, size: int) -> bytes:
        """Returns up to `size` bytes at an offset."""
        return os.pread(self.fd, size, offset)

    @cached_property
    def incarnation(self) -> int | None:
        """Returns the incarnation of the writer, derived from the blocks if the header does not have it."""
        if self.info.incarnation is not None:
            return self.info.incarnation
        first = self.block_at(SEGMENT_BYTES, None)
        if first is not None and first[4] == self.info.first:
            return int(first[6])
        for incarnation in self._known:
            if next(self.valid_from(0, incarnation), None) is not None:
                return incarnation
        votes: Counter[int] = Counter()
        behind, budget = 0, GUESSES * self.size
        for offset, header in self.valid_from(0, None):
            budget -= header[2]
            if budget < 0:
                break
            if offset >= behind and 0 <= header[4] - self.info.first < INCARNATION_STEP:
                behind = offset + BLOCK_BYTES + header[2]
                votes[header[6]] += behind - offset
        return votes.most_common(1)[0][0] if votes else None

    def block_at(self, offset: int, incarnation: int | None) -> tuple[int, ...] | None:
        """Returns the header of the valid block at this offset, or None."""
        packed = self.read(offset, BLOCK_BYTES)
        if len(packed) < BLOCK_BYTES or packed[:4] != BLOCK_MAGIC:
            return None
        header = _BLOCK.unpack(packed)
        if header[3] == 0 or offset + BLOCK_BYTES + header[2] > self.size or incarnation not in (None, header[6]):
            return None
        body = self.read(offset + BLOCK_BYTES, header[2])
        return header if crc32(body, crc32(packed[8:])) == header[1] else None

    def valid_from(self, offset: int, incarnation: int | None) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yields offset and header of all valid blocks from `offset` on, wherever they begin."""
        size = SEEK_BYTES
        while offset + BLOCK_BYTES <= self.size:
            window = self.read(offset, size)
            size = min(2 * size, WINDOW_BYTES)
            at = window.find(BLOCK_MAGIC)
            while at >= 0:
                header = self.block_at(offset + at, incarnation)
                if header is not None:
                    yield offset + at, header
                at = window.find(BLOCK_MAGIC, at + 1)
            offset += max(len(window) - 3, 1)

    def is_torn(self, offset: int, position: int) -> bool:
        """Returns whether the rest is only the beginning of the next block, or only zeros."""
        packed = self.read(offset, BLOCK_BYTES)
        if not packed.strip(b"\0"):
            return not any(self.read(at, 1 << 20).strip(b"\0") for at in range(offset, self.size, 1 << 20))
        if len(packed) < BLOCK_BYTES:
            return packed[:4] == BLOCK_MAGIC[: len(packed)]
        header = _BLOCK.unpack(packed)
        if header[0] != BLOCK_MAGIC or header[6] != self.incarnation or header[4] != position:
            return False
        return offset + BLOCK_BYTES + header[2] > self.size


def scan(
    segment: Segment, start: int, end: int, lowest: int = 0, highest: int = 1 << 64, expected_end: int = 0
) -> Iterator[Window | Damage]:
    """Yields the blocks that begin in [start, end) and have records in [lowest, highest), in windows, and the damage after them.

    expected_end: the position that the segment must reach according to the next one; 0 if unknown.
    """
    offset, position = max(start, SEGMENT_BYTES), segment.info.first
    incarnation = segment.incarnation
    if start < SEGMENT_BYTES and segment.info.problem:
        empty = segment.info.incarnation is None and (segment.size <= SEGMENT_BYTES or segment.is_torn(0, position))
        first = None if incarnation is None else next(segment.valid_from(0, incarnation), None)
        if first is None:
            missing = expected_end if expected_end > position else None
            yield Damage(segment.info.path, 0, segment.size, segment.info.problem, position, missing, empty and missing is None)
            return
        offset = first[0]
        yield Damage(segment.info.path, 0, offset, segment.info.problem, position, first[1][4])
        position = first[1][4]
    elif start > SEGMENT_BYTES:
        first = None if incarnation is None else next(segment.valid_from(start, incarnation), None)
        if first is None:
            return
        offset, position = first[0], first[1][4]
    if incarnation is None:
        return
    needs = 0
    while offset < segment.size:
        if offset >= end:
            # No further block of this piece. Without a block at this offset, the reader of the next piece finds none either: the
            # damage belongs to this piece.
            if segment.block_at(offset, incarnation) is not None:
                return
            found = _Found(_NO_BLOCK)
        else:
            raw = segment.read(offset, max(min(WINDOW_BYTES, end - offset), needs))
            found = _take(raw, incarnation, end - offset, position, lowest, highest)
            if len(found.blocks) or found.lost:
                yield Window(segment.info.path, offset, np.frombuffer(raw + bytes(PADDING), np.uint8), found.blocks, found.lost)
            offset, position = offset + found.behind, max(position, found.position)
        needs = 0
        if found.why == _DONE:
            return
        if found.why == _GAP:
            yield Damage(segment.info.path, offset, offset, "a gap", position, found.needs)
            position = found.needs
        elif found.why == _NEEDS and offset + found.needs <= segment.size:
            needs = found.needs
        elif found.why != _LIMIT:
            following = next(segment.valid_from(offset + 1, incarnation), None)
            if following is None:
                torn = segment.is_torn(offset, position)
                reason = "a block that was not finished" if torn else "no valid block"
                missing = expected_end if expected_end > position else None
                yield Damage(segment.info.path, offset, segment.size, reason, position, missing, torn and missing is None)
                return
            lost_to = max(following[1][4], position)
            yield Damage(segment.info.path, offset, following[0], "no valid block", position, lost_to)
            offset, position = following[0], lost_to
    if position < min(expected_end, highest):
        yield Damage(segment.info.path, offset, offset, "the segment ends too early", position, expected_end)


def seek(segment: Segment, field: int, value: int, start: int = SEGMENT_BYTES) -> tuple[int, int]:
    """Returns two offsets, from `start` on: all blocks that begin below the first have less than `value` in this field of their
    header (SEQUENCE or TIME), all from the second on have not. They are at most SEEK_BYTES, or a block, apart."""
    low, high = start, segment.size
    while high - low > SEEK_BYTES:
        middle = (low + high) // 2
        found = _next_header(segment, middle, high)
        if found is None or found[1][field] >= value:
            high = middle
        elif found[0] == low:
            break  # one block fills the range
        else:
            low = found[0]
    return low, high


def _next_header(segment: Segment, offset: int, end: int) -> tuple[int, tuple[int, ...]] | None:
    """Returns the next header of the segment's incarnation, without a check of its checksum."""
    while offset < end:
        window = segment.read(offset, PROBE_BYTES)
        at = window.find(BLOCK_MAGIC)
        while at >= 0:
            packed = window[at : at + BLOCK_BYTES]
            if len(packed) < BLOCK_BYTES:
                packed = segment.read(offset + at, BLOCK_BYTES)
            if len(packed) == BLOCK_BYTES:
                header = _BLOCK.unpack(packed)
                if header[6] == segment.incarnation:
                    return offset + at, header
            at = window.find(BLOCK_MAGIC, at + 1)
        offset += max(len(window) - 3, 1)
    return None


def first_time(info: SegmentInfo) -> int | None:
    """Returns the time of the first block of a segment, for the driver; None without a readable one."""
    with Segment(info) as segment:
        packed = segment.read(SEGMENT_BYTES, BLOCK_BYTES)
    if len(packed) < BLOCK_BYTES or packed[:4] != BLOCK_MAGIC:
        return None
    header = _BLOCK.unpack(packed)
    return header[TIME] if header[6] == info.incarnation else None


_LIMIT, _NEEDS, _NO_BLOCK, _GAP, _DONE = range(5)


@dataclass
class _Found:
    """Result of `_take`, and the reason for its end."""

    why: int
    behind: int = 0
    """Bytes consumed."""
    position: int = 0
    needs: int = 0
    """_NEEDS: size of the next block in bytes. _GAP: its first sequence."""
    blocks: Blocks = field(default_factory=Blocks)
    lost: list[int] = field(default_factory=list)


def _take(raw: bytes, incarnation: int, limit: int, position: int, lowest: int, highest: int) -> _Found:
    """Returns the valid blocks at the start of `raw` that begin below `limit`."""
    blocks, lost, view, here, size, unpack = Blocks(), list[int](), memoryview(raw), 0, len(raw), _BLOCK.unpack_from
    why, needs, limit = _LIMIT, 0, min(limit, size)
    while here < limit:
        if here + BLOCK_BYTES > size:
            why, needs = _NEEDS, BLOCK_BYTES
            break
        magic, checksum, length, count, first, time_us, owner, codec, _, _, _ = unpack(raw, here)
        behind = here + BLOCK_BYTES + length
        if magic != BLOCK_MAGIC or owner != incarnation or count == 0:
            why = _NO_BLOCK
            break
        if behind > size:
            why, needs = _NEEDS, behind - here
            break
        if crc32(view[here + 8 : behind]) != checksum:
            why = _NO_BLOCK
            break
        if first > position:
            why, needs = _GAP, first
            break
        if first >= highest:
            why = _DONE
            break
        if codec not in (CODEC_PLAIN, CODEC_LOST):
            raise TooNewError(f"block with records {first} to {first + count - 1}: codec {codec} is not known here")
        if first + count > position:
            if codec == CODEC_LOST:
                lost.append(first)
            elif first + count > lowest:
                blocks.offset.append(here + BLOCK_BYTES)
                blocks.length.append(length)
                blocks.count.append(count)
                blocks.first.append(first)
                blocks.time_us.append(time_us)
            position = first + count
        here = behind
    return _Found(why, here, position, needs, blocks, lost)


def end_of(info: SegmentInfo, offset: int = SEGMENT_BYTES, position: int | None = None) -> tuple[int, int]:
    """Returns the end of the whole blocks of a segment, followed from a known place: offset and position.

    It follows the headers and checks the last block, which may be half written; damage in between is left to readers.
    """
    position = info.first if position is None else position
    with Segment(info) as segment:
        if segment.incarnation is None:
            return offset, position
        last = offset, position
        while True:
            raw, here = segment.read(offset, WINDOW_BYTES), 0
            while here + BLOCK_BYTES <= len(raw):
                header = _BLOCK.unpack_from(raw, here)
                behind = here + BLOCK_BYTES + header[2]
                if header[0] != BLOCK_MAGIC or header[6] != segment.incarnation or offset + behind > segment.size:
                    break
                last = offset + here, position
                position = max(position, header[4] + header[3])
                here = behind
            offset += here
            if here and offset + BLOCK_BYTES <= segment.size:
                continue
            if last[0] < offset and segment.block_at(last[0], segment.incarnation) is None:
                offset, position = last
            if offset >= segment.size:
                return offset, position
            following = next(segment.valid_from(offset + 1, segment.incarnation), None)
            if following is None:
                return offset, position
            offset, position = following[0], following[1][4]
            last = offset, position


def follow(segment: Segment, offset: int) -> Iterator[tuple[int, int, int]]:
    """Yields first sequence, count and size of each block from a known offset on, according to the headers; damage is skipped."""
    while offset + BLOCK_BYTES <= segment.size:
        raw, here = segment.read(offset, WINDOW_BYTES), 0
        while here + BLOCK_BYTES <= len(raw):
            header = _BLOCK.unpack_from(raw, here)
            if header[0] != BLOCK_MAGIC or header[6] != segment.incarnation:
                break
            size = BLOCK_BYTES + header[2]
            if offset + here + size > segment.size:
                return
            yield header[4], header[3], size
            here += size
        offset += here
        if here == 0:
            found = None if segment.incarnation is None else next(segment.valid_from(offset + 1, segment.incarnation), None)
            if found is None:
                return
            offset = found[0]
