"""Where a recovery begins: the last position whose predecessors are not needed any more."""

import os
from pathlib import Path

from shm.files import sync_path

__all__ = ["recovery_start", "set_recovery_start"]

_NAME = "recover-from"


def recovery_start(directory: Path) -> int:
    """The position to read a journal from; 0, its beginning, if none was noted. Reading more than that does no harm."""
    try:
        return int((directory / _NAME).read_text())
    except (OSError, ValueError):
        return 0


def set_recovery_start(directory: Path, position: int, *, sync: bool = False) -> None:
    """Notes it; at any moment there is the old position or the new one, with `sync` even if the power goes. Raises OSError."""
    new = directory / f"{_NAME}.new"
    new.write_text(f"{position}\n")
    if sync:
        sync_path(new)
    os.replace(new, directory / _NAME)
    if sync:
        sync_path(directory)
