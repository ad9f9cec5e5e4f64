"""Headers of segments and blocks, and file names, for everything that is not compiled; docs/journal-format.md draws them.

The writer has the same layout as C (`writer.pxd`); a test holds the two together.
"""

import re
import struct
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
    "next_incarnation_start",
    "segment_name",
    "segment_paths",
    "segment_start",
]

FORMAT_VERSION = 1
SEGMENT_MAGIC = b"\x89SBJ\r\n\x1a\n"
"""As PNG's: shows a file that was copied as text."""
SEGMENT_HEADER_BYTES = 64
BLOCK_MAGIC = b"\xb1\x0cSB"
BLOCK_HEADER_BYTES = 48
MAX_BODY_BYTES = 0xFFFF_FFFF
CODEC_PLAIN = 0
CODEC_LOST = 1
"""No body: these records are lost for good, which a repair has put on record."""

_SEGMENT = struct.Struct("<8sHHHHHHIQQQQII")
_BLOCK = struct.Struct("<4sIIIQQQBBHI")
_NAME = re.compile(r"([0-9]{20})\.sbj", re.ASCII)
INCARNATION_STEP = 1 << 32
"""The first sequence of an incarnation is a multiple of it."""
assert _SEGMENT.size == SEGMENT_HEADER_BYTES and _BLOCK.size == BLOCK_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment."""

    incarnation: int
    """Random 64 bits, drawn when a writer starts; repeated in each of its blocks."""
    first_sequence: int
    previous_end: int
    """One past the last record of the segment before, as its writer knew it or as it was found at the start."""
    created_us: int
    worker: int = 0
    workers: int = 1
    node_id: int = 0
    schema_version: int = SCHEMA_VERSION

    def pack(self) -> bytes:
        """The header with its checksum."""
        packed = _SEGMENT.pack(
            SEGMENT_MAGIC, FORMAT_VERSION, SEGMENT_HEADER_BYTES, self.schema_version, self.worker, self.workers, self.node_id, 0,
            self.incarnation, self.first_sequence, self.previous_end, self.created_us, 0, 0,
        )[:-4]  # fmt: skip
        checksum: bytes = crc32(packed).to_bytes(4, "little")
        return packed + checksum

    @classmethod
    def unpack(cls, data: bytes) -> "SegmentHeader":
        """Raises ValueError with what is wrong, JournalTooNew if nothing is."""
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
            raise JournalTooNew(f"format version {version} is not known here, which is {FORMAT_VERSION}")
        if schema > SCHEMA_VERSION:
            raise JournalTooNew(f"records of schema {schema} are not known here, which is {SCHEMA_VERSION}")
        return cls(incarnation, first, previous, created, worker, workers, node, schema)


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The 48 bytes in front of a block's records."""

    length: int
    """Bytes of the body that follows."""
    count: int
    first_sequence: int
    time_us: int
    incarnation: int
    codec: int = CODEC_PLAIN
    raw_length: int = 0
    """Bytes of the body once decoded; `length` if the codec is plain."""
    checksum: int = 0
    """CRC-32 of bytes 8 to the end of the body."""

    @property
    def end_sequence(self) -> int:
        """One past the last record."""
        return self.first_sequence + self.count

    def pack(self, body: bytes) -> bytes:
        """Header and body with the checksum over both."""
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
        """None if no block can begin like this. Says nothing about the checksum."""
        if len(data) < BLOCK_HEADER_BYTES or data[:4] != BLOCK_MAGIC:
            return None
        _, checksum, length, count, first, time_us, incarnation, codec, _, _, raw = _BLOCK.unpack_from(data)
        return cls(length, count, first, time_us, incarnation, codec, raw, checksum)

    def holds(self, header: bytes, body: bytes) -> bool:
        """Whether header and body are what was written."""
        return len(body) == self.length and crc32(body, crc32(header[8:BLOCK_HEADER_BYTES])) == self.checksum


def segment_name(first_sequence: int) -> str:
    """File name of the segment that begins with this record."""
    return f"{first_sequence:020d}.sbj"


def segment_start(path: Path) -> int:
    """First sequence in a segment's name. Raises ValueError if it is no segment's name."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[1]) >= 1 << 64:
        raise ValueError(f"{path.name} is not the name of a segment, such as {segment_name(0)}")
    return int(match[1])


def segment_paths(directory: Path) -> list[Path]:
    """The segments of one worker's journal, oldest first. What has another name is not looked at."""
    found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=segment_start)


def next_incarnation_start(end_sequence: int) -> int:
    """First sequence for a new writer, when `end_sequence` is the end that it found.

    More than 2^32 further on, at a multiple of it: whatever a power cut took back, and an export may have seen already, never
    shares its numbers with other records. Only a journal without any segment begins at 0.
    """
    return (end_sequence // INCARNATION_STEP + 2) * INCARNATION_STEP
