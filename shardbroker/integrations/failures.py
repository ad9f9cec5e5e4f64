"""Failures of authenticators, sources of rules and programs, as they are logged."""

from collections.abc import Callable

from shardbroker.access.contract import BackendError
from shardbroker.connectors import errors

__all__ = ["Report", "describe"]

Report = Callable[[str, str], None]
"""Takes the name of a back end, and an error."""


def describe(error: Exception) -> str:
    """Returns a description of an error, in one line.

    Texts of libraries may contain what a client sent, so only the broker's own appear.
    """
    return str(error) if isinstance(error, BackendError) else errors.describe(error)
