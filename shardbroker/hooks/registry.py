"""The chains of one worker: callbacks by point and priority, and the costs of each."""

import time
from collections.abc import Callable
from typing import Any

from shardbroker.hooks.contract import KEEP, Outcome
from shardbroker.hooks.points import POINTS
from shardbroker.logs.phrases import Line, log_line

__all__ = ["BEHIND_ALL", "ON_ERROR", "PRIORITY", "PRIORITY_MAX", "Callback", "Registry"]

PRIORITY = 500
"""The default priority of a callback."""
PRIORITY_MAX = 1000
"""The highest priority, which is called first; the lowest is 0, as in EMQX."""
BEHIND_ALL = -1
"""The priority of callbacks of the broker itself: below those of plugins."""
ON_ERROR = ("deny", "ignore")
"""Effects of a failed callback at a point that decides: it refuses, or it is skipped as at other points."""
SLOW_S = 0.1
"""A longer call is logged: it has blocked all clients of the worker."""
LOG_INTERVAL_S = 10.0
"""Minimum interval between two log lines about one callback."""
REASON_MAX = 300
"""Limit of an exception's text in a log line, characters."""


_FAILED = Outcome(False)
"""The outcome of a failed callback. At points that do not decide it continues, with the old accumulator."""


class Callback:
    """A function in the chain of one point."""

    __slots__ = (
        "_logged_at", "_untold", "calls", "errors", "function", "name", "on_error", "owner", "point", "priority", "seconds",
        "slowest",
    )  # fmt: skip

    def __init__(self, owner: str, point: str, function: Callable[..., Any], priority: int, on_error: str = "deny") -> None:
        self.owner, self.point, self.function, self.priority, self.on_error = owner, point, function, priority, on_error
        self.name = f"{owner}:{getattr(function, '__qualname__', type(function).__name__)}"
        self.calls = self.errors = 0
        self.seconds = self.slowest = 0.0
        self._logged_at = -LOG_INTERVAL_S
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

    def may_log(self, now: float) -> bool:
        """Returns whether a line may be logged; one that may not is counted in `untold`."""
        if now - self._logged_at < LOG_INTERVAL_S:
            self._untold += 1
            return False
        self._logged_at = now
        return True

    def fields(self) -> dict[str, object]:
        """Returns what each of its lines has. The number of suppressed lines starts from 0 again."""
        found: dict[str, object] = {"point": self.point, "callback": self.name}
        if self._untold:
            found["suppressed"] = self._untold
        self._untold = 0
        return found


class Registry:
    """The chains of one worker. `report` takes (level, line) for the log; `on_change` the mask of the points with callbacks."""

    def __init__(self, report: Callable[[str, Line], None], on_change: Callable[[int], None] = lambda mask: None) -> None:
        self._report, self._on_change = report, on_change
        self._chains: dict[str, tuple[Callback, ...]] = {name: () for name in POINTS}
        self.failed = False
        """Whether a failed callback ended the last fold."""

    def add(self, callbacks: list[Callback]) -> None:
        """Adds callbacks after those of the same priority."""
        for one in callbacks:
            self._chains[one.point] = tuple(sorted((*self._chains[one.point], one), key=lambda other: -other.priority))
        self._changed()

    def remove(self, callbacks: list[Callback]) -> None:
        """Removes callbacks."""
        for one in callbacks:
            self._chains[one.point] = tuple(other for other in self._chains[one.point] if other is not one)
        self._changed()

    def _changed(self) -> None:
        self._on_change(sum(POINTS[name].bit for name, chain in self._chains.items() if chain))

    def figures(self) -> list[dict[str, Any]]:
        """Returns the figures of all callbacks, in calling order."""
        return [one.figures() for chain in self._chains.values() for one in chain]

    def fire(self, point: str, *arguments: Any) -> None:
        """Calls the callbacks of a point without an accumulator, until one stops the chain."""
        for callback in self._chains[point]:
            outcome = self._call(callback, arguments, None)
            if outcome is not None and outcome.stops:
                return

    def fold(self, point: str, accumulator: Any, check: Callable[[Any], Any], *arguments: Any, failed: Any = KEEP) -> Any:
        """Calls the callbacks of a point with an accumulator; returns its last value.

        `check` converts a new value to its final form, or raises. `failed`: for a point that decides, the value with which a failed
        callback ends the chain, since its decision is unknown.
        """
        self.failed = False
        for callback in self._chains[point]:
            outcome = self._call(callback, (*arguments, accumulator), check)
            if outcome is None:
                continue
            if outcome is _FAILED and failed is not KEEP and callback.on_error == "deny":
                self.failed = True
                return failed
            if outcome.accumulator is not KEEP:
                accumulator = outcome.accumulator
            if outcome.stops:
                break
        return accumulator

    def _call(self, callback: Callback, arguments: tuple[Any, ...], check: Callable[[Any], Any] | None) -> Outcome | None:
        """Returns the outcome of a callback, or _FAILED if it raises."""
        began = time.perf_counter()
        callback.calls += 1
        try:
            said = callback.function(*arguments)
            if said is None:
                return None
            if not isinstance(said, Outcome):
                raise TypeError(f"result: must be None, ok(...) or stop(...), got {type(said).__name__}")
            if said.accumulator is KEEP:
                return said
            if check is None:
                raise TypeError(f"result: must be None or stop() at {callback.point}, which has no accumulator")
            return Outcome(said.stops, check(said.accumulator))
        except BaseException as error:  # includes sys.exit(): it ends the callback, not the worker
            callback.errors += 1
            if callback.may_log(time.monotonic()):
                reason = f"{type(error).__name__}: {str(error)[:REASON_MAX]}"
                self._report("error", log_line("hook callback failed", **callback.fields(), reason=reason))
            return _FAILED
        finally:
            took = time.perf_counter() - began
            callback.seconds += took
            callback.slowest = max(callback.slowest, took)
            if took > SLOW_S and callback.may_log(time.monotonic()):
                self._report("warning", log_line("hook callback slow", **callback.fields(), took=f"{took:.2f}s"))
