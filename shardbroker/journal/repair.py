"""Checks a journal, and repairs it for programs that do not accept damage (the broker does: its readers skip damage).

A torn tail is cut off. A segment with damage is replaced by a clean one of the same name, with the valid blocks, and with marks in
place of lost records. The damaged segment is kept as `<name>.damaged`. After a repair the journal passes each check.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardbroker.journal.layout import (
    CODEC_LOST,
    INCARNATION_STEP,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    SegmentHeader,
    segment_paths,
    segment_start,
)
from shardbroker.journal.opening import lock
from shardbroker.journal.reader import Block, Damage, read, read_segment
from shardbroker.journal.schema import SchemaError
from shardbroker.journal.trust import trusted
from shardbroker.stores.files import replacing

__all__ = ["Report", "repair", "verify"]

_MOST_RECORDS = 0xFFFF_FFFF
"""Records that one block can mark as lost."""


@dataclass
class Report:
    """The findings of a check."""

    segments: int = 0
    blocks: int = 0
    records: int = 0
    lost: int = 0
    """Records that an earlier repair has marked as lost."""
    first_sequence: int | None = None
    end_sequence: int | None = None
    damages: list[Damage] = field(default_factory=list)
    void: int = 0
    """Valid blocks after a hole left by a power cut: nothing in them was promised, and no recovery uses them."""
    unreadable: list[str] = field(default_factory=list)
    """Valid blocks with records that violate the schema, which only a faulty writer can produce."""

    @property
    def good(self) -> bool:
        """Returns whether there is no damage but a torn tail."""
        return not self.unreadable and not any(damage.error for damage in self.damages)


def verify(directory: Path) -> Report:
    """Reads the whole journal, and evaluates it as a recovery does. Raises OSError."""
    report = Report(segments=len(segment_paths(directory)))
    for item in trusted(_counted(read(directory), report)):
        if isinstance(item, Damage):
            report.damages.append(item)
            continue
        if item.lost:
            continue
        report.void -= 1
        try:
            report.records += len(item.items())
        except SchemaError as error:
            report.unreadable.append(f"{item.path}: block at {item.offset}: {error}")
    return report


def _counted(parts: Iterator[Block | Damage], report: Report) -> Iterator[Block | Damage]:
    """Yields `parts`, and counts all blocks in the report: as void, until they turn out to be valid for a recovery."""
    for part in parts:
        if isinstance(part, Block):
            report.blocks += 1
            report.first_sequence = part.header.first_sequence if report.first_sequence is None else report.first_sequence
            report.end_sequence = part.header.end_sequence
            if part.lost:
                report.lost += part.header.count
            else:
                report.void += 1
        yield part


def repair(directory: Path) -> Iterator[str]:
    """Repairs the journal, and yields a line after each step.

    A crash in between leaves each segment either unchanged or repaired. Raises JournalBusy during writes, OSError.
    """
    fd = lock(directory)
    try:
        damaged: dict[Path, list[Damage]] = {}
        paths = segment_paths(directory)
        for item in read(directory):
            if isinstance(item, Damage):
                damaged.setdefault(_owner(item, paths), []).append(item)
        for path, damages in damaged.items():
            (tail,) = damages if len(damages) == 1 else (None,)
            if tail is not None and not tail.error and tail.start >= SEGMENT_HEADER_BYTES:
                os.truncate(path, tail.start)
                yield f"{path}: cut off {tail.end - tail.start} bytes of a block that was not finished, at {tail.start}"
            else:
                yield from _replace(path, damages, paths)
            os.fsync(fd)
    finally:
        os.close(fd)


def _owner(damage: Damage, paths: list[Path]) -> Path:
    """Returns the segment in which to mark the damage: records missing before a segment belong to the one before."""
    at = paths.index(damage.path)
    return paths[at - 1] if damage.start == damage.end == 0 and not damage.torn and at else damage.path


def _replace(path: Path, damages: list[Damage], paths: list[Path]) -> Iterator[str]:
    aside = _free_name(path)
    lost = 0
    with replacing(path) as file:
        for part, count in _clean_parts(path, damages, paths):
            file.write(part)
            lost += count
        empty = file.tell() == 0
        os.link(path, aside)
    if empty:
        path.unlink()
    for damage in damages:
        yield str(damage)
    yield f"{path}: set aside as {aside.name}" + ("" if empty else f"; in its place is what is valid, and {lost} records are lost")


def _clean_parts(path: Path, damages: list[Damage], paths: list[Path]) -> Iterator[tuple[bytes, int]]:
    """Yields the bytes of the clean segment, each part with the number of records that it marks as lost; nothing if unknown."""
    gaps = sorted(
        (damage.lost_from, damage.lost_to)
        for damage in damages
        if damage.lost_from is not None and damage.lost_to is not None and damage.lost_to > damage.lost_from
    )
    known = [header.incarnation for header in map(_header, paths) if header is not None]
    blocks = (item for item in read_segment(path, known) if isinstance(item, Block))
    first = next(blocks, None)
    if first is None and not gaps:
        return
    header = _header(path)
    if header is None or header.first_sequence != segment_start(path):
        header = _replacement_header(path, first, paths)
    yield header.pack(), 0
    time_us = first.header.time_us if first is not None else header.created_us
    while first is not None or gaps:
        if gaps and (first is None or gaps[0][0] < first.header.first_sequence):
            start, end = gaps.pop(0)
            for at in range(start, end, _MOST_RECORDS):
                count = min(end - at, _MOST_RECORDS)
                yield BlockHeader(0, count, at, time_us, header.incarnation, CODEC_LOST).pack(b""), count
        elif first is not None:
            time_us = first.header.time_us
            yield first.header.pack(first.body), 0
            first = next(blocks, None)


def _header(path: Path) -> SegmentHeader | None:
    try:
        with path.open("rb") as file:
            return SegmentHeader.unpack(file.read(SEGMENT_HEADER_BYTES))
    except (ValueError, FileNotFoundError):
        return None  # FileNotFoundError: this repair has found nothing in it


def _replacement_header(path: Path, block: Block | None, paths: list[Path]) -> SegmentHeader:
    """Returns a replacement for a damaged header, from the name, the blocks, and the segment before."""
    first = segment_start(path)
    at = paths.index(path)
    before = _header(paths[at - 1]) if at else None
    same = before is not None and first % INCARNATION_STEP != 0
    if block is not None:
        incarnation = block.header.incarnation
    else:
        incarnation = before.incarnation if before is not None and same else secrets.randbits(64)
    end = 0
    if at:
        with contextlib.suppress(OSError):
            found = [item.header.end_sequence for item in read_segment(paths[at - 1]) if isinstance(item, Block)]
            end = max(found, default=segment_start(paths[at - 1]))
    created_us = block.header.time_us if block is not None else before.created_us if before is not None else 0
    worker, workers, node = (before.worker, before.workers, before.node_id) if before is not None else (0, 1, 0)
    return SegmentHeader(incarnation, first, first if same else end, created_us, worker, workers, node)


def _free_name(path: Path) -> Path:
    for number in range(1000):
        name = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number else ""))
        if not name.exists():
            return name
    raise FileExistsError(f"{path}.damaged: a thousand such files exist")
