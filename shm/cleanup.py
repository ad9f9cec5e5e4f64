"""What a broker that was killed left behind in shared memory."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from shm import segment
from shm.topology import LeftOver

__all__ = ["cleanup", "forget_left_over", "set_aside"]

SEGMENTS = Path("/dev/shm")
"""Where Linux shows POSIX segments as files."""
LEFT_OVER = "left-"
"""In the names of what is kept of a broker that was killed."""


def cleanup(instance: str, runtime_dir: Path) -> None:
    """Removes the segments and the runtime directory of an instance; what is not there is no error.

    The caller holds the instance's lock: processes that still use the segments would go on with what nobody else sees.
    """
    prefix = f"shardbroker-{instance}-"
    for path in SEGMENTS.iterdir():
        if path.name.startswith(prefix) and not path.name.startswith(prefix + LEFT_OVER) and not path.is_dir():
            segment.unlink("/" + path.name)
    shutil.rmtree(runtime_dir, ignore_errors=True)


def set_aside(instance: str, runtime_dir: Path) -> tuple[LeftOver, ...]:
    """Gives the rings of a broker that was killed other names, so that what was under way in them is not lost with them.

    Returns all that there are, oldest first: those of earlier times too, if nobody has come to dealing with them. The caller holds
    the instance's lock.
    """
    prefix = f"shardbroker-{instance}-"
    inboxes = sorted(SEGMENTS.glob(f"{prefix}inbox-*"), key=_number)
    if inboxes:
        mark = f"{prefix}{LEFT_OVER}{time.time_ns():020}-"
        with suppress(FileNotFoundError):
            (runtime_dir / "spill").rename(SEGMENTS / f"{mark}spill")
        for path in inboxes:
            path.rename(SEGMENTS / f"{mark}{_number(path)}")
    found: dict[str, list[Path]] = {}
    for path in SEGMENTS.glob(f"{prefix}{LEFT_OVER}*"):
        found.setdefault(path.name.rpartition("-")[0], [])
        if not path.name.endswith("-spill"):
            found[path.name.rpartition("-")[0]].append(path)
    return tuple(
        LeftOver(tuple("/" + path.name for path in sorted(found[mark], key=_number)), SEGMENTS / f"{mark}-spill")
        for mark in sorted(found)
    )


def forget_left_over(left_over: tuple[LeftOver, ...]) -> None:
    """What was in these rings is where it belongs."""
    for one in left_over:
        for name in one.inboxes:
            segment.unlink(name)
        shutil.rmtree(one.spill_dir, ignore_errors=True)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
