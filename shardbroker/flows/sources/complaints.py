"""Lines about records and servers of a source, at a bounded rate."""

import time
from collections.abc import Callable

from shardbroker.logs.phrases import Line, log_line

__all__ = ["Complaints"]

COMPLAIN_S = 10.0
"""Between two lines about records of one source that have failed."""
SHOWN_MAX = 300
"""Characters of a reason."""


class Complaints:
    """Of one source. write: a line of a level."""

    def __init__(self, id: str, write: Callable[[str, Line], None]) -> None:
        self._id, self._write = id, write
        self._record_s = float("-inf")
        self._suppressed = 0
        self._is_lost = False

    def record_failed(self, reason: str) -> None:
        """Notes a record that is not possible in this broker."""
        now_s = time.monotonic()
        if now_s - self._record_s < COMPLAIN_S:
            self._suppressed += 1
            return
        self._record_s = now_s
        more = {"suppressed": self._suppressed} if self._suppressed else {}
        self._suppressed = 0
        self._write("error", log_line("record not taken over", source=self._id, reason=reason[:SHOWN_MAX], **more))

    def lost(self, reason: str) -> None:
        """Notes that the server cannot be used; a line once until it can be again."""
        if not self._is_lost:
            self._is_lost = True
            self._write("warning", log_line("source not available", source=self._id, reason=reason[:SHOWN_MAX]))

    def reached(self) -> None:
        """Notes that the server can be used."""
        if self._is_lost:
            self._is_lost = False
            self._write("info", log_line("source available again", source=self._id))
