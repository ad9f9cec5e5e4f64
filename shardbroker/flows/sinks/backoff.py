"""The delay between attempts to reach a server."""

from collections.abc import Callable

from shardbroker.connectors.connector import RETRY_MAX_S, RETRY_MIN_S, retry_delay_s

__all__ = ["Backoff"]


class Backoff:
    """uniform: random.uniform, or one of a test. least_s, most_s: limits of the delay."""

    def __init__(
        self, uniform: Callable[[float, float], float], least_s: float = RETRY_MIN_S, most_s: float = RETRY_MAX_S
    ) -> None:
        self._uniform, self._least_s, self._most_s = uniform, least_s, most_s
        self.failures = 0
        """Failures in a row."""

    def next_s(self) -> float:
        """Returns the delay before the next attempt, and counts the failure."""
        self.failures += 1
        return retry_delay_s(self.failures, self._uniform, self._least_s, self._most_s)

    def reset(self) -> None:
        """Notes a success."""
        self.failures = 0
