"""Messages a second of a rule: now, the highest, and of the last five minutes."""

from collections import deque

__all__ = ["Rate"]

SHORT_S = 5
"""Seconds of the rate now: a single burst does not look like a rate."""
LONG_S, LONG_STEP_S = 300, 10
"""Seconds of the long rate, and between its samples: 30 numbers a rule."""


class Rate:
    """Counts are sampled once a second."""

    __slots__ = ("_long", "_short", "_ticks", "began", "last5m", "max", "now")

    def __init__(self, count: int = 0) -> None:
        self._short: deque[int] = deque([count], SHORT_S + 1)
        self._long: deque[int] = deque([count], LONG_S // LONG_STEP_S + 1)
        self._ticks = 0
        self.began: int | None = None
        """Second of a clock of the caller at which its samples began."""
        self.now = self.max = self.last5m = 0.0

    def tick(self, count: int) -> None:
        """Notes the count after a second; where it has not changed for five minutes, nothing has to be done."""
        self._ticks += 1
        self._short.append(count)
        self.now = (count - self._short[0]) / (len(self._short) - 1)
        self.max = max(self.max, self.now)
        if self._ticks % LONG_STEP_S == 0:
            self._long.append(count)
        passed_s = (len(self._long) - 1) * LONG_STEP_S + self._ticks % LONG_STEP_S
        self.last5m = (count - self._long[0]) / passed_s

    @property
    def count(self) -> int:
        """Returns the count of the last sample."""
        return self._short[-1]

    def catch_up(self, second: int) -> None:
        """Samples the last count up to a second of that clock, at the cost of a full window at most. `now` and `last5m` are 0."""
        self.began = second if self.began is None else self.began
        seconds = second - self.began
        missed = seconds - self._ticks
        if missed > 0:
            long = seconds // LONG_STEP_S - self._ticks // LONG_STEP_S
            self._short.extend([self.count] * min(missed, SHORT_S + 1))
            self._long.extend([self._long[-1]] * min(long, LONG_S // LONG_STEP_S + 1))
            self._ticks = seconds

    def figures(self) -> dict[str, float]:
        """Returns the rates by the names of EMQX."""
        rates = {"matched.rate": self.now, "matched.rate.max": self.max, "matched.rate.last5m": self.last5m}
        return {name: round(rate, 2) for name, rate in rates.items()}
