"""Where a power cut ended a writer: the same rule as the broker's recovery has (docs/journal-format.md, `synced`).

At level `machine` each block says up to where the disk was known to have everything. A hole that lies below what a later block of
the same writer says is damage, and the rest counts. Any other hole is where the power went: nobody was promised what stands behind
it, a recovery leaves it out, and so it is no row here.

What blocks say only grows. So the last block of a writer decides: holes below its `synced` are damage, the first one from there on
is the end. Only what lies behind `synced` has to be looked at, which is what the disk was writing when the power went.
"""

from collections.abc import Iterable

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
"""Places in a block's header."""


def ends(segments: Iterable[tuple[SegmentInfo, int]], known: frozenset[int]) -> dict[int, int]:
    """Incarnation -> the position where its records end to count. Those that count as a whole are left out.

    segments: of a journal, oldest first, with the position that each must reach (0: nobody knows). Raises OSError.
    """
    writers: dict[int, list[tuple[SegmentInfo, int]]] = {}
    lost: dict[int, int] = {}
    nothing: int | None = None
    for info, expected in segments:
        try:
            with Segment(info, known) as segment:
                incarnation = segment.incarnation
        except FileNotFoundError:
            continue  # retention was faster
        if incarnation is None:  # not one block in it is whole
            nothing = info.first if nothing is None else nothing
            continue
        if nothing is not None and nothing // INCARNATION_STEP == info.first // INCARNATION_STEP:
            lost.setdefault(incarnation, nothing)  # it was this writer's
        nothing = None
        writers.setdefault(incarnation, []).append((info, expected))
    found = {incarnation: _end(parts, known, lost.get(incarnation, FOREVER)) for incarnation, parts in writers.items()}
    return {incarnation: end for incarnation, end in found.items() if end < FOREVER}


def _end(parts: list[tuple[SegmentInfo, int]], known: frozenset[int], lost: int) -> int:
    synced = None
    for info, _ in reversed(parts):
        last = _last_block(info, known)
        if last is not None:
            synced = last
            break
    if synced is None or synced < 0:
        return FOREVER
    end = lost if lost >= synced else FOREVER
    for place, (info, expected) in enumerate(parts):
        if place + 1 < len(parts) and parts[place + 1][0].first <= synced:
            continue
        with Segment(info, known) as segment:
            start = seek(segment, SEQUENCE, synced + 1)[0] if synced > info.first and not info.problem else 0
            for item in scan(segment, 0 if start <= SEGMENT_BYTES else start, segment.size, expected_end=expected):
                hole = item.lost_from if isinstance(item, Damage) and item.lost_to != item.lost_from else None
                if hole is not None and hole >= synced:
                    return min(end, hole)
    return end


def _last_block(info: SegmentInfo, known: frozenset[int]) -> int | None:
    """What the last valid block of a segment says; -1 if it says nothing: level `process`. None: there is no block."""
    with Segment(info, known) as segment:
        last = None
        start = seek(segment, SEQUENCE, FOREVER)[0] if not info.problem else SEGMENT_BYTES
        for offset, header in segment.valid_from(start, segment.incarnation):
            if last is None or offset >= last[0] + BLOCK_BYTES + last[1][_LENGTH]:
                last = offset, header
        if last is None and start > SEGMENT_BYTES:
            for offset, header in segment.valid_from(SEGMENT_BYTES, segment.incarnation):
                if last is None or offset >= last[0] + BLOCK_BYTES + last[1][_LENGTH]:
                    last = offset, header
        if last is None:
            return None
        offset, header = last
        return _synced(segment.read(offset + BLOCK_BYTES, header[_LENGTH]), header) if header[_CODEC] == CODEC_PLAIN else -1


def _synced(body: bytes, header: tuple[int, ...]) -> int:
    at = 0
    try:
        for _ in range(header[_COUNT] - 1):
            at = read_record(body, at, len(body)).end
        if body[at + 1 : at + 2] == bytes([_SYNCED]):
            kind, position, _ = read_record(body, at, len(body)).items[0]
            return position if kind == UINT else -1
    except (BadRecord, IndexError):
        pass  # whoever reads it names it
    return -1
