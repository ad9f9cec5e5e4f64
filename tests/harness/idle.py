"""Processes that have nothing to do: whether they sleep."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["never_asleep"]

SAMPLES, APART_S = 4, 0.005
PATIENCE_S = 10.0
"""For what a process still has to do, such as to remove the subscriptions of the last clients."""


def never_asleep(pids: Iterable[int], patience_s: float = PATIENCE_S) -> set[int]:
    """Returns those of the processes that are never found asleep until `patience_s` is over.

    The scheduler's state of a process is looked at several times. An idle one sleeps in the kernel nearly always. One that spins is
    runnable (R) each time, also on a busy machine, where it uses little CPU because it waits for a core: a share of CPU time would
    need a longer look there. Usually one round of samples is enough.
    """
    left = set(pids)
    deadline = time.monotonic() + patience_s
    while left and time.monotonic() < deadline:
        runnable = dict.fromkeys(left, 0)
        for _ in range(SAMPLES):
            for pid in left:
                runnable[pid] += _state(pid) == "R"
            time.sleep(APART_S)
        left = {pid for pid, times in runnable.items() if times > SAMPLES // 2}
    return left


def _state(pid: int) -> str:
    """Returns the letter of proc(5), or an empty text for a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
