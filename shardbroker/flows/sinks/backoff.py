"""The delay between attempts to reach a server."""

from collections.abc import Callable

from shardbroker.connectors.connector import retry_delay_s

__all__ = ["Backoff"]


class Backoff:
    """uniform: random.uniform, or one of a test."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self.failures = 0
        """Failures in a row."""

    def next_s(self) -> float:
        """Returns the delay before the next attempt, and counts the failure."""
        self.failures += 1
        return retry_delay_s(self.failures, self._uniform)

    def reset(self) -> None:
        """Notes a success."""
        self.failures = 0
