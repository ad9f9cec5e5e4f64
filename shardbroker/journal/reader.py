"""Reading journals: valid blocks in order, and exactly what is damaged in between (docs/journal-format.md).

    read(directory) -> Block | Damage, Block | Damage, ...
                         |
                         +- records()

Nothing here changes a file, and a journal may be read while its worker writes to it.
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

__all__ = ["Block", "Damage", "find_end", "journal_directories", "read", "read_segment"]

_WINDOW_BYTES = 1 << 20
"""Looked through at once for the magic of a block; also how much of a tail is compared with zeros at once."""
_SECTOR_BYTES = 4096
"""What a disk that cannot read is asked for one by one."""
_GUESSES = 16
"""How often a segment may be read to find whose it is: bounds what payloads that look like blocks can cost."""


@dataclass(frozen=True, slots=True)
class Block:
    """A valid block: where it is, its header, its records."""

    path: Path
    offset: int
    header: BlockHeader
    body: bytes

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + BLOCK_HEADER_BYTES + self.header.length

    @property
    def lost(self) -> bool:
        """Whether it only says that its records are lost."""
        return self.header.codec == CODEC_LOST

    def items(self) -> list[list[Value]]:
        """The records as lists that start with the kind: the fast way. Raises SchemaError."""
        if self.lost:
            return []
        if self.header.codec != CODEC_PLAIN:
            raise SchemaError(f"codec {self.header.codec} is not known here")
        return decode_items(self.body, self.header.count)

    def records(self) -> list[Record]:
        """The records. Raises SchemaError."""
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
    """The beginning of a block at the end of an incarnation: what a kill or a power cut leaves."""
    lost_from: int | None = None
    lost_to: int | None = None
    """Sequences lost with it, from one to below the other; None: not known, at the end of the journal."""

    @property
    def error(self) -> bool:
        """False for a torn tail that is to be expected."""
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
        """What stands there; zeros where the disk cannot read it, which the checksums then find."""
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
        """The valid block at this offset; of any incarnation if None is given."""
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
        """All valid blocks that begin at `offset` or behind, wherever they begin."""
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
        """For a damaged header: whose blocks these are, by what a payload that looks like blocks cannot easily forge."""
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
            # What lies inside a valid block is a payload.
            if block.offset >= offset and 0 <= block.header.first_sequence - self.first < INCARNATION_STEP:
                votes[block.header.incarnation] += block.end - block.offset
                offset = block.end
        if votes:
            self.incarnation = votes.most_common(1)[0][0]

    def is_torn(self, offset: int, position: int) -> bool:
        """Whether from here on there is only the beginning of the next block, or nothing but zeros."""
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
    """The valid blocks of one segment, with damage between them. Raises OSError if the file cannot be read, JournalTooNew.

    `known`: incarnations of other segments, for the case that the header is damaged. What a damage lost is only known if blocks
    follow it; `read` fills in the rest.
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


def read(directory: Path, start: int = 0) -> Iterator[Block | Damage]:
    """The journal of one worker from the block on that has `start`, without repeats.

    Raises OSError if the directory or a segment cannot be read, JournalTooNew if a later version wrote it. A segment that retention
    removes meanwhile is left out.
    """
    paths = segment_paths(directory)
    while len(paths) > 1 and segment_start(paths[1]) <= start:
        del paths[0]
    known = _incarnations(paths)
    position: int | None = None
    tail: Damage | None = None
    previous_incarnation: int | None = None
    for path in paths:
        header = known.get(path)
        if position is not None:
            lost_to = _begins_after(segment_start(path), header, previous_incarnation, position)
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


def _incarnations(paths: list[Path]) -> dict[Path, SegmentHeader]:
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                found[path] = SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))
        except (ValueError, FileNotFoundError, JournalTooNew):
            continue  # `read_segment` says so
    return found


def _begins_after(first: int, header: SegmentHeader | None, incarnation: int | None, position: int) -> int:
    """The position up to which there were records before a segment; `position` if nothing is missing, or nobody can tell."""
    if header is None:
        # Only the first segment of an incarnation begins at such a number.
        return position if first % INCARNATION_STEP == 0 else max(first, position)
    if header.incarnation == incarnation:
        return max(first, position)
    return max(header.previous_end, position)


def find_end(directory: Path) -> int | None:
    """The position at which the journal ends, as far as it can be read; None if there is no segment."""
    paths = segment_paths(directory)
    if not paths:
        return None
    end = segment_start(paths[-1])
    for item in read(directory, end):
        if isinstance(item, Block):
            end = max(end, item.header.end_sequence)
    return end


def journal_directories(root: Path) -> list[Path]:
    """The journals of all workers below `<data>/journal`, by number."""
    return sorted((path for path in root.iterdir() if path.name.isdecimal() and path.is_dir()), key=lambda path: int(path.name))
