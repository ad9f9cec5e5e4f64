"""Progress of a run: one line that is redrawn in a terminal, or a line a second elsewhere."""

import sys
import time
from typing import TextIO

__all__ = ["Live"]

EVERY_S = 1.0
EVERY_TERMINAL_S = 0.25


class Live:
    """Call it with a snapshot of the counters (Share.snapshot) as often as needed. Context manager that ends the line."""

    def __init__(self, clients: int, prefix: str = "", out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._every = EVERY_TERMINAL_S if self._terminal else EVERY_S
        self._clients = clients
        self._prefix = prefix
        self._before: dict[str, float] = {}
        self._before_at = time.monotonic()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._terminal and self._before:
            self._write("\r\x1b[K")

    def __call__(self, snapshot: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self._before_at < self._every:
            return
        line = self.line(snapshot, now - self._before_at)
        self._before, self._before_at = snapshot, now
        self._write(f"\r{line}\x1b[K" if self._terminal else line + "\n")

    def line(self, snapshot: dict[str, float], since_s: float) -> str:
        """Returns the progress line, `since_s` after the previous one."""
        parts = [f"{snapshot['elapsed']:5.1f} s"]
        if not snapshot["running"] or snapshot["opened"] < self._clients:
            parts.append(f"{snapshot['opened']:,.0f} of {self._clients:,} connected")
        else:
            parts.append(f"{snapshot['opened'] - snapshot['gone']:,.0f} clients")
        for name, title in (("published", "sent"), ("delivered", "received"), ("changes", "changes")):
            if snapshot[name]:
                rate = (snapshot[name] - self._before.get(name, 0)) / since_s
                parts.append(f"{title} {snapshot[name]:,.0f} ({rate:,.0f}/s)")
        if snapshot["p99_us"]:
            parts.append(f"p99 {snapshot['p99_us'] / 1000:.2f} ms")
        for name in ("failed", "gone"):
            if snapshot[name]:
                parts.append(f"{snapshot[name]:,.0f} {name}")
        return self._prefix + "  ".join(parts)

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            pass  # the reader of the output has closed it; the run continues
