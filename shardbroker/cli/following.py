"""What lasts longer than a call, and replaces the manager meanwhile: its state, until it has ended."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardbroker.control import Control, ControlError

__all__ = ["ABSENT_S", "ENDED", "POLL_S", "connected", "is_absent", "states"]

POLL_S = 0.2
"""Between two calls."""
ABSENT_S = 120.0
"""Longest time without an answer: the manager is started again, or the whole broker after a drain."""
CALL_S = 90.0
"""Longest wait for an answer: the installed program, which an upgrade tries, may take 60 s."""
ENDED = ("done", "failed")
"""Phases and states of what has ended."""


def connected(data_dir: Path) -> Control:
    """Returns a control connection. Raises ControlError."""
    return Control(data_dir, by=f"ctl:{os.getuid()}", timeout_s=CALL_S)


def is_absent(error: ControlError) -> bool:
    """Returns whether the manager may answer later."""
    return error.code in ("BROKER_DOWN", "NOT_AVAILABLE")


def states(data_dir: Path, verb: str) -> Iterator[dict[str, Any]]:
    """Yields what a verb returns, again and again, until its `phase` is one of ENDED. Raises ControlError, also if the broker has
    forgotten what was begun, or does not answer for ABSENT_S."""
    until = time.monotonic() + ABSENT_S
    while True:
        try:
            with connected(data_dir) as control:
                state: dict[str, Any] = control.call(verb)
        except ControlError as error:
            if not is_absent(error) or time.monotonic() > until:
                raise
        else:
            until = time.monotonic() + ABSENT_S
            if state["phase"] == "none":
                raise ControlError("NOT_AVAILABLE", "the broker was started again meanwhile; the log has the reason")
            yield state
            if state["phase"] in ENDED:
                return
        time.sleep(POLL_S)
