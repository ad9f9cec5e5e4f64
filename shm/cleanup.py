"""What a broker that was killed left behind in shared memory."""

import shutil
from pathlib import Path

from shm import segment

__all__ = ["cleanup"]

SEGMENTS = Path("/dev/shm")
"""Where Linux shows POSIX segments as files."""


def cleanup(instance: str, runtime_dir: Path) -> None:
    """Removes the segments and the runtime directory of an instance; what is not there is no error.

    The caller holds the instance's lock: processes that still use the segments would go on with what nobody else sees.
    """
    prefix = f"shardbroker-{instance}-"
    for path in SEGMENTS.iterdir():
        if path.name.startswith(prefix) and not path.is_dir():
            segment.unlink("/" + path.name)
    shutil.rmtree(runtime_dir, ignore_errors=True)
