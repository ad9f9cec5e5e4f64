"""The clock of a simulation: events in the order of their times, and of their creation where times are equal."""

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["Events"]


class Events:
    """A queue of calls and the time of the last one."""

    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def after(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Calls a function after a delay."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._number, call, arguments))

    def run(self, duration_ms: int) -> int:
        """Makes all calls of a span of time; returns how many there were."""
        end_us, calls = self.now_us + duration_ms * 1000, 0
        while self._heap and self._heap[0][0] <= end_us:
            self.now_us, _, call, arguments = heapq.heappop(self._heap)
            call(*arguments)
            calls += 1
        self.now_us = end_us
        return calls
