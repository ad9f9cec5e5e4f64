"""Removal of the shared memory of a broker that was killed."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from shm.runtime import distrust
from shm.topology import INBOX, PEER_INBOX, RINGS_DIR, ROLES_FILE, SPILL_DIR, LeftOver

__all__ = ["cleanup", "forget_left_over", "set_aside"]

LEFT_OVER = "left-"
"""Prefix of directories kept from a broker that was killed."""
DIGITS = 4
"""Longest process number."""


def cleanup(runtime_dir: Path) -> None:
    """Removes a runtime directory except for rings set aside, and the directory itself if it is then empty. No error without one.

    The caller holds the instance's lock: a process that still used the segments would otherwise keep a memory of its own.
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
    """Renames the rings of a broker that was killed, so that the messages in them are kept.

    Returns all renamed rings, oldest first, those of earlier starts included if they are not recovered yet. The caller holds the
    instance's lock, and has found the directory by shm.runtime.
    """
    with suppress(FileNotFoundError):
        (runtime_dir / RINGS_DIR).rename(runtime_dir / f"{LEFT_OVER}{time.time_ns():020}")
    return tuple(_left_over(path) for path in sorted(runtime_dir.glob(f"{LEFT_OVER}*")) if _is_ours(path))


def forget_left_over(left_over: tuple[LeftOver, ...]) -> None:
    """Removes these rings once their messages are recovered."""
    for one in left_over:
        shutil.rmtree(one.directory, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and distrust(path.lstat()) is None


def _left_over(directory: Path) -> LeftOver:
    """Lists the inboxes of a directory. Processes are numbered from 0 on: other names are ignored, and a missing inbox is listed
    too."""
    numbers = [path.name.removeprefix(INBOX) for path in directory.glob(f"{INBOX}*")]
    last = max((int(number) for number in numbers if number.isdecimal() and len(number) <= DIGITS), default=-1)
    inboxes = tuple(str(directory / f"{INBOX}{number}") for number in range(last + 1))
    roles: tuple[str, ...] = ()
    with suppress(FileNotFoundError):
        roles = tuple((directory / ROLES_FILE).read_text().split())
    return LeftOver(directory, inboxes, directory / SPILL_DIR, tuple(sorted(map(str, directory.glob(f"{PEER_INBOX}*")))), roles)
