"""tests/journal/faults.c under a running broker: its processes share one table of faults, and a test writes into it."""

import errno
import mmap
import os
import struct
import subprocess
from pathlib import Path

__all__ = ["WRITE", "FaultyDisk", "build_shim"]

SHIM = Path(__file__).with_name("faults.c")
WRITE, SYNC, OPEN = range(3)
_WORDS = 3 * 3 + 2
_ROOM, _DELAY = 9, 10
_FOR_EVER = 1 << 60


def build_shim(directory: Path) -> Path:
    """Compiles faults.c into a library for LD_PRELOAD."""
    library = directory / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SHIM, "-ldl"], check=True)
    return library


class FaultyDisk:
    """What strikes files below `below`, in processes that have `environment`."""

    def __init__(self, directory: Path, below: Path) -> None:
        table = directory / "faults"
        table.write_bytes(bytes(8 * _WORDS))
        with table.open("r+b") as file:
            self._table = mmap.mmap(file.fileno(), 8 * _WORDS)
        self.environment = {
            "LD_PRELOAD": str(build_shim(directory)),
            "DISK_FAULTS": str(table),
            "DISK_FAULTS_BELOW": f"{below}{os.sep}",
        }
        self.heal()

    def _set(self, word: int, *values: int) -> None:
        struct.pack_into(f"{len(values)}q", self._table, 8 * word, *values)

    def refuse(self, error: int = errno.EROFS) -> None:
        """No write and no new file, until `heal`."""
        for call in (WRITE, OPEN):
            self._set(3 * call, error, 0, _FOR_EVER)

    def slow_down(self, delay_s: float) -> None:
        """Each write takes so long."""
        self._set(_DELAY, int(delay_s * 1e6))

    def heal(self) -> None:
        """All is well."""
        self._set(0, *([0] * 9), -1, 0)
