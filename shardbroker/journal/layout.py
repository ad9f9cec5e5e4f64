"""Headers of segments and blocks, and file names, for code that is not compiled; docs/journal-format.md has drawings.

The writer has the same layout in C (`writer.pxd`); a test compares the two.
"""

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardbroker.journal.checksum import crc32
from shardbroker.journal.errors import JournalTooNew
from shardbroker.journal.schema import SCHEMA_VERSION

__all__ = [
    "BLOCK_HEADER_BYTES",
    "BLOCK_MAGIC",
    "CODEC_LOST",
    "CODEC_PLAIN",
    "FORMAT_VERSION",
    "INCARNATION_STEP",
    "MAX_BODY_BYTES",
    "SEGMENT_HEADER_BYTES",
    "SEGMENT_MAGIC",
    "BlockHeader",
    "SegmentHeader",
    "all_segment_paths",
    "journals_below",
    "next_incarnation_start",
    "retired_directories",
    "segment_name",
    "segment_paths",
    "segment_start",
]

FORMAT_VERSION = 1
SEGMENT_MAGIC = b"\x89SBJ\r\n\x1a\n"
"""Similar to PNG's: it detects a file that was copied as text."""
SEGMENT_HEADER_BYTES = 64
BLOCK_MAGIC = b"\xb1\x0cSB"
BLOCK_HEADER_BYTES = 48
MAX_BODY_BYTES = 0xFFFF_FFFF
CODEC_PLAIN = 0
CODEC_LOST = 1
"""No body: the records are lost for good, as established by a repair."""

_SEGMENT = struct.Struct("<8sHHHHHHIQQQQII")
_BLOCK = struct.Struct("<4sIIIQQQBBHI")
_NAME = re.compile(r"([0-9]{20})\.sbj", re.ASCII)
_JOURNAL = re.compile(r"(0|[1-9][0-9]{0,4})(?:\.retired-[0-9]+)?", re.ASCII)
INCARNATION_STEP = 1 << 32
"""The first sequence of an incarnation is a multiple of this number."""
assert _SEGMENT.size == SEGMENT_HEADER_BYTES and _BLOCK.size == BLOCK_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment."""

    incarnation: int
    """Random 64 bits, drawn at the start of a writer and repeated in each of its blocks."""
    first_sequence: int
    previous_end: int
    """End of the segment before (one past its last record), as its writer knew it or as found at the start."""
    created_us: int
    worker: int = 0
    workers: int = 1
    node_id: int = 0
    schema_version: int = SCHEMA_VERSION

    def pack(self) -> bytes:
        """Returns the header with its checksum."""
        packed = _SEGMENT.pack(
            SEGMENT_MAGIC, FORMAT_VERSION, SEGMENT_HEADER_BYTES, self.schema_version, self.worker, self.workers, self.node_id, 0,
            self.incarnation, self.first_sequence, self.previous_end, self.created_us, 0, 0,
        )[:-4]  # fmt: skip
        checksum: bytes = crc32(packed).to_bytes(4, "little")
        return packed + checksum

    @classmethod
    def unpack(cls, data: bytes) -> "SegmentHeader":
        """Decodes a header. Raises ValueError with the error, or JournalTooNew if the header is intact."""
        if len(data) < SEGMENT_HEADER_BYTES:
            raise ValueError(f"the segment header is cut off after {len(data)} bytes")
        (
            magic, version, size, schema, worker, workers, node, _, incarnation, first, previous, created, _, checksum,
        ) = _SEGMENT.unpack_from(data)  # fmt: skip
        if magic != SEGMENT_MAGIC:
            raise ValueError("the segment header has no magic")
        if crc32(data[: SEGMENT_HEADER_BYTES - 4]) != checksum:
            raise ValueError("the segment header fails its checksum")
        if version != FORMAT_VERSION or size != SEGMENT_HEADER_BYTES:
            raise JournalTooNew(f"format version {version} is not supported, this version reads {FORMAT_VERSION}")
        if schema > SCHEMA_VERSION:
            raise JournalTooNew(f"records of schema {schema} are not supported, this version reads {SCHEMA_VERSION}")
        return cls(incarnation, first, previous, created, worker, workers, node, schema)


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The 48 bytes before a block's records."""

    length: int
    """Size of the body that follows, bytes."""
    count: int
    first_sequence: int
    time_us: int
    incarnation: int
    codec: int = CODEC_PLAIN
    raw_length: int = 0
    """Size of the decoded body, bytes; equal to `length` if the codec is plain."""
    checksum: int = 0
    """CRC-32 of bytes 8 to the end of the body."""

    @property
    def end_sequence(self) -> int:
        """Returns the end of the block, one past its last record."""
        return self.first_sequence + self.count

    def pack(self, body: bytes) -> bytes:
        """Returns header and body with the checksum over both."""
        rest = self._rest() + body
        checksum: bytes = crc32(rest).to_bytes(4, "little")
        return BLOCK_MAGIC + checksum + rest

    def _rest(self) -> bytes:
        return _BLOCK.pack(
            BLOCK_MAGIC, 0, self.length, self.count, self.first_sequence, self.time_us, self.incarnation, self.codec, 0, 0,
            self.raw_length,
        )[8:]  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> "BlockHeader | None":
        """Decodes a header; returns None if no block can begin like this. The checksum is not verified."""
        if len(data) < BLOCK_HEADER_BYTES or data[:4] != BLOCK_MAGIC:
            return None
        _, checksum, length, count, first, time_us, incarnation, codec, _, _, raw = _BLOCK.unpack_from(data)
        return cls(length, count, first, time_us, incarnation, codec, raw, checksum)

    def holds(self, header: bytes, body: bytes) -> bool:
        """Returns whether the checksum matches header and body."""
        return len(body) == self.length and crc32(body, crc32(header[8:BLOCK_HEADER_BYTES])) == self.checksum


