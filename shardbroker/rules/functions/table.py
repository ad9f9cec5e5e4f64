"""The table of all functions."""

from collections.abc import Callable
from dataclasses import dataclass

from shardbroker.rules.values import Value

__all__ = ["FUNCTIONS", "Function"]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of SQL.

    `call` takes evaluated arguments, and the columns of the event (a dict) before them if `needs_columns`. It raises
    `EvaluationError`; any other exception counts as one. The result of a pure function depends on its arguments alone, so a call
    with constants is evaluated when the rule is compiled.
    """

    call: Callable[..., Value]
    arities: tuple[int, ...]
    is_pure: bool = True
    needs_columns: bool = False


FUNCTIONS: dict[str, Function] = {}
"""By name, in lower case."""
