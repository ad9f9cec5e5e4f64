"""Log lines of the management plane, written in batches to standard error by a thread of its own.

The thread alone waits for whoever reads standard error. Lines that come meanwhile gather up to PENDING_MAX, further ones are
counted, and the count is written where they would have stood, when there is room again.
"""

import os
import select
import sys
import threading
import time

from shardbroker.logs.lines import stamp

__all__ = ["LEVELS", "Log"]

LEVELS = ("debug", "info", "warning", "error")
PENDING_MAX = 1 << 20
"""Bytes of lines that wait for a slow standard error: some 7,000 lines."""
CLOSE_TIMEOUT_S = 1.0
"""How long close() waits for what is still to be written."""


class Log:
    """Gathers lines at `level` and above; flush() has them written."""

    def __init__(self, level: str = "info", descriptor: int | None = None) -> None:
        self.level = level
        """May be changed at any time."""
        self._descriptor = sys.stderr.fileno() if descriptor is None else descriptor
        self._gathered = bytearray()
        self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        # A daemon: a reader that never comes back must not keep the process from ending.
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def enabled(self, level: str) -> bool:
        """Whether lines of this level are written."""
        return LEVELS.index(level) >= LEVELS.index(self.level)

    def add(self, level: str, text: str, at_ms: int | None = None) -> None:
        """Adds a line, or counts it as dropped if too many wait. `at_ms`: Unix milliseconds, now if not given."""
        if not self.enabled(level):
            return
        at_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
        line = f"{stamp(at_ms)} {level.upper()} {text}\n".encode(errors="backslashreplace")
        with self._changed:
            if not self._gather(line):
                self._dropped += 1

    def add_lines(self, lines: list[bytes]) -> None:
        """Adds whole lines, with their ends, whatever their level says."""
        with self._changed:
            for number, line in enumerate(lines):
                if not self._gather(line):
                    self._dropped += len(lines) - number
                    break

    def _gather(self, line: bytes) -> bool:
        """Whether there is room for a line. Those that were dropped before it are told before it."""
        line = self._told() + line
        if len(self._gathered) + len(line) > PENDING_MAX:
            return False
        self._gathered += line
        self._dropped = 0
        return True

    def _told(self) -> bytes:
        """How many lines were dropped, as a line; nothing if none were."""
        if not self._dropped:
            return b""
        now_ms = time.time_ns() // 1_000_000
        return f"{stamp(now_ms)} WARNING {self._dropped} log lines dropped: standard error is too slow\n".encode()

    def flush(self) -> None:
        """Has the thread write what was added."""
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
                pass  # nobody reads any more; that is no reason to stop

    def _write_all(self, batch: bytes) -> None:
        while batch:
            try:
                batch = batch[os.write(self._descriptor, batch) :]
            except BlockingIOError:  # whoever started the broker made its standard error so
                select.select([], [self._descriptor], [])

    def _next_batch(self) -> bytes:
        """What was added since the last time; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._gathered or self._dropped or self._closing)
            batch = bytes(self._gathered) + self._told()
            self._gathered.clear()
            self._dropped = 0
            return batch
