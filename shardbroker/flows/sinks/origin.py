"""The origin of a data directory: a random id, part of the keys of positions that sinks store.

A data directory that was emptied gets another one, so that its rows, whose positions begin again, are not taken for written.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from shardbroker.stores.files import sync_path

__all__ = ["origin_of"]

FILE = "origin"
ID_BYTES = 16


def origin_of(directory: Path) -> str:
    """Returns the origin; makes it the first time. The processes flows may do so at the same time. Raises OSError, ValueError."""
    path = directory / FILE
    with suppress(FileNotFoundError):
        return _checked(path)
    made = directory / f"{FILE}.{os.getpid()}"
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(ID_BYTES))
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(made, path)
    made.unlink()
    sync_path(directory)
    return _checked(path)


def _checked(path: Path) -> str:
    text = path.read_text()
    if len(text) != 2 * ID_BYTES or not text.isalnum():
        raise ValueError(f"{path}: must be {2 * ID_BYTES} hexadecimal digits")
    return text
