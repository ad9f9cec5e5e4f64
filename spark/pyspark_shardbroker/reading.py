"""The work of a task: a piece of a segment to Arrow batches."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pyspark_shardbroker.columns import Context, build
from pyspark_shardbroker.decode import BadBlock, Records, decode_window
from pyspark_shardbroker.errors import DamageError, RemovedError
from pyspark_shardbroker.journals import Piece
from pyspark_shardbroker.options import Wanted
from pyspark_shardbroker.segments import BLOCK_BYTES, SEGMENT_BYTES, Damage, Segment, Window, end_of, scan

__all__ = ["read_piece", "scan_piece", "warn"]

NAMES_KEPT = 16
"""Segments whose client ids a thread of a Python worker caches: a stream reads the same segment with every batch."""


class _Kept(threading.local):
    """Of each thread: an export without Spark has one for each piece."""

    def __init__(self) -> None:
        self.names: OrderedDict[tuple[str, int | None], tuple[int, dict[int, bytes]]] = OrderedDict()
        """Path and incarnation of a segment -> offset up to which it was read, session -> client id."""


_kept = _Kept()


def warn(damage: Damage) -> None:
    """Writes a line to the log of the executor, in mode permissive."""
    print(f"pyspark_shardbroker: {damage}", file=sys.stderr, flush=True)


def read_piece(
    piece: Piece, columns: Sequence[str], wanted: Wanted, fail_fast: bool, dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yields the wanted records; with `dictionaries` as in `build`. Raises DamageError, RemovedError, OSError."""
    needs_names = "client_id" in columns
    names: dict[int, bytes] = {}
    for item in scan_piece(piece):
        if isinstance(item, Damage):
            if fail_fast and not item.torn:
                raise DamageError(f"{item} (mode permissive reads what is whole)")
            if not item.torn:
                warn(item)
            continue
        segment, records = item
        if needs_names:
            names.update(records.sessions())
        records = records.keep(wanted.mask(records, piece.lowest, piece.highest))
        if not len(records):
            continue
        if needs_names:
            _complete(names, records, segment, piece)
        yield build(records, Context(piece.info.worker, piece.info.node, names), columns, dictionaries)


def scan_piece(piece: Piece) -> Iterator[tuple[Segment, Records] | Damage]:
    """Yields records, window by window, and damage."""
    try:
        segment = Segment(piece.info, piece.known)
    except FileNotFoundError:
        raise RemovedError(
            f"{piece.info.path} has gone while it was to be read: retention was faster; its records from "
            f"{max(piece.info.first, piece.lowest)} on are missing"
        ) from None
    with segment:
        for item in scan(segment, piece.start, piece.end, piece.lowest, piece.highest, piece.expected_end):
            if isinstance(item, Damage):
                ended = item.lost_from is not None and item.lost_from >= piece.counts_to
                yield replace(item, torn=True, lost_to=None) if ended else item
                continue
            for part in _decode(item):
                yield part if isinstance(part, Damage) else (segment, _without_repeats(part, piece))


def _decode(window: Window) -> Iterator[Records | Damage]:
    """Yields the records of a window, and damage for blocks with a correct checksum and unreadable records."""
    while len(window.blocks):
        try:
            yield decode_window(window)
            return
        except BadBlock as error:
            blocks, bad = window.blocks, error.number
            start = window.at + blocks.offset[bad]
            first = blocks.first[bad]
            yield Damage(
                window.path, start - BLOCK_BYTES, start + blocks.length[bad], f"records that cannot be read: {error}", first,
                first + blocks.count[bad],
            )  # fmt: skip
            for column in (blocks.offset, blocks.length, blocks.count, blocks.first, blocks.time_us):
                del column[bad]


def _without_repeats(records: Records, piece: Piece) -> Records:
    """Removes records that the next segment repeats, as after a disk error."""
    following = piece.following
    if following is None or not len(records) or records.sequence[-1] < following.first:
        return records
    end = end_of(following)[1]
    return records.keep((records.sequence < following.first) | (records.sequence >= end))


def _complete(names: dict[int, bytes], records: Records, segment: Segment, piece: Piece) -> None:
    """Adds the client ids of sessions that were named in the segment before this piece."""
    if piece.start <= SEGMENT_BYTES and piece.lowest <= piece.info.first:
        return
    _, sessions, _ = records.field("session")
    if all(session in names for session in np.unique(sessions).tolist() if session):
        return
    names.update({**_names_before(segment, piece), **names})


def _names_before(segment: Segment, piece: Piece) -> dict[int, bytes]:
    key = piece.info.path, segment.incarnation
    until = int(piece.start) if piece.start > SEGMENT_BYTES else segment.size
    kept = _kept.names
    start, names = kept.pop(key, (SEGMENT_BYTES, {}))
    if start < until:
        for item in scan(segment, start, until):
            if isinstance(item, Window):
                for part in _decode(item):
                    if isinstance(part, Records):
                        names.update(part.sessions())
        start = until
    kept[key] = start, names
    while len(kept) > NAMES_KEPT:
        kept.popitem(last=False)
    return names
