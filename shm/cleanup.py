"""What a broker that was killed left behind in shared memory."""

import shutil
from pathlib import Path

from shm import segment

__all__ = ["cleanup"]

SEGMENTS = Path("/dev/shm")


def cleanup(instance: str, runtime_dir: Path) -> None:
    """Removes the segments and the runtime directory of an instance. The caller holds the instance's lock."""
    for path in SEGMENTS.glob(f"shardbroker-{instance}-*"):
        segment.unlink("/" + path.name)
    shutil.rmtree(runtime_dir, ignore_errors=True)