def segment_name(first_sequence: int) -> str:
    """Returns the file name of the segment that begins with this record."""
    return f"{first_sequence:020d}.sbj"


def segment_start(path: Path) -> int:
    """Returns the first sequence in a segment's name. Raises ValueError for any other name."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[1]) >= 1 << 64:
        raise ValueError(f"{path.name} is not the name of a segment, such as {segment_name(0)}")
    return int(match[1])


def segment_paths(directory: Path) -> list[Path]:
    """Returns the segments of one worker's journal, oldest first. Files with other names are ignored."""
    found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=segment_start)


def journals_below(root: Path) -> list[Path]:
    """Returns the journals below `<data>/journal`, by number, also of workers whose number is not in use any more: such a directory
    does not exist, and the journal is in retired_directories(). Raises FileNotFoundError if `root` does not exist."""
    matches = [match for name in os.listdir(root) if (match := _JOURNAL.fullmatch(name)) and (root / name).is_dir()]
    return [root / str(number) for number in sorted({int(match[1]) for match in matches})]


def all_segment_paths(directory: Path) -> list[Path]:
    """Returns the segments of a journal, with those of earlier workers of its number, oldest first.

    A journal that is set aside meanwhile is listed under its new name: that is looked up last.
    """
    found: dict[str, Path] = {}
    for one in _own_and_retired(directory):
        with suppress(FileNotFoundError):
            found |= {path.name: path for path in segment_paths(one)}
    return sorted(found.values(), key=segment_start)


def _own_and_retired(directory: Path) -> Iterator[Path]:
    yield directory
    yield from retired_directories(directory)


def retired_directories(directory: Path) -> list[Path]:
    """Returns the journals of earlier workers of this number, which were set aside when the number of workers was reduced.

    Their records precede those in `directory`: the number of a record means one record of all of them.
    """
    return [path for path in directory.parent.glob(f"{directory.name}.retired-*") if path.is_dir()]


def next_incarnation_start(end_sequence: int) -> int:
    """Returns the first sequence for a new writer, given the end that it found.

    It is a multiple of 2^32 and more than 2^32 further on. So records that a power cut took back, and that an export may have seen
    already, never share their numbers with others. Only a journal without segments begins at 0.
    """
    return (end_sequence // INCARNATION_STEP + 2) * INCARNATION_STEP
