"""Errors of journals.

    JournalError
    ├── JournalBusy     somebody else writes to it, or repairs it
    └── JournalMissing  there is no journal where one should be
"""

__all__ = ["JournalBusy", "JournalError", "JournalMissing"]


class JournalError(Exception):
    """Something about a journal that is not an error of the operating system."""


class JournalBusy(JournalError):
    """The journal is locked by another process."""


class JournalMissing(JournalError):
    """There is no journal here."""
