"""Errors of the data source.

ShardbrokerSourceError
├── OptionError     an option of read or readStream that is not known, or a value that is not allowed
├── TooNewError     a later version of the broker wrote it
├── RemovedError    what a stream has yet to read is not there any more
└── DamageError     mode failFast met damage
"""

__all__ = ["DamageError", "OptionError", "RemovedError", "ShardbrokerSourceError", "TooNewError"]


class ShardbrokerSourceError(Exception):
    """Something about journals or snapshots that is not an error of the operating system."""


class OptionError(ShardbrokerSourceError, ValueError):
    """Says which option, its value, and what is allowed."""


class TooNewError(ShardbrokerSourceError):
    """The format or the schema is not known here; nothing is wrong with the file."""


class RemovedError(ShardbrokerSourceError):
    """Names the records that are missing."""


class DamageError(ShardbrokerSourceError):
    """Names file, offset and what is wrong there."""
