"""Progress of a run: two lines that are redrawn in a terminal, with a bar and the time at which the run ends, or a line a second
elsewhere.

    measuring   ████████████████████░░░░░░░░░░░░░  62%  12 s left, ends 14:05:30
    sent 340,123/s  received 340,123/s  p99 0.20 ms  10 clients
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from perf.plan import ARRIVALS, Plan

__all__ = ["Live", "Progress", "duration", "fitted", "redraws", "time_of_day"]

EVERY_S = 1.0
EVERY_TERMINAL_S = 0.25
COLUMNS = 80
"""Of a terminal that does not report its size."""
BAR_MIN, BAR_MAX = 6, 40
"""Columns of a bar; with fewer, it is left out."""
GAP = "  "
PHASE_WIDTH = len("connecting")
GREEN, PLAIN = "\x1b[32m", "\x1b[0m"


class Progress:
    """The phase of a run, the share of it that is done, and the seconds that are left.

    `done` and `left_s` are None where they are not known: for runs without a limit, and before the first client is connected.
    """

    def __init__(self, plan: Plan, snapshot: dict[str, float]) -> None:
        self.phase, self.done, self.left_s = "connecting", None, None  # type: str, float | None, float | None
        elapsed = snapshot["elapsed"]
        if not snapshot["running"]:
            opened = snapshot["opened"] + snapshot["failed"]
            if plan.scenario in ARRIVALS or opened >= plan.clients:
                self.phase = "preparing"
                return
            self.done = opened / plan.clients
            if opened:
                self.left_s = elapsed * (1 - self.done) / self.done
            return
        self.phase = "measuring"
        done, of = _messages(plan, snapshot)
        shares = [done / of] if of else []
        left = [elapsed * (of - done) / done] if of and done else []
        if plan.seconds:
            shares.append(elapsed / plan.seconds)
            left.append(plan.seconds - elapsed)
        if not shares:
            return
        self.done = min(1.0, max(shares))
        self.left_s = max(0.0, min(left, default=0.0))
        if self.done >= 1:
            self.phase = "finishing"


def _messages(plan: Plan, snapshot: dict[str, float]) -> tuple[float, int]:
    """Returns how many messages or connections are done, and of how many; 0 of 0 without a limit."""
    if plan.scenario in ARRIVALS:
        return snapshot["changes"], plan.messages
    if plan.scenario == "retained":
        return snapshot["delivered"], plan.subscribers * plan.topics
    return (snapshot["published"], plan.quota * plan.publishers) if plan.messages and plan.publishers else (0, 0)


class Live:
    """Call it with a snapshot of the counters (Share.snapshot) as often as needed. Context manager that removes what it has drawn.

    `heading` is a line above the bar, made of parts of which the last ones are left out if they do not fit.
    """

    def __init__(self, plan: Plan, heading: Sequence[str] = (), out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._redraws = redraws(self._out)
        self._colours = self._redraws and not os.environ.get("NO_COLOR")
        self._full, self._empty = ("█", "░") if (self._out.encoding or "").lower().startswith("utf") else ("#", "-")
        self._every = EVERY_TERMINAL_S if self._redraws else EVERY_S
        self._plan = plan
        self._heading = heading
        self._lines = 0
        self._end_shown = False
        self._before: dict[str, float] = {}
        self._before_at = time.monotonic()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lines:
            self._write(self._home() + "\x1b[J")

    def __call__(self, snapshot: dict[str, float]) -> None:
        now = time.monotonic()
        since_s = now - self._before_at
        if since_s < self._every:
            return
        progress = Progress(self._plan, snapshot)
        if self._redraws:
            lines = self.drawn(progress, snapshot, since_s, self._columns())
            self._write(self._home() + "".join(f"{line}\x1b[K\n" for line in lines))
            self._lines = len(lines)
        else:
            self._write(self.line(progress, snapshot, since_s) + "\n")
        self._before, self._before_at = snapshot, now

    def drawn(self, progress: Progress, snapshot: dict[str, float], since_s: float, columns: int) -> list[str]:
        """Returns the lines for a terminal, `since_s` after the previous ones. The last column stays free: some terminals wrap a
        line that fills it."""
        width = max(1, columns - 1)
        figures = [*self._faults(snapshot), *(f"{name} {rate:,.0f}/s" for name, _, rate in self._rates(snapshot, since_s))]
        figures += [*self._p99(snapshot), self._clients(snapshot)]
        lines = [fitted(self._heading, width, ", ")] if self._heading else []
        return [*lines, self._bar(progress, snapshot["elapsed"], width), fitted(figures, width)]

    def line(self, progress: Progress, snapshot: dict[str, float], since_s: float) -> str:
        """Returns the line for a file, `since_s` after the previous one. The first one of which the end is known has the end."""
        parts = [f"{snapshot['elapsed']:5.1f} s", self._clients(snapshot)]
        parts += [f"{name} {total:,.0f} ({rate:,.0f}/s)" for name, total, rate in self._rates(snapshot, since_s)]
        parts += [*self._p99(snapshot), *self._faults(snapshot)]
        if progress.phase == "measuring" and progress.left_s is not None and not self._end_shown:
            self._end_shown = True
            parts.append(f"ends {time_of_day(progress.left_s)}")
        return GAP.join(parts)

    def _bar(self, progress: Progress, elapsed_s: float, width: int) -> str:
        if progress.done is None:
            endless = ["ends with Ctrl-C"] if progress.phase == "measuring" else []
            return fitted([progress.phase, f"{duration(elapsed_s)} so far", *endless], width)
        parts = [f"{int(progress.done * 100):3}%"]
        if progress.left_s is not None and progress.phase != "finishing":
            ends = f"ends {time_of_day(progress.left_s)}"
            left = f"{duration(progress.left_s)} left, {ends}"
            room = width - PHASE_WIDTH - len(GAP) * 3 - BAR_MIN - len(parts[0])
            parts.append(left if len(left) <= room else ends)
        tail = GAP.join(parts)
        size = min(BAR_MAX, width - PHASE_WIDTH - len(tail) - 2 * len(GAP))
        if size < BAR_MIN:
            return fitted([progress.phase, *reversed(parts)], width)
        full = int(size * progress.done)
        bar = self._full * full + self._empty * (size - full)
        return f"{progress.phase:<{PHASE_WIDTH}}{GAP}{f'{GREEN}{bar}{PLAIN}' if self._colours else bar}{GAP}{tail}"

    def _clients(self, snapshot: dict[str, float]) -> str:
        if not snapshot["running"] or snapshot["opened"] < self._plan.clients:
            return f"{snapshot['opened']:,.0f} of {self._plan.clients:,} connected"
        return f"{snapshot['opened'] - snapshot['gone']:,.0f} clients"

    def _rates(self, snapshot: dict[str, float], since_s: float) -> list[tuple[str, float, float]]:
        """Returns (name, total, a second) of what has been counted."""
        found = []
        for name, title in (("published", "sent"), ("delivered", "received"), ("changes", "changes")):
            if snapshot[name]:
                found.append((title, snapshot[name], (snapshot[name] - self._before.get(name, 0)) / since_s))
        return found

    def _p99(self, snapshot: dict[str, float]) -> list[str]:
        return [f"p99 {snapshot['p99_us'] / 1000:.2f} ms"] if snapshot["p99_us"] else []

    def _faults(self, snapshot: dict[str, float]) -> list[str]:
        return [f"{snapshot[name]:,.0f} {name}" for name in ("failed", "gone") if snapshot[name]]

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or COLUMNS
        except OSError:
            return COLUMNS

    def _home(self) -> str:
        """Returns what moves the cursor to the first of the lines that are drawn."""
        return f"\r\x1b[{self._lines}A" if self._lines else ""

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            pass  # the reader of the output has closed it; the run continues


def redraws(out: TextIO) -> bool:
    """Returns whether lines can be redrawn: in a terminal that understands escape codes."""
    return out.isatty() and os.environ.get("TERM") != "dumb"


def fitted(parts: Sequence[str], width: int, gap: str = GAP) -> str:
    """Returns the parts in a line of `width` columns, without the last ones if they do not fit; the first one is cut."""
    line = parts[0][:width] if parts else ""
    for part in parts[1:]:
        if len(line) + len(gap) + len(part) > width:
            break
        line += gap + part
    return line


def duration(seconds: float) -> str:
    """Returns a duration such as 12 s, 2 min 05 s, 1 h 02 min, rounded up: 0 s are left at the end alone."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def time_of_day(left_s: float) -> str:
    """Returns the local time in `left_s` seconds, such as 14:05:30, with the date if that is another day."""
    now = time.time()
    then = time.localtime(now + left_s)
    return time.strftime("%H:%M:%S" if then.tm_yday == time.localtime(now).tm_yday else "%Y-%m-%d %H:%M:%S", then)
