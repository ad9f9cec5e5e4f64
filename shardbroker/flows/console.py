"""Action `console`: a line in the log of the broker for each row, at a bounded rate."""

import json
import time
from collections.abc import Callable

from shardbroker.logs.phrases import Line, log_line
from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["Console"]

LINES_A_SECOND = 10
"""Of one rule."""
SHOWN_MAX = 4096
"""Characters of a row: what clients send must not fill the log."""


class Console:
    """write: writes a line of level info."""

    def __init__(self, rule: str, write: Callable[[Line], None]) -> None:
        self._rule, self._write = rule, write
        self._second, self._lines, self._left_out = 0, 0, 0

    def run(self, row: dict[str, Value], columns: dict[str, Value], journal: int) -> bool:
        """Writes a line; returns False if there were too many in this second."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= LINES_A_SECOND:
            self._left_out += 1
            return False
        self._lines += 1
        shown = self.show(row, columns)["row"]
        suppressed = {"suppressed": self._left_out} if self._left_out else {}
        self._write(log_line("rule output", rule=self._rule, topic=columns.get("topic", ""), row=shown, **suppressed))
        self._left_out = 0
        return True

    def show(self, row: dict[str, Value], columns: dict[str, Value]) -> dict[str, str]:
        """Returns the row as run() would write it."""
        try:
            shown = str(text_of(row))
        except EvaluationError:
            shown = json.dumps(row, default=repr)
        return {"row": shown[:SHOWN_MAX]}
