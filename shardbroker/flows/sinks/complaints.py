"""Lines about rows and servers, at a bounded rate: a server that is lost makes thousands of failures."""

import time
from collections.abc import Callable

from shardbroker.logs.phrases import Line, log_line

__all__ = ["Complaints"]

COMPLAIN_S = 10.0
"""Between two lines about rows of one action that have failed."""
SHOWN_MAX = 300
"""Characters of a reason."""


class Complaints:
    """Of one action. write: a line of a level."""

    def __init__(self, id: str, write: Callable[[str, Line], None]) -> None:
        self._id, self._write = id, write
        self._row_s = float("-inf")
        self._suppressed = 0
        self._is_lost = False

    def row_failed(self, journal: str, position: int, reason: str) -> None:
        """Notes a row that has failed for good."""
        now_s = time.monotonic()
        if now_s - self._row_s < COMPLAIN_S:
            self._suppressed += 1
            return
        self._row_s = now_s
        more = {"suppressed": self._suppressed} if self._suppressed else {}
        self._suppressed = 0
        place = {"action": self._id, "journal": journal, "position": position}
        self._write("error", log_line("row not written", **place, reason=reason[:SHOWN_MAX], **more))

    def lost(self, reason: str) -> None:
        """Notes that the server cannot be used; a line once until it can be again."""
        if not self._is_lost:
            self._is_lost = True
            self._write("warning", log_line("sink not available", action=self._id, reason=reason[:SHOWN_MAX]))

    def reached(self) -> None:
        """Notes that the server can be used."""
        if self._is_lost:
            self._is_lost = False
            self._write("info", log_line("sink available again", action=self._id))
