"""Errors of journals.

    JournalError
    ├── JournalBusy     another process writes to it, or repairs it
    ├── JournalMissing  there is no journal where one should be
    └── JournalTooNew   a later version wrote it
"""

__all__ = ["JournalBusy", "JournalError", "JournalMissing", "JournalTooNew"]


class JournalError(Exception):
    """An error of a journal that is not one of the operating system."""


class JournalBusy(JournalError):
    """The journal is locked by another process."""


class JournalMissing(JournalError):
    """No journal exists in the directory."""


class JournalTooNew(JournalError):
    """A segment whose format or schema is newer than this version; the segment itself is intact."""
