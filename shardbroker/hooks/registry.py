"""The chains of one worker: callbacks by point and priority, and what each of them has cost."""

import time
from collections.abc import Callable
from typing import Any

from shardbroker.hooks.contract import KEEP, Outcome
from shardbroker.hooks.points import POINTS

__all__ = ["ON_ERROR", "PRIORITY", "PRIORITY_MAX", "Callback", "Registry"]

PRIORITY = 500
"""Of a callback that says nothing about it."""
PRIORITY_MAX = 1000
"""Priorities go from 0 to this, as EMQX's; the highest comes first."""
ON_ERROR = ("deny", "ignore")
"""What a callback that fails does at a point that decides: it refuses, unless it says that it is to be skipped as at the others."""
SLOW_S = 0.1
"""A call that takes longer is told: all clients of the worker have waited for it."""
TELL_S = 10.0
"""Least time between two log lines about one callback."""
REASON_MAX = 300
"""Characters of an exception in a log line."""


_FAILED = Outcome(False)
"""Of a callback that failed. Where nothing is decided it is an outcome like others: go on, with the accumulator as it is."""


class Callback:
    """A function in the chain of one point."""

    __slots__ = (
        "_told_at", "_untold", "calls", "errors", "function", "name", "on_error", "owner", "point", "priority", "seconds",
        "slowest",
    )  # fmt: skip

    def __init__(self, owner: str, point: str, function: Callable[..., Any], priority: int, on_error: str = "deny") -> None:
        self.owner, self.point, self.function, self.priority, self.on_error = owner, point, function, priority, on_error
        self.name = f"{owner}:{getattr(function, '__qualname__', type(function).__name__)}"
        self.calls = self.errors = 0
        self.seconds = self.slowest = 0.0
        self._told_at = -TELL_S
        self._untold = 0

    def figures(self) -> dict[str, Any]:
        return {
            "point": self.point,
            "callback": self.name,
            "plugin": self.owner,
            "priority": self.priority,
            "calls": self.calls,
            "errors": self.errors,
            "seconds": self.seconds,
            "slowest": self.slowest,
        }

    def line(self, text: str, now: float) -> str | None:
        """A line for the log; None if there was one just now."""
        if now - self._told_at < TELL_S:
            self._untold += 1
            return None
        more = f" ({self._untold} more lines about it were left out)" if self._untold else ""
        self._told_at, self._untold = now, 0
        return f"hook {self.point}, callback {self.name}: {text}{more}"


class Registry:
    """`tell` gets (level, text) for the log; `on_change` the mask of the points that have callbacks."""

    def __init__(self, tell: Callable[[str, str], None], on_change: Callable[[int], None] = lambda mask: None) -> None:
        self._tell, self._on_change = tell, on_change
        self._chains: dict[str, tuple[Callback, ...]] = {name: () for name in POINTS}
        self.failed = False
        """Whether the last fold ended with what stands for a failure."""

    def add(self, callbacks: list[Callback]) -> None:
        """Behind those of the same priority that are there."""
        for one in callbacks:
            self._chains[one.point] = tuple(sorted((*self._chains[one.point], one), key=lambda other: -other.priority))
        self._changed()

    def remove(self, callbacks: list[Callback]) -> None:
        """They are not called any more."""
        for one in callbacks:
            self._chains[one.point] = tuple(other for other in self._chains[one.point] if other is not one)
        self._changed()

    def _changed(self) -> None:
        self._on_change(sum(POINTS[name].bit for name, chain in self._chains.items() if chain))

    def figures(self) -> list[dict[str, Any]]:
        """Of every callback, in the order in which they are called."""
        return [one.figures() for chain in self._chains.values() for one in chain]

    def fire(self, point: str, *arguments: Any) -> None:
        """Calls those of a point without an accumulator, until one stops it."""
        for callback in self._chains[point]:
            said = self._call(callback, arguments, None)
            if said is not None and said.stops:
                return

    def fold(self, point: str, accumulator: Any, check: Callable[[Any], Any], *arguments: Any, failed: Any = KEEP) -> Any:
        """Calls those of a point with an accumulator; what it is then. `check` returns a new one as it may be used, or raises.
        `failed`: of a point that decides, what ends the chain in place of a callback that fails: nobody knows what it would say."""
        self.failed = False
        for callback in self._chains[point]:
            said = self._call(callback, (*arguments, accumulator), check)
            if said is None:
                continue
            if said is _FAILED and failed is not KEEP and callback.on_error == "deny":
                self.failed = True
                return failed
            if said.accumulator is not KEEP:
                accumulator = said.accumulator
            if said.stops:
                break
        return accumulator

    def _call(self, callback: Callback, arguments: tuple[Any, ...], check: Callable[[Any], Any] | None) -> Outcome | None:
        """What it says, or _FAILED. Nothing that it raises goes further."""
        began = time.perf_counter()
        callback.calls += 1
        try:
            said = callback.function(*arguments)
            if said is None:
                return None
            if not isinstance(said, Outcome):
                raise TypeError(f"it returned {type(said).__name__}; allowed are None, ok(...) and stop(...)")
            if said.accumulator is KEEP:
                return said
            if check is None:
                raise TypeError(f"it returned a new value, but callbacks of {callback.point} only look on")
            return Outcome(said.stops, check(said.accumulator))
        except BaseException as error:  # sys.exit() too: it ends the callback, not the worker
            callback.errors += 1
            self._say(callback, "error", f"{type(error).__name__}: {str(error)[:REASON_MAX]}")
            return _FAILED
        finally:
            took = time.perf_counter() - began
            callback.seconds += took
            callback.slowest = max(callback.slowest, took)
            if took > SLOW_S:
                self._say(callback, "warning", f"took {took:.2f} s, for which all clients of this worker waited")

    def _say(self, callback: Callback, level: str, text: str) -> None:
        line = callback.line(text, time.monotonic())
        if line is not None:
            self._tell(level, line)
