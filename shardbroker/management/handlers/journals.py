"""Segments of journals, and exports. The state of a journal is read from its worker (handlers/node.py)."""

import asyncio
from pathlib import Path
from typing import Any

from shardbroker.control.verbs import Page, Params
from shardbroker.journal.exports import exported_to, exports
from shardbroker.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, segment_paths
from shardbroker.journal.reader import journal_directories
from shardbroker.management.context import Context, handles
from shardbroker.management.paging import decode_cursor, encode_cursor

EXPORTS_MAX = 100
"""Exports in one response."""
RESULTS = {0: "done", 1: "stopped", 2: "wrong options"}
"""Exit codes of `shardbroker export`."""


@handles("journal segments")
async def list_segments(context: Context, params: Page) -> dict[str, Any]:
    """Returns segments worker by worker, the oldest first."""
    after = decode_cursor(params.cursor, int, str) if params.cursor else (-1, "")
    root = context.topology.data_dir / "journal"
    rows, more = await asyncio.to_thread(_segments, root, after, params.limit)
    cursor = encode_cursor(rows[-1]["worker"], rows[-1]["segment"]) if rows and more else None
    return {"data": rows, "cursor": cursor}


def _segments(root: Path, after: tuple[Any, ...], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Returns the segments after a position, and whether there are more."""
    rows: list[dict[str, Any]] = []
    for directory in journal_directories(root) if root.is_dir() else ():
        worker = int(directory.name)
        paths = segment_paths(directory) if worker >= after[0] else []
        for path in paths:
            if (worker, path.name) <= after:
                continue
            if len(rows) == limit:
                return rows, True
            row = _segment(worker, path, path == paths[-1])
            if row is not None:
                rows.append(row)
    return rows, False


def _segment(worker: int, path: Path, last: bool) -> dict[str, Any] | None:
    """Returns the row of a segment, or None if retention has just removed it."""
    try:
        with path.open("rb") as file:
            head = file.read(SEGMENT_HEADER_BYTES)
        status = path.stat()
    except OSError:
        return None
    try:
        begins_ms = SegmentHeader.unpack(head).created_us // 1000
    except Exception:  # damaged, or of a later version: `shardbroker journal verify` reports it
        begins_ms = None
    return {
        "worker": worker, "segment": path.name, "bytes": status.st_size, "begins_at": begins_ms,
        "ends_at": max(status.st_mtime_ns // 1_000_000, begins_ms or 0), "last": last,  # times of files have a coarser resolution
    }  # fmt: skip


@handles("journal exports")
async def list_exports(context: Context, params: Params) -> dict[str, Any]:
    """`current`: whether the last batch of the export has read all records that the journals have now; None if unknown."""
    states = await context.workers.call_available("journal")
    ends = {str(worker): state["durable"] for worker, state in enumerate(states) if state}
    rows = []
    for note in (await asyncio.to_thread(exports, context.topology.data_dir))[:EXPORTS_MAX]:
        positions = await asyncio.to_thread(exported_to, note["to"])
        rows.append({
            "to": note["to"], "format": note["format"], "ended_at": note["ended_ms"],
            "result": RESULTS.get(note["code"], f"exit code {note['code']}"), "positions": positions,
            "current": None if positions is None else all(positions.get(worker, 0) >= end for worker, end in ends.items()),
        })  # fmt: skip
    return {"data": rows, "cursor": None}
