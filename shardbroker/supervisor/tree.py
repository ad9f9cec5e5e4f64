"""The process tree: start, watch, restart, drain.

Single-threaded and synchronous, and it opens no LMDB environment: so it can fork at any time.
"""

import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import multiprocess
import psutil
from multiprocess.connection import wait
from shm.counters import Counters, ProcessState

from shardbroker.config import Settings
from shardbroker.supervisor.layout import StartError, lay_out, lock_data_dir, tear_down, usable_cores
from shm.topology import Topology

__all__ = ["Entries", "Supervisor"]

START_TIMEOUT_S = 30.0
"""How long all processes together may take to become ready."""
YOUNG_S = 5.0
"""A process that dies younger than this is restarted with a growing delay."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 5.0
START_ATTEMPTS = 5
"""Deaths before the broker was ever ready, after which it gives up."""
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15

Entry = Callable[..., None]


@dataclass(frozen=True)
class Entries:
    """What runs in the processes; tests put their own in."""

    worker: Entry
    acceptor: Entry
    manager: Entry

    @classmethod
    def real(cls) -> "Entries":
        from acceptor.main import run as acceptor
        from shardbroker.management.main import run as manager
        from shardbroker.worker.main import run as worker

        return cls(worker, acceptor, manager)


@dataclass
class Child:
    """One place in the tree and the process that fills it."""

    title: str
    entry: Entry
    arguments: tuple[Any, ...]
    slot: int
    core: int | None = None
    process: Any = None
    started_at: float = 0.0
    delay_s: float = 0.0
    restart_at: float | None = None
    deaths: int = field(default=0)


class Supervisor:
    """Runs a broker until SIGTERM or SIGINT."""

    def __init__(self, settings: Settings, entries: Entries | None = None) -> None:
        self._settings = settings
        self._entries = entries or Entries.real()
        self._stopping = False
        self._ready = False
        self._wakeup, self._wakeup_write = socket.socketpair()

    def run(self) -> int:
        """Starts, watches, drains; returns the exit code. Raises StartError."""
        lock = lock_data_dir(self._settings.process.data_dir)
        _raise_descriptor_limit()
        try:
            self._topology = lay_out(self._settings, usable_cores())
            try:
                return self._serve()
            finally:
                tear_down(self._topology)
        finally:
            os.close(lock)

    def _serve(self) -> int:
        topology = self._topology
        self._counters = Counters.attach(topology.counters_name)
        self._children = self._places(topology)
        self._catch_signals()
        for child in self._children:
            self._start(child)
        deadline = time.monotonic() + START_TIMEOUT_S
        failure = None
        try:
            while not self._stopping:
                self._watch(0.02 if not self._ready else 1.0)
                if not self._ready:
                    self._check_ready(deadline)
        except StartError as error:
            failure = error
        self._drain()
        if failure is not None:
            raise failure
        return 0

    def _places(self, topology: Topology) -> list[Child]:
        children = [
            Child(f"worker-{i}", self._entries.worker, (topology, i), i, topology.cores[i]) for i in range(topology.workers)
        ]
        children.append(Child("manager", self._entries.manager, (topology,), topology.manager))
        children += [
            Child(f"acceptor-{i}", self._entries.acceptor, (topology, i), topology.processes + i) for i in range(topology.acceptors)
        ]
        return children

    def _catch_signals(self) -> None:
        self._wakeup_write.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, _signal: int, _frame: object) -> None:
        self._stopping = True

    # --- children ---------------------------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        self._counters.set_state(child.slot, ProcessState.STARTING)
        child.restart_at = None
        child.started_at = time.monotonic()
        child.process = multiprocess.get_context("fork").Process(
            target=_child_main,
            args=(child.title, os.getpid(), child.entry, child.arguments, child.core),
            name=child.title,
        )
        child.process.start()

    def _watch(self, timeout_s: float) -> None:
        """Waits for a death, a signal or the next restart, and acts on it."""
        now = time.monotonic()
        due = [child.restart_at for child in self._children if child.restart_at is not None]
        if due:
            timeout_s = max(0.0, min(timeout_s, min(due) - now))
        sentinels = {child.process.sentinel: child for child in self._children if child.restart_at is None}
        for ready in wait([*sentinels, self._wakeup], timeout_s):
            if ready is self._wakeup:
                self._wakeup.recv(4096)
            elif not self._stopping:
                self._bury(sentinels[ready])
        if self._stopping:
            return
        now = time.monotonic()
        for child in self._children:
            if child.restart_at is not None and child.restart_at <= now:
                self._start(child)

    def _bury(self, child: Child) -> None:
        child.process.join()
        code = child.process.exitcode
        self._counters.set_state(child.slot, ProcessState.DOWN)
        age = time.monotonic() - child.started_at
        child.deaths += 1
        if age >= YOUNG_S:
            child.delay_s = 0.0
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        _say(f"{child.title} (pid {child.process.pid}) died of {cause} after {age:.1f} s; restart in {child.delay_s:g} s")
        child.process.close()
        child.restart_at = time.monotonic() + child.delay_s
        child.delay_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, child.delay_s * 2))
        if not self._ready and child.deaths >= START_ATTEMPTS:
            raise StartError(f"{child.title} died {child.deaths} times before it was ready; see the lines above")

    def _check_ready(self, deadline: float) -> None:
        waiting = [child.title for child in self._children if self._counters.state(child.slot) != ProcessState.READY]
        if not waiting:
            self._ready = True
            topology = self._topology
            addresses = ", ".join(_address(listener.descriptors[0]) for listener in topology.listeners)
            print(
                f"shardbroker {_version()} ready: {addresses}, workers {topology.workers}, acceptors {topology.acceptors}, "
                f"pid {os.getpid()}",
                flush=True,
            )
        elif time.monotonic() > deadline:
            raise StartError(f"not ready after {START_TIMEOUT_S:g} s: {', '.join(waiting)}")

    def _drain(self) -> None:
        """Acceptors first, so that nobody new comes; then workers, who send their clients away; the manager last."""
        for kind in ("acceptor", "worker", "manager"):
            group = [child for child in self._children if child.title.startswith(kind) and child.restart_at is None]
            for child in group:
                if child.process.is_alive():
                    os.kill(child.process.pid, signal.SIGTERM)
            deadline = time.monotonic() + self._settings.process.drain_timeout
            for child in group:
                child.process.join(max(0.0, deadline - time.monotonic()))
                if child.process.is_alive():
                    _say(f"{child.title} (pid {child.process.pid}) did not stop in time and was killed")
                    child.process.kill()
                    child.process.join()


def _child_main(title: str, parent: int, entry: Entry, arguments: tuple[Any, ...], core: int | None) -> None:
    """First thing in a new process: die with the supervisor, own signal handlers, own core, own name."""
    signal.set_wakeup_fd(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the supervisor died in between
    libc.prctl(PR_SET_NAME, f"sb-{title}".encode(), 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if core is not None:
        psutil.Process().cpu_affinity([core])
    entry(*arguments)


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _address(descriptor: int) -> str:
    with socket.socket(fileno=os.dup(descriptor)) as listener:
        host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _version() -> str:
    from shardbroker import __version__

    return __version__


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} supervisor {text}", file=sys.stderr, flush=True)
