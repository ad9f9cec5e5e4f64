"""A small file system that a test makes full or read-only, as a server that is killed or stopped."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Disk", "small_disk"]

SIZE_BYTES = 64 << 20
BLOCK = b"\0" * (64 << 10)


class Disk:
    """A tmpfs at `path`. Of a server it has pause and resume: the directory is read-only; kill and start: there is no room."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pause(self) -> None:
        """Covers the directory by an empty one that cannot be written."""
        _mount(self.path, "ro,size=4k")

    def resume(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)

    def kill(self) -> None:
        if _mounts(self.path) > 1:
            self.resume()
        with (self.path / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(BLOCK)

    def start(self) -> None:
        (self.path / "filler").unlink()


@contextmanager
def small_disk(path: Path) -> Iterator[Disk | None]:
    """A directory on a disk of its own; None where file systems cannot be mounted: an ordinary directory."""
    path.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None or not _mount(path, f"size={SIZE_BYTES}", check=False):
        yield None
        return
    try:
        yield Disk(path)
    finally:
        while _mounts(path):
            subprocess.run(["umount", "-l", str(path)], check=True)


def _mount(path: Path, options: str, check: bool = True) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=check).returncode == 0


def _mounts(path: Path) -> int:
    return sum(line.split()[1] == str(path) for line in Path("/proc/mounts").read_text().splitlines())
