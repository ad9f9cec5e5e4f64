"""Keys of a terminal program that redraws itself: `Keys` reads them while it waits, and ends at SIGINT without an exception."""

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType, TracebackType
from typing import Any

__all__ = ["ESCAPE", "Keys"]

ESCAPE = "\x1b"
SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
"""What an arrow and the like send."""
READ_MAX = 64
"""Bytes of one read: more than a hand types at once; the rest is read at the next one."""


class Keys:
    """Keys as they are pressed, without echo. Without a terminal there are none, and only the time passes."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: Any = None

    def __enter__(self) -> "Keys":
        # A KeyboardInterrupt that arrives in a destructor while a screen is drawn would be lost: the signal writes to a pipe.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._handler = signal.signal(signal.SIGINT, _nothing)
        if self._fd is not None:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._fd is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGINT, self._handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, seconds: float) -> str | None:
        """Returns what was typed: empty after so many seconds, None at SIGINT. Arrows and the like, which send several characters
        after an escape, are left out."""
        fds = [self._reader] if self._fd is None else [self._reader, self._fd]
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select(fds, [], [], left)
            if self._reader in ready:
                if signal.SIGINT in os.read(self._reader, READ_MAX):
                    return None
            elif ready:
                typed = os.read(ready[0], READ_MAX).decode(errors="ignore")
                if not typed:  # the terminal is gone
                    return None
                if keys := SEQUENCE.sub("", typed):
                    return keys
        return ""


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handles a signal that is seen by the pipe."""
