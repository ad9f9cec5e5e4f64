"""What all sections of the schema have in common."""

from pydantic import BaseModel, ConfigDict

__all__ = ["LEVELS_MAX", "LIMIT_MAX", "LONGEST_WAIT_S", "SHORTEST_S", "Section"]

SHORTEST_S = 0.001
"""Least duration of a limit, seconds: timers count milliseconds, and 0 ms would mean no limit."""

LONGEST_WAIT_S = 86400.0
"""Longest wait for a peer or a process, seconds: a day stands for ever, and still fits every timer."""

LIMIT_MAX = 2**31 - 1
"""Largest limit on a count, short of none: what a signed 32-bit counter holds."""

LEVELS_MAX = 65535
"""Levels of the longest topic."""


class Section(BaseModel):
    """Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
