"""Records that rules leave to a reader behind the live stream, so that none is evaluated twice.

    counted by the live stream | by the reader behind           | by the live stream
                               ^ begin    ^ next                ^ end

The only action of a rule may have left the live stream (sinks/late.py). While it catches up, its reader counts for the rule, too,
and the live stream passes over these records. If the server is lost meanwhile, the live stream counts from there on: what messages
match is of interest then, and nothing else uses the time.
"""

from dataclasses import dataclass

__all__ = ["NEVER", "Deferral"]

NEVER = (1 << 63) - 1
"""Above all positions."""


@dataclass(slots=True)
class Deferral:
    """Of an action in one journal."""

    next: int
    """Position from which on the reader counts; a record that it reads again is below."""
    end: int = NEVER
    """Position from which on the live stream does."""

    @property
    def is_open(self) -> bool:
        """Whether the live stream passes over records."""
        return self.end == NEVER
