"""How the process flows shares cores with workers: it reads what is on disk anyway, while clients wait for a worker."""

import ctypes
import os
import platform
import struct
from contextlib import suppress

__all__ = ["give_way"]

NICE = 10
"""A tenth of a worker's share while both want the whole core, and all of it otherwise."""
SLICE_NS = 20_000_000
"""A worker that wakes takes the core from a process with longer slices than its own (1 to 3 ms), as of Linux 6.12."""
CALL_NUMBERS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Those of sched_setattr(2), for which libc has no function."""
ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""sched_attr in its first version: size, policy, flags, nice, priority, runtime, deadline, period."""
SCHED_OTHER = 0


def give_way() -> None:
    """Lowers the priority of the calling thread and of those that it starts, as far as the kernel knows how."""
    with suppress(OSError):  # a sandbox may forbid both calls
        os.nice(NICE)
    number = CALL_NUMBERS.get(platform.machine())
    if number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = ATTRIBUTES.pack(ATTRIBUTES.size, SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
