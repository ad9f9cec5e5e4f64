"""Parts that all sections of the schema share: bounds, marks, the base class."""

from pydantic import BaseModel, ConfigDict

__all__ = ["LEVELS_MAX", "LIMIT_MAX", "LONGEST_WAIT_S", "RESTART", "SHORTEST_S", "Live", "Section"]

SHORTEST_S = 0.001
"""Least duration of a limit, seconds: timers count milliseconds, and 0 ms would mean no limit."""

LONGEST_WAIT_S = 86400.0
"""Longest wait for a peer or a process, seconds: a day is practically forever, and still fits every timer."""

LIMIT_MAX = 2**31 - 1
"""Largest limit on a count other than no limit: the largest signed 32-bit number."""

LEVELS_MAX = 65535
"""Most levels of a topic."""


class Live:
    """Mark of a key or a section in `Annotated`: a change takes effect while the broker runs, in the processes of these roles
    (shm/roles.py; SUPERVISOR of shm/channels.py). Without a role the change needs a restart. The innermost mark of a key counts."""

    def __init__(self, *reaches: str) -> None:
        self.reaches = frozenset(reaches)


RESTART = Live()
"""Mark of a key or a section whose changes need a restart."""


class Section(BaseModel):
    """Base of all sections: unknown keys are rejected, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
