"""Log lines of the management plane, written in batches to standard error by a thread of its own.

Only the thread waits for the reader of standard error. Lines added meanwhile are gathered up to PENDING_MAX. Further ones are
dropped and counted, and the count is written in their place when there is room again.
"""

import os
import select
import sys
import threading
import time

from shardbroker.logs.lines import stamp
from shardbroker.logs.phrases import Line, log_line

__all__ = ["LEVELS", "Log"]

LEVELS = ("debug", "info", "warning", "error")
PENDING_MAX = 1 << 20
"""Bytes of lines kept for a slow standard error: some 7,000 lines."""
CLOSE_TIMEOUT_S = 1.0
"""Longest wait of close() for the remaining lines."""


class Log:
    """Gathers lines at `level` and above; flush() starts writing them."""

    def __init__(self, level: str = "info", descriptor: int | None = None) -> None:
        self.level = level
        """It may be changed at any time."""
        self._descriptor = sys.stderr.fileno() if descriptor is None else descriptor
        self._gathered = bytearray()
        self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        # A daemon thread: a reader that never resumes must not keep the process from ending.
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def enabled(self, level: str) -> bool:
        """Returns whether lines of this level are written."""
        return LEVELS.index(level) >= LEVELS.index(self.level)

    def add(self, level: str, text: Line, at_ms: int | None = None) -> None:
        """Adds a line, or counts it as dropped if too many are pending. `at_ms`: Unix milliseconds, by default now."""
        if not self.enabled(level):
            return
        at_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        line = f"{stamp(at_ms)} {level.upper()} {text}\n".encode(errors="backslashreplace")
        with self._changed:
            if not self._gather(line):
                self._dropped += 1

    def add_lines(self, lines: list[bytes]) -> None:
        """Adds whole lines, with their ends, whatever their level."""
        with self._changed:
            for number, line in enumerate(lines):
                if not self._gather(line):
                    self._dropped += len(lines) - number
                    break

    def _gather(self, line: bytes) -> bool:
        """Gathers a line, after a line with the number of lines dropped before it; False without room."""
        line = self._told() + line
        if len(self._gathered) + len(line) > PENDING_MAX:
            return False
        self._gathered += line
        self._dropped = 0
        return True

    def _told(self) -> bytes:
        """Returns a line with the number of dropped lines; empty if none were dropped."""
        if not self._dropped:
            return b""
        now_ms = time.time_ns() // 1_000_000
        line = log_line("log lines dropped", count=self._dropped, reason="standard error is too slow")
        return f"{stamp(now_ms)} WARNING {line}\n".encode()

    def flush(self) -> None:
        """Wakes the thread to write the added lines."""
        with self._changed:
            if self._gathered or self._dropped:
                self._changed.notify()

    def close(self) -> None:
        """Ends the thread when all is written, or after CLOSE_TIMEOUT_S."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _write(self) -> None:
        while batch := self._next_batch():
            try:
                self._write_all(batch)
            except OSError:
                pass  # standard error is closed; that is no reason to stop

    def _write_all(self, batch: bytes) -> None:
        while batch:
            try:
                batch = batch[os.write(self._descriptor, batch) :]
            except BlockingIOError:  # standard error was made non-blocking by the process that started the broker
                select.select([], [self._descriptor], [])

    def _next_batch(self) -> bytes:
        """Returns the lines added since the last call; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._gathered or self._dropped or self._closing)
            batch = bytes(self._gathered) + self._told()
            self._gathered.clear()
            self._dropped = 0
            return batch
