"""One place in the process tree, and the first lines that run in its process."""

import ctypes
import gc
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import multiprocess
import psutil

from shardbroker.logs.phrases import Line, log_line
from shardbroker.supervisor.image import AdoptedProcess
from shardbroker.supervisor.signals import StopSignals
from shm.roles import Place, load
from shm.topology import Topology

__all__ = ["Child"]

YOUNG_S = 5.0
"""A process that dies younger than this is restarted with a growing delay."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 5.0
"""Delay of the second restart in a row, doubled from then on, and the longest delay. The first restart is immediate."""
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""From linux/prctl.h."""


@dataclass
class Child:
    """A place in the tree, filled by one process after the other."""

    place: Place
    process: Any = None
    """None while no process fills the place."""
    successor: Any = None
    """The process that is about to replace `process`, or None."""
    replaced_until: float = 0.0
    """When a successor that has not replaced it is killed."""
    restart_at: float | None = None
    failed_starts: int = 0
    """Processes in a row that died before they were ready."""
    _started_at: float = 0.0
    _delay_s: float = 0.0

    def kept(self) -> list[Any]:
        """Returns plain values for `adopted`, in a program that continues this one."""
        pid = None if self.process is None else self.process.pid
        return [pid, self.restart_at, self.failed_starts, self._started_at, self._delay_s]

    @classmethod
    def adopted(cls, place: Place, kept: list[Any]) -> "Child":
        """Returns the place as an earlier program of this process has left it. Raises OSError."""
        pid, restart_at, failed_starts, started_at, delay_s = kept
        process = None if pid is None else AdoptedProcess(pid)
        return cls(
            place, process, restart_at=restart_at, failed_starts=failed_starts, _started_at=started_at, _delay_s=delay_s
        )  # fmt: skip

    @property
    def title(self) -> str:
        return self.place.title

    @property
    def slot(self) -> int:
        return self.place.slot

    def start(self, signals: StopSignals, topology: Topology) -> None:
        """Forks a process. Raises OSError if the system has no resources for one."""
        self._started_at = time.monotonic()
        self.restart_at = None
        self.process = self._fork(signals, topology)

    def _fork(self, signals: StopSignals, topology: Topology) -> Any:
        gc.collect()
        gc.freeze()  # a collection in the new process would write to the pages of all objects, and so copy them
        process = multiprocess.get_context("fork").Process(target=_run, args=(self.place, os.getpid(), topology), name=self.title)
        with signals.held():
            process.start()
        return process

    def start_successor(self, signals: StopSignals, topology: Topology, longest_s: float) -> None:
        """Forks a process that is to replace the one that runs. Raises OSError."""
        self.replaced_until = time.monotonic() + longest_s
        self.successor = self._fork(signals, topology)

    def end_successor(self) -> str:
        """Waits for a successor that is ending, and has replaced nothing; returns the cause of its end."""
        self.successor.join()
        cause = _cause(self.successor.exitcode)
        self.successor.close()
        self.successor = None
        return cause

    def promote(self) -> tuple[str, Line]:
        """The process has ended, and its successor is in its place. Returns the level and text of a log line."""
        self.process.join()
        pid, code = self.process.pid, self.process.exitcode
        self.process.close()
        self.process, self.successor = self.successor, None
        self._started_at = time.monotonic()
        fields = {"process": self.title, "pid": pid, "successor": self.process.pid}
        if code == 0:
            return "INFO", log_line("process replaced", **fields)
        return "ERROR", log_line("process died while it was replaced", **fields, cause=_cause(code))

    def bury(self, was_ready: bool, signed_off: bool) -> tuple[str, Line]:
        """Plans the restart of a process that has ended; returns the level and text of a log line.

        signed_off: the process had completed its shutdown.
        """
        self.process.join()
        pid, code, age = self.process.pid, self.process.exitcode, time.monotonic() - self._started_at
        self.process.close()
        self.process = None
        ordered = signed_off and code == 0
        self.failed_starts = 0 if was_ready or ordered else self.failed_starts + 1
        delay_s = self.plan_restart(age)
        fields = {"process": self.title, "pid": pid}
        times = {"age": f"{age:.1f}s", "restart_in": f"{delay_s:g}s"}
        if ordered:
            return "INFO", log_line("process ended", **fields, **times)
        return "ERROR", log_line("process died", **fields, cause=_cause(code), **times)

    def plan_restart(self, age_s: float) -> float:
        """Schedules the restart of a process that lived for `age_s`; returns the delay."""
        delay_s = self._delay_s if age_s < YOUNG_S else 0.0
        self.restart_at = time.monotonic() + delay_s
        self._delay_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, delay_s * 2))
        return delay_s

    def terminate(self) -> None:
        """Sends SIGTERM to the process."""
        self.process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL; the caller still calls reap()."""
        self.process.kill()

    def reap(self) -> None:
        """Waits for a process that is ending; its place stays empty."""
        self.process.join()
        self.process.close()
        self.process = None


def _cause(code: int) -> str:
    return f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)  # real-time signals have no names


def _run(place: Place, parent: int, topology: Topology) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the supervisor died before the request for a death signal
    StopSignals.forget()
    libc.prctl(PR_SET_NAME, f"sb-{place.title}".encode(), 0, 0, 0)
    if place.cores:
        psutil.Process().cpu_affinity(list(place.cores))
    topology.close_listeners(place.number if place.role.accepts else None)
    load(place.role.entry)(topology, *place.arguments)
