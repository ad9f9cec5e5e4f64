"""What files on a real disk need: a write that is there after a power cut, and a replacement that is there as a whole."""

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["replace_file", "sync_path"]


def sync_path(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(
    path: Path, content: bytes | Iterable[bytes], *, mode: int = 0o600, owner: tuple[int, int] | None = None, sync: bool = True
) -> None:
    """Puts `content` in the place of a file, or where there is none yet: at any moment the old file or the new one is there as a
    whole. With `sync` that holds after a power cut too, and it is the new one once this has returned; `sync=False` is for shared
    memory. `mode` and `owner` (user, group) are those of the new file. Raises OSError; the old file is as it was then.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # of an attempt that was killed; its mode may be another
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if sync:
        sync_path(path.parent)
