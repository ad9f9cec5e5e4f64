"""CPU time and memory of a process and all its descendants (psutil)."""

import contextlib
from dataclasses import dataclass

import psutil

__all__ = ["Usage", "measure"]


@dataclass(frozen=True)
class Usage:
    """Resources that a process tree has used so far and holds now."""

    cpu_s: float
    """User and system seconds, children that have ended included."""
    pss: int
    """Bytes; pages shared by several processes count once."""
    processes: int


def measure(pid: int, memory: bool = True) -> Usage:
    """Measures the tree below `pid`. `memory` walks all page tables: not during a run. Raises psutil.NoSuchProcess."""
    root = psutil.Process(pid)
    cpu_s, pss, processes = 0.0, 0, 0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            if memory:
                pss += process.memory_full_info().pss
            processes += 1
    return Usage(cpu_s, pss, processes)
