"""The hybrid clock: stamps that order events of all nodes, close to the wall clock, and never going back.

A stamp is Unix milliseconds shifted by 16 bits, plus a counter. Every frame carries the stamp of its sender, and the receiver's
next stamp is larger; so what caused another event has the smaller stamp, whatever the clocks of the machines show.
"""

__all__ = ["AHEAD_MS_MAX", "HybridClock", "stamp_of"]

COUNTER_BITS = 16
AHEAD_MS_MAX = 60_000
"""Stamps of peers whose clock is further ahead are ignored: one wrong clock must not move all others."""


def stamp_of(clock_ms: int) -> int:
    """Returns the first stamp of a millisecond."""
    return clock_ms << COUNTER_BITS


class HybridClock:
    """The clock of one node."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        """Largest stamp that was given or seen."""

    def now(self, clock_ms: int) -> int:
        """Returns a stamp that is larger than all stamps before."""
        self.last = max(self.last + 1, stamp_of(clock_ms))
        return self.last

    def witness(self, stamp: int, clock_ms: int) -> bool:
        """Takes a stamp of a peer; returns False if it is too far ahead of the wall clock and was ignored."""
        if stamp > stamp_of(clock_ms + AHEAD_MS_MAX):
            return False
        self.last = max(self.last, stamp)
        return True
