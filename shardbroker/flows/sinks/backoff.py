"""The delay between attempts to reach a server."""

from collections.abc import Callable

__all__ = ["Backoff"]

MIN_S, MAX_S = 0.1, 15.0
"""The delay doubles from the first to the second."""
JITTER = 0.5
"""Least share of the delay that is waited: actions that lost the same server do not return to it at the same time."""


class Backoff:
    """uniform: random.uniform, or one of a test."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self.failures = 0
        """Failures in a row."""

    def next_s(self) -> float:
        """Returns the delay before the next attempt, and counts the failure."""
        longest = min(MAX_S, MIN_S * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return longest * self._uniform(JITTER, 1.0)

    def reset(self) -> None:
        """Notes a success."""
        self.failures = 0
