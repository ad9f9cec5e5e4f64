"""Where a recovery begins: the last position whose predecessors are not needed any more."""

from pathlib import Path

from shardbroker.stores.checked_number import read_number, write_number

__all__ = ["recovery_start", "set_recovery_start"]

_NAME = "recover-from"


def recovery_start(directory: Path) -> int:
    """The position to read a journal from; 0, its beginning, if none was noted, or if the note is damaged: reading more than
    needed does no harm."""
    try:
        return read_number(directory / _NAME) or 0
    except (OSError, ValueError):
        return 0


def set_recovery_start(directory: Path, position: int, *, sync: bool = False) -> None:
    """Notes it; at any moment there is the old position or the new one, with `sync` even if the power goes. Raises OSError."""
    write_number(directory / _NAME, position, sync=sync)
