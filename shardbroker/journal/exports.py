"""The known exports of a broker's journals: each run of `shardbroker export` leaves a note.

    <data>/exports/<crc32 of the target>.json     to, format, ended_ms, code

The progress of an export is in its target, in Spark's checkpoint. It is read if the target is a directory of this machine.
"""

import json
import os
from pathlib import Path
from typing import Any
from zlib import crc32

from shardbroker.stores.files import replace_file

__all__ = ["EXPORTS_DIR", "exported_to", "exports", "note_export"]

EXPORTS_DIR = "exports"
"""Name of the directory in the data directory."""
_OFFSETS = "_checkpoint/offsets"
"""Path in a target: it has one file for each batch, named by the batch's number."""
OFFSETS_BYTES = 1 << 16
"""Size limit of such a file, bytes; its last line has a position for each worker."""


def note_export(data_dir: Path, to: str, kind: str, ended_ms: int, code: int) -> None:
    """Records that a run of an export has ended with this exit code. Raises OSError."""
    directory = data_dir / EXPORTS_DIR
    directory.mkdir(mode=0o700, exist_ok=True)
    target = directory / f"{crc32(to.encode()):08x}.json"
    replace_file(target, json.dumps({"to": to, "format": kind, "ended_ms": ended_ms, "code": code}).encode())


def exports(data_dir: Path) -> list[dict[str, Any]]:
    """Returns the notes, newest first. Unreadable ones are skipped."""
    found = []
    directory = data_dir / EXPORTS_DIR
    for path in directory.glob("*.json") if directory.is_dir() else ():
        try:
            note = json.loads(path.read_text())
            found.append({name: note[name] for name in ("to", "format", "ended_ms", "code")})
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda note: -note["ended_ms"])


def exported_to(to: str) -> dict[str, int] | None:
    """Returns for each worker's journal the number of the next record to export; None if it cannot be read from this machine."""
    scheme, separator, rest = to.partition(":/")
    if separator and scheme != "file":
        return None
    directory = Path(f"/{rest.lstrip('/')}" if separator else to) / _OFFSETS
    try:
        newest = max((int(name) for name in os.listdir(directory) if name.isdecimal()), default=None)
        if newest is None:
            return None
        with (directory / str(newest)).open("rb") as file:
            positions = json.loads(file.read(OFFSETS_BYTES).splitlines()[-1])
        return {str(worker): int(position) for worker, position in positions.items()}
    except (OSError, ValueError, IndexError, AttributeError, TypeError):
        return None
