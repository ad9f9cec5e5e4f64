"""Reading journals: valid blocks in order, and the exact damage between them (docs/journal-format.md).

    read(directory) -> Block | Damage, Block | Damage, ...
                         |
                         +- records()

Reading changes no file, and a journal may be read while its worker writes to it.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shardbroker.journal.errors import JournalTooNew
from shardbroker.journal.layout import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    CODEC_LOST,
    CODEC_PLAIN,
    INCARNATION_STEP,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    SegmentHeader,
    segment_paths,
    segment_start,
)
from shardbroker.journal.schema import Record, SchemaError, Value, decode_items

__all__ = [
    "Block", "Damage", "begins_after", "damage_at", "find_end", "incarnations", "journal_directories", "read", "read_segment",
]  # fmt: skip

_WINDOW_BYTES = 1 << 20
"""Bytes searched at once for the magic of a block, and compared with zeros at once in a tail."""
_SECTOR_BYTES = 4096
"""Size of single reads from a disk that fails to read more."""
_GUESSES = 16
"""Multiple of a segment's size that may be read to find its incarnation: limits the cost of payloads that look like blocks."""


@dataclass(frozen=True, slots=True)
class Block:
    """A valid block: its position, its header, its records."""

    path: Path
    offset: int
    header: BlockHeader
    body: bytes

    @property
    def end(self) -> int:
        """Returns the offset of the first byte after the block."""
        return self.offset + BLOCK_HEADER_BYTES + self.header.length

    @property
    def lost(self) -> bool:
        """Returns whether the block has no records, but marks them as lost."""
        return self.header.codec == CODEC_LOST

    def items(self) -> list[list[Value]]:
        """Returns the records as lists that start with the kind: the fast way. Raises SchemaError."""
        if self.lost:
            return []
        if self.header.codec != CODEC_PLAIN:
            raise SchemaError(f"codec {self.header.codec} is not supported")
        return decode_items(self.body, self.header.count)

    def records(self) -> list[Record]:
        """Returns the records. Raises SchemaError."""
        first, time_us = self.header.first_sequence, self.header.time_us
        return [Record(first + number, time_us, int(item[0]), item[1:]) for number, item in enumerate(self.items())]  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no valid block, or records that are missing without a trace (`start == end`)."""

    path: Path
    start: int
    end: int
    reason: str
    torn: bool = False
    """The beginning of a block at the end of an incarnation, as left by a kill or a power cut."""
    lost_from: int | None = None
    lost_to: int | None = None
    """The sequences lost, from `lost_from` to below `lost_to`; None: not known, at the end of the journal."""

    @property
    def error(self) -> bool:
        """Returns False for a torn tail, which is to be expected."""
        return not self.torn or (self.lost_to is not None and self.lost_from != self.lost_to)

    def __str__(self) -> str:
        where = f"{self.path}: " + (f"bytes {self.start} to {self.end - 1}: " if self.end > self.start else "")
        what = ""
        if self.lost_from is not None and self.lost_to is not None and self.lost_to > self.lost_from:
            what = f"; records {self.lost_from} to {self.lost_to - 1} are lost"
        return where + self.reason + what


class _Segment:
    """One open segment file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.fd = file.fileno()
        self.size = os.fstat(self.fd).st_size
        self.first = segment_start(path)
        self.guessing = _GUESSES * self.size
        self.problem = ""
        self.header: SegmentHeader | None = None
        try:
            self.header = SegmentHeader.unpack(self.bytes_at(0, SEGMENT_HEADER_BYTES))
            if self.header.first_sequence != self.first:
                self.problem = f"the header begins with {self.header.first_sequence}, the name with {self.first}"
        except ValueError as error:
            self.problem = str(error)
        except JournalTooNew as error:
            raise JournalTooNew(f"{path}: {error}") from None
        self.incarnation = self.header.incarnation if self.header else None

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Returns bytes of the file; zeros where the disk cannot read, which the checksums then detect."""
        try:
            return os.pread(self.fd, size, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if size <= _SECTOR_BYTES:
                return bytes(max(min(size, self.size - offset), 0))
            parts = range(offset, min(offset + size, self.size), _SECTOR_BYTES)
            return b"".join(self.bytes_at(at, min(_SECTOR_BYTES, offset + size - at)) for at in parts)

    def block_at(self, offset: int, incarnation: int | None) -> Block | None:
        """Returns the valid block at this offset, or None; `incarnation` None accepts any."""
        packed = self.bytes_at(offset, BLOCK_HEADER_BYTES)
        header = BlockHeader.unpack(packed)
        if header is None or header.count == 0 or offset + BLOCK_HEADER_BYTES + header.length > self.size:
            return None
        if incarnation is None:
            self.guessing -= header.length
            if self.guessing < 0:
                return None
        elif header.incarnation != incarnation:
            return None
        body = self.bytes_at(offset + BLOCK_HEADER_BYTES, header.length)
        return Block(self.path, offset, header, body) if header.holds(packed, body) else None

    def next_block(self, offset: int, incarnation: int | None) -> Iterator[Block]:
        """Yields all valid blocks that begin at or after `offset`, at any offset."""
        while offset + BLOCK_HEADER_BYTES <= self.size:
            window = self.bytes_at(offset, _WINDOW_BYTES)
            at = window.find(BLOCK_MAGIC)
            while at >= 0:
                block = self.block_at(offset + at, incarnation)
                if block is not None:
                    yield block
                at = window.find(BLOCK_MAGIC, at + 1)
            offset += max(len(window) - len(BLOCK_MAGIC) + 1, 1)

    def recover_incarnation(self, known: Iterable[int]) -> None:
        """Finds the incarnation of a segment with a damaged header, by criteria that a payload cannot easily fake."""
        block = self.block_at(SEGMENT_HEADER_BYTES, None)
        if block is not None and block.header.first_sequence == self.first:
            self.incarnation = block.header.incarnation
            return
        for incarnation in known:
            if next(self.next_block(0, incarnation), None) is not None:
                self.incarnation = incarnation
                return
        votes: Counter[int] = Counter()
        offset = 0
        for block in self.next_block(0, None):
            # Bytes within a valid block are payload.
            if block.offset >= offset and 0 <= block.header.first_sequence - self.first < INCARNATION_STEP:
                votes[block.header.incarnation] += block.end - block.offset
                offset = block.end
        if votes:
            self.incarnation = votes.most_common(1)[0][0]

    def is_torn(self, offset: int, position: int) -> bool:
        """Returns whether only the beginning of the next block, or only zeros, follow."""
        packed = self.bytes_at(offset, BLOCK_HEADER_BYTES)
        if not packed.strip(b"\0"):
            return self.is_zero(offset)
        if len(packed) < BLOCK_HEADER_BYTES:
            return packed[:4] == BLOCK_MAGIC[: len(packed)]
        header = BlockHeader.unpack(packed)
        if header is None or header.incarnation != self.incarnation or header.first_sequence != position:
            return False
        return offset + BLOCK_HEADER_BYTES + header.length > self.size

    def is_zero(self, offset: int) -> bool:
        windows = (self.bytes_at(at, _WINDOW_BYTES) for at in range(offset, self.size, _WINDOW_BYTES))
        return not any(window.strip(b"\0") for window in windows)


def read_segment(path: Path, known: Iterable[int] = ()) -> Iterator[Block | Damage]:
    """Yields the valid blocks of one segment, with damage between them. Raises OSError if the file cannot be read, JournalTooNew.

    `known`: incarnations of other segments, in case the header is damaged. The extent of a loss is known only if blocks follow it;
    `read` adds the rest.
    """
    with path.open("rb") as file:
        segment = _Segment(path, file)
        if segment.problem:
            if segment.header is None and (segment.size <= SEGMENT_HEADER_BYTES or segment.is_zero(0)):
                yield Damage(path, 0, segment.size, segment.problem, torn=True, lost_from=segment.first)
                return
            if segment.header is None:
                segment.recover_incarnation(known)
            yield from _after_bad_header(segment)
        else:
            yield from _blocks(segment, SEGMENT_HEADER_BYTES, segment.first)


def _after_bad_header(segment: _Segment) -> Iterator[Block | Damage]:
    first = next(segment.next_block(0, segment.incarnation), None) if segment.incarnation is not None else None
    if first is None:
        yield Damage(segment.path, 0, segment.size, segment.problem, lost_from=segment.first)
        return
    if first.offset <= SEGMENT_HEADER_BYTES:
        yield Damage(segment.path, 0, first.offset, segment.problem)
    else:
        yield Damage(
            segment.path, 0, first.offset, segment.problem, lost_from=segment.first, lost_to=first.header.first_sequence
        )  # fmt: skip
    yield from _blocks(segment, first.offset, first.header.first_sequence)


def _blocks(segment: _Segment, offset: int, position: int) -> Iterator[Block | Damage]:
    assert segment.incarnation is not None
    while offset < segment.size:
        block = segment.block_at(offset, segment.incarnation)
        if block is None:
            start = offset
            block = next(segment.next_block(start + 1, segment.incarnation), None)
            if block is None:
                torn = segment.is_torn(start, position)
                reason = "a block that was not finished" if torn else "no valid block"
                yield Damage(segment.path, start, segment.size, reason, torn, lost_from=position)
                return
            lost_to = max(block.header.first_sequence, position)
            yield Damage(segment.path, start, block.offset, "no valid block", lost_from=position, lost_to=lost_to)
            position = lost_to
        elif block.header.first_sequence > position:
            yield Damage(
                segment.path, offset, offset, "a gap", lost_from=position, lost_to=block.header.first_sequence
            )  # fmt: skip
        offset = block.end
        if block.header.end_sequence > position:
            position = block.header.end_sequence
            yield block


def damage_at(path: Path, file: BinaryIO, incarnation: int, offset: int, position: int) -> Damage | None:
    """Returns what is wrong at this offset of a segment; None at a valid block, and at the end of the file.

    `lost_to` of the result is None if no valid block follows. Raises OSError, JournalTooNew.
    """
    segment = _Segment(path, file)
    segment.incarnation = incarnation
    item = next(_blocks(segment, offset, position), None)
    return item if isinstance(item, Damage) else None


def read(directory: Path, start: int = 0) -> Iterator[Block | Damage]:
    """Yields the journal of one worker from the block that contains `start`, without repeats.

    Raises OSError if the directory or a segment cannot be read, JournalTooNew if a later version wrote it. A segment that retention
    removes meanwhile is left out.
    """
    paths = segment_paths(directory)
    while len(paths) > 1 and segment_start(paths[1]) <= start:
        del paths[0]
    known = incarnations(paths)
    position: int | None = None
    tail: Damage | None = None
    previous_incarnation: int | None = None
    for path in paths:
        header = known.get(path)
        if position is not None:
            lost_to = begins_after(segment_start(path), header, previous_incarnation, position)
            if tail is not None:
                yield Damage(tail.path, tail.start, tail.end, tail.reason, tail.torn, position, lost_to)
            elif lost_to > position:
                yield Damage(path, 0, 0, "records before this segment are missing", lost_from=position, lost_to=lost_to)
        position, tail = max(position or 0, segment_start(path)), None
        try:
            for item in read_segment(path, {header.incarnation for header in known.values()}):
                if isinstance(item, Block):
                    previous_incarnation = item.header.incarnation
                    if item.header.end_sequence <= position:
                        continue  # written again after an error of the disk
                    position = item.header.end_sequence
                    if position > start:
                        yield item
                elif item.lost_from is not None and item.lost_to is None:
                    tail = item
                else:
                    yield item
        except FileNotFoundError:
            continue
        if header is not None:
            previous_incarnation = header.incarnation
    if tail is not None:
        yield tail


def incarnations(paths: list[Path]) -> dict[Path, SegmentHeader]:
    """Returns the headers of those segments whose header is intact."""
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                found[path] = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))
        except (ValueError, FileNotFoundError, JournalTooNew):
            continue  # `read_segment` reports it
    return found


def begins_after(first: int, header: SegmentHeader | None, incarnation: int | None, position: int) -> int:
    """Returns the position up to which records existed before a segment; `position` if none are missing, or this is unknown."""
    if header is None:
        # Only the first segment of an incarnation begins at such a number.
        return position if first % INCARNATION_STEP == 0 else max(first, position)
    if header.incarnation == incarnation:
        return max(first, position)
    return max(header.previous_end, position)


def find_end(directory: Path) -> int | None:
    """Returns the position at which the journal ends, as far as it can be read; None if there is no segment."""
    paths = segment_paths(directory)
    if not paths:
        return None
    end = segment_start(paths[-1])
    for item in read(directory, end):
        if isinstance(item, Block):
            end = max(end, item.header.end_sequence)
    return end


def journal_directories(root: Path) -> list[Path]:
    """Returns the journals of all workers below `<data>/journal`, by number."""
    return sorted((path for path in root.iterdir() if path.name.isdecimal() and path.is_dir()), key=lambda path: int(path.name))
