"""journal/reader.py: blocks and damage cover a segment from its first byte to its last, and the checksum of a block matches it.

Half of the inputs have their checksums corrected, so that the code after the check is reached.
"""

import contextlib
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from shardbroker.journal.checksum import crc32
from shardbroker.journal.errors import JournalTooNew
from shardbroker.journal.layout import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    SegmentHeader,
    segment_name,
)
from shardbroker.journal.reader import Block, find_end, read, read_segment
from shardbroker.journal.schema import Kind, SchemaError, encode

MAX_LEN = 700
AS_IT_IS, MADE_RIGHT = range(2)
INCARNATION = 7
_directory = tempfile.TemporaryDirectory(prefix="shardbroker-fuzz-")
_path = Path(_directory.name) / segment_name(0)


def seeds() -> Iterable[bytes]:
    records = [
        encode(Kind.ACKNOWLEDGED, session=5, packet_id=9, packet=4, reason=0),
        encode(Kind.MESSAGE, id=bytes(16), topic=b"a/b", payload=b"x" * 20, flags=1, expires_ms=0, properties=b"", publisher=b"p"),
    ]
    segment = SegmentHeader(INCARNATION, 0, 0, 1).pack()
    body = b"".join(records)
    blocks = [BlockHeader(len(body), 2, first, 1000, INCARNATION, raw_length=len(body)).pack(body) for first in (0, 2, 6)]
    lost = BlockHeader(0, 3, 4, 1000, INCARNATION, 1).pack(b"")
    for mode in (AS_IT_IS, MADE_RIGHT):
        yield bytes([mode]) + segment
        yield bytes([mode]) + segment + b"".join(blocks)
        yield bytes([mode]) + segment + blocks[0] + lost + blocks[1][:70]
        yield bytes([mode]) + segment + blocks[0] + bytes(60)
        yield bytes([mode]) + b"\0" + segment[1:] + blocks[0] + b"damage" + blocks[2]


def check(data: bytes) -> None:
    segment = _with_checksums(data[1:]) if data[:1] and data[0] % 2 else data[1:]
    assert crc32(segment) == zlib.crc32(segment)
    _path.write_bytes(segment)
    at = end = 0
    with contextlib.suppress(JournalTooNew):
        for item in read_segment(_path):
            if not isinstance(item, Block):
                assert at <= item.start <= item.end <= len(segment), item
                at = item.end
                continue
            # Blocks that repeat earlier ones are read and not returned.
            assert item.offset >= at and item.header.end_sequence > end, item
            packed = segment[item.offset : item.end]
            assert int.from_bytes(packed[4:8], "little") == zlib.crc32(packed[8:]) and len(item.body) == item.header.length
            at, end = item.end, item.header.end_sequence
            with contextlib.suppress(SchemaError):
                assert len(item.records()) in (0, item.header.count)
        found = [item for item in read(_path.parent) if isinstance(item, Block)]
        if found:
            assert find_end(_path.parent) == end == found[-1].header.end_sequence


def _with_checksums(segment: bytes) -> bytes:
    """Returns the segment with correct checksums in the header and in all possible blocks."""
    fixed = bytearray(segment)
    if len(fixed) >= SEGMENT_HEADER_BYTES:
        fixed[SEGMENT_HEADER_BYTES - 4 : SEGMENT_HEADER_BYTES] = zlib.crc32(fixed[: SEGMENT_HEADER_BYTES - 4]).to_bytes(4, "little")
    at = fixed.find(BLOCK_MAGIC, SEGMENT_HEADER_BYTES)
    while at >= 0:
        header = BlockHeader.unpack(bytes(fixed[at : at + BLOCK_HEADER_BYTES]))
        if header is not None and at + BLOCK_HEADER_BYTES + header.length <= len(fixed):
            fixed[at + 4 : at + 8] = zlib.crc32(fixed[at + 8 : at + BLOCK_HEADER_BYTES + header.length]).to_bytes(4, "little")
        at = fixed.find(BLOCK_MAGIC, at + 1)
    return bytes(fixed)
