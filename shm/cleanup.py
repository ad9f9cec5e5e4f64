"""What a broker that was killed left behind in shared memory."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from shm.runtime import distrust
from shm.topology import INBOX, RINGS_DIR, SPILL_DIR, LeftOver

__all__ = ["cleanup", "forget_left_over", "set_aside"]

LEFT_OVER = "left-"
"""In the names of what is kept of a broker that was killed."""
DIGITS = 4
"""Of the number of a process, at most."""


def cleanup(runtime_dir: Path) -> None:
    """Removes what is in a runtime directory but rings set aside, and the directory if it is empty then; no error without one.

    The caller holds the instance's lock: processes that still use the segments would go on with what nobody else sees.
    """
    for path in runtime_dir.glob("*"):
        if path.name.startswith(LEFT_OVER):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        runtime_dir.rmdir()


def set_aside(runtime_dir: Path) -> tuple[LeftOver, ...]:
    """Gives the rings of a broker that was killed another name, so that what was under way in them is not lost with them.

    Returns all that there are, oldest first: those of earlier times too, if nobody has come to dealing with them. The caller holds
    the instance's lock, and has found the directory by shm.runtime.
    """
    with suppress(FileNotFoundError):
        (runtime_dir / RINGS_DIR).rename(runtime_dir / f"{LEFT_OVER}{time.time_ns():020}")
    return tuple(_left_over(path) for path in sorted(runtime_dir.glob(f"{LEFT_OVER}*")) if _is_ours(path))


def forget_left_over(left_over: tuple[LeftOver, ...]) -> None:
    """What was in these rings is where it belongs."""
    for one in left_over:
        shutil.rmtree(one.directory, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and distrust(path.lstat()) is None


def _left_over(directory: Path) -> LeftOver:
    """Processes are numbered from 0 on: what has another name is no ring, and one that is missing is in its place all the same."""
    numbers = [path.name.removeprefix(INBOX) for path in directory.glob(f"{INBOX}*")]
    last = max((int(number) for number in numbers if number.isdecimal() and len(number) <= DIGITS), default=-1)
    return LeftOver(directory, tuple(str(directory / f"{INBOX}{number}") for number in range(last + 1)), directory / SPILL_DIR)
