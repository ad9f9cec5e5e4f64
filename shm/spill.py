"""Records that are too large for a ring: files of their own in the spill directory, whose names the rings carry."""

import os
import stat
from pathlib import Path

__all__ = ["read_spilled", "spill_path"]


def spill_path(directory: Path, name: bytes) -> Path:
    """Returns the path of a file in the spill directory, never outside of it. Raises ValueError."""
    text = name.decode(errors="replace")
    if not text or text in (".", "..") or "/" in text or "\0" in text:
        raise ValueError(f"name of a spilled record: must be a name without '/', got {text[:200]!r}")
    return directory / text


def read_spilled(directory: Path, name: bytes) -> tuple[Path, bytes]:
    """Returns the path and the contents of a file. Raises ValueError, OSError (FileNotFoundError: it was read before)."""
    path = spill_path(directory, name)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"spilled record {path}: must be a regular file")
        return path, file.read()
