"""Errors of the data source.

ShardbrokerSourceError
├── OptionError     an unknown option of read or readStream, or a value that is not allowed
├── TooNewError     written by a later version of the broker
├── RemovedError    records that a stream has yet to read are no longer there
├── DamageError     damage in mode failFast
└── BusyError       a target that another export writes to
"""

__all__ = ["BusyError", "DamageError", "OptionError", "RemovedError", "ShardbrokerSourceError", "TooNewError"]


class ShardbrokerSourceError(Exception):
    """A fault of journals or snapshots that is not an error of the operating system."""


class OptionError(ShardbrokerSourceError, ValueError):
    """Names the option, its value, and the allowed values."""


class TooNewError(ShardbrokerSourceError):
    """The format or the schema is unknown to this version; the file is not damaged."""


class RemovedError(ShardbrokerSourceError):
    """Names the missing records."""


class DamageError(ShardbrokerSourceError):
    """Names the file, the offset and the fault."""


class BusyError(ShardbrokerSourceError):
    """Names the target."""
