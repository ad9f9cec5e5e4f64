"""Waiting for what comes by itself, and processes that stand still meanwhile."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STOP_S = 20.0
"""Longest time until all threads of a process are stopped: one may wait for a disk."""


def until(look: Callable[[], Any], describe: Callable[[], str] = str, timeout_s: float = 10.0) -> Any:
    """Looks again and again until there is something, and returns it; the registry, for one, is written every 200 ms.

    `describe` says what there is instead, if it does not come.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"it never came\n{describe()}"
        time.sleep(0.02)
    return found


def stop(pid: int) -> None:
    """Stops a process by SIGSTOP; returns when it stands still. On a busy machine threads run on for a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _stands_still(pid), timeout_s=STOP_S)


def stop_all(pids: Iterable[int]) -> None:
    """Likewise for several processes, but for those that have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            stop(pid)


def _stands_still(pid: int) -> bool:
    """Returns whether all threads of a process are stopped, or have ended."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if path.read_text().rpartition(") ")[2][0] not in "TtZX":
                return False
    return True


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still, by SIGSTOP, unless it is killed meanwhile."""
    stop(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
