"""Properties of the machine to which settings refer."""

from pathlib import Path

__all__ = ["machine_memory"]

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Memory limits of control groups, version 2 and version 1."""


def machine_memory() -> int:
    """Returns the memory of this machine or, if that is less, the limit of the container, bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:"))
    for path in LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total
