"""Lines about rows, records and their servers, at a bounded rate: a server that is lost makes thousands of failures."""

import time
from collections.abc import Callable

from shardbroker.logs.phrases import Line

__all__ = ["SHOWN_MAX", "Complaints"]

COMPLAIN_S = 10.0
"""Between two lines about rows of one action, or records of one source, that have failed."""
SHOWN_MAX = 300
"""Characters of a reason."""


class Complaints:
    """Those of one action or source. write: a line of a level."""

    def __init__(self, id: str, write: Callable[[str, Line], None]) -> None:
        self._id, self._write = id, write
        self._failed_s = float("-inf")
        self._suppressed = 0
        self._is_lost = False

    def _failed(self, line: Callable[[dict[str, int]], Line]) -> None:
        """Writes a line about a failure, unless there was one recently. line: makes it, with how many were left out before."""
        now_s = time.monotonic()
        if now_s - self._failed_s < COMPLAIN_S:
            self._suppressed += 1
            return
        self._failed_s = now_s
        more = {"suppressed": self._suppressed} if self._suppressed else {}
        self._suppressed = 0
        self._write("error", line(more))

    def _lost(self, line: Line) -> None:
        """Writes a line about a server that cannot be used, once until it can be again."""
        if not self._is_lost:
            self._is_lost = True
            self._write("warning", line)

    def _reached(self, line: Line) -> None:
        """Writes a line about a server that can be used again."""
        if self._is_lost:
            self._is_lost = False
            self._write("info", line)
