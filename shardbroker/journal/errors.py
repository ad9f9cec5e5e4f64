"""Errors of journals.

    JournalError
    ├── JournalBusy     somebody else writes to it, or repairs it
    ├── JournalMissing  there is no journal where one should be
    └── JournalTooNew   a later version wrote it
"""

__all__ = ["JournalBusy", "JournalError", "JournalMissing", "JournalTooNew"]


class JournalError(Exception):
    """Something about a journal that is not an error of the operating system."""


class JournalBusy(JournalError):
    """The journal is locked by another process."""


class JournalMissing(JournalError):
    """There is no journal here."""


class JournalTooNew(JournalError):
    """A segment of a format or with records of a schema that are not known here; nothing is wrong with it."""
