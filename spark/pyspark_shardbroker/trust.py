"""Where a power cut ended a writer: the same rule as in the broker's recovery (docs/journal-format.md, `synced`).

At level `machine` each block has the position up to which the disk was known to have everything. A hole below that position in a
later block of the same writer is damage, and the records after it count. Any other hole is where the power was cut: records after
it were never confirmed to a client, recovery leaves them out, and so they are not rows here. A block in which a repair has recorded
lost records is still a hole.

Positions in blocks only grow. So the last block of a writer decides: holes below its `synced` are damage, the first hole from there
on is the end. Only the part after `synced` needs a check, which the disk was writing when the power was cut.

One table of cases holds this and the broker's rule together: tests/journal/trust_cases.py.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from pyspark_shardbroker.segments import (
    BLOCK_BYTES,
    CODEC_PLAIN,
    INCARNATION_STEP,
    SEGMENT_BYTES,
    SEQUENCE,
    Damage,
    Segment,
    SegmentInfo,
    scan,
    seek,
)
from pyspark_shardbroker.slow_cbor import UINT, BadRecord, read_record

__all__ = ["FOREVER", "ends"]

FOREVER = 1 << 62
"""Above every sequence and every time."""
_SYNCED = 23
_LENGTH, _COUNT, _CODEC = 2, 3, 7
"""Indexes in a block's header."""
_PROCESS = -1
"""Instead of `synced`: a block of level `process`, which has no information about the disk."""
_Part = tuple[SegmentInfo, int]
"""A segment, and the position that it must reach; 0: unknown."""


def ends(segments: Iterable[_Part], known: frozenset[int]) -> dict[int, int]:
    """Returns incarnation -> end of its records that count. Writers whose records all count are left out.

    segments: of a journal, oldest first. Raises OSError.
    """
    writers: dict[int, list[_Part]] = {}
    empty: list[int] = []
    """Starts of segments without a record: all zeros, or emptied by a repair, which then gives them a name of their own."""
    for info, expected in segments:
        try:
            with Segment(info, known) as segment:
                incarnation = segment.incarnation
        except FileNotFoundError:
            continue  # removed by retention
        if incarnation is None:
            empty.append(info.first)
        else:
            writers.setdefault(incarnation, []).append((info, expected))
    synced = {incarnation: _synced(parts, known) for incarnation, parts in writers.items()}
    empty += [info.first for incarnation, parts in writers.items() if synced[incarnation] is None for info, _ in parts]
    found = {}
    for incarnation, parts in writers.items():
        reached = synced[incarnation]
        if reached is not None and reached != _PROCESS:
            found[incarnation] = min((hole for hole in _holes(parts, known, reached, empty) if hole >= reached), default=FOREVER)
    return {incarnation: end for incarnation, end in found.items() if end < FOREVER}


def _holes(parts: list[_Part], known: frozenset[int], synced: int, empty: list[int]) -> Iterator[int]:
    """Yields the places where records of a writer are missing after `synced`; some before it may be among them."""
    first, last = parts[0][0].first, parts[-1][0].first
    yield from (hole for hole in empty if first // INCARNATION_STEP <= hole // INCARNATION_STEP and hole <= last)
    for place, (info, expected) in enumerate(parts):
        if place + 1 < len(parts) and parts[place + 1][0].first <= synced:
            continue
        with suppress(FileNotFoundError), Segment(info, known) as segment:
            start = seek(segment, SEQUENCE, synced + 1)[0] if synced > info.first and not info.problem else 0
            for item in scan(segment, 0 if start <= SEGMENT_BYTES else start, segment.size, expected_end=expected):
                if not isinstance(item, Damage):
                    yield from item.lost
                elif item.lost_from is not None and item.lost_from != item.lost_to:
                    yield item.lost_from


def _synced(parts: list[_Part], known: frozenset[int]) -> int | None:
    """Returns `synced` of a writer's last block; None without a block with records."""
    for info, _ in reversed(parts):
        with suppress(FileNotFoundError), Segment(info, known) as segment:
            near = SEGMENT_BYTES if info.problem else seek(segment, SEQUENCE, FOREVER)[0]
            for start in dict.fromkeys((near, SEGMENT_BYTES)):
                said = _last_said(segment, start)
                if said is not None:
                    return said
    return None


def _last_said(segment: Segment, start: int) -> int | None:
    """Returns `synced` of the last block with records from an offset on."""
    last: tuple[int, tuple[int, ...]] | None = None
    behind = 0
    for offset, header in segment.valid_from(start, segment.incarnation):
        if offset >= behind:  # otherwise the payload of a message that contains blocks
            behind = offset + BLOCK_BYTES + header[_LENGTH]
            last = (offset, header) if header[_CODEC] == CODEC_PLAIN else last
    if last is None:
        return None
    offset, header = last
    return _said(segment.read(offset + BLOCK_BYTES, header[_LENGTH]), header[_COUNT])


def _said(body: bytes, count: int) -> int:
    """Returns the position in the last record of a block; _PROCESS if that is another record."""
    at = 0
    try:
        for _ in range(count - 1):
            at = read_record(body, at, len(body)).end
        if body[at + 1 : at + 2] == bytes([_SYNCED]):
            kind, position, _ = read_record(body, at, len(body)).items[0]
            return position if kind == UINT else _PROCESS
    except (BadRecord, IndexError):
        pass  # its reader reports the damage
    return _PROCESS
