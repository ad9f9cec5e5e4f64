"""Waiting for what comes by itself, and processes that stand still meanwhile."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def until(look: Callable[[], Any], describe: Callable[[], str] = str, timeout_s: float = 10.0) -> Any:
    """Looks again and again until there is something, and returns it; the registry, for one, is written every 200 ms.

    `describe` says what there is instead, if it does not come.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"it never came\n{describe()}"
        time.sleep(0.02)
    return found


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still, by SIGSTOP, unless it is killed meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
