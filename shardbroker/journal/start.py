"""The position at which a recovery begins: no record before it is needed any more."""

from pathlib import Path

from shardbroker.stores.checked_number import read_number, write_number

__all__ = ["recovery_start", "set_recovery_start"]

_NAME = "recover-from"


def recovery_start(directory: Path) -> int:
    """Returns the position to read a journal from.

    It is 0, the beginning, if no position was recorded or the record is damaged: reading more than needed does no harm.
    """
    try:
        return read_number(directory / _NAME) or 0
    except (OSError, ValueError):
        return 0


def set_recovery_start(directory: Path, position: int, *, sync: bool = False) -> None:
    """Records the position atomically, with `sync` even across a power cut. Raises OSError."""
    write_number(directory / _NAME, position, sync=sync)
