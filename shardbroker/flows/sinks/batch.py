"""Rows that are written together."""

from dataclasses import dataclass

from shardbroker.flows.sinks.row import Row

__all__ = ["Batch"]


@dataclass(slots=True, eq=False)
class Batch:
    """A batch of one lane."""

    lane: int
    rows: list[Row]
    attempts: int = 0
    """Attempts to write it that have failed."""

    def halves(self) -> tuple["Batch", "Batch"]:
        """Returns two batches with its rows, in order: a row that the server refuses is alone after log2(n) such steps."""
        middle = len(self.rows) // 2
        return Batch(self.lane, self.rows[:middle], self.attempts), Batch(self.lane, self.rows[middle:], self.attempts)
