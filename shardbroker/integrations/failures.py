"""Failures of authenticators, sources of rules and programs, as the log shows them."""

from collections.abc import Callable

from shardbroker.access.contract import BackendError
from shardbroker.connectors import errors

__all__ = ["Report", "describe"]

Report = Callable[[str, str], None]
"""(name of the back end, what went wrong)"""


def describe(error: Exception) -> str:
    """Returns what went wrong, in one line. Texts of libraries may hold what a client sent, so only the broker's own appear."""
    return str(error) if isinstance(error, BackendError) else errors.describe(error)
