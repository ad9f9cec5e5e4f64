"""A process that has loaded what a supervisor loads, and forks for each broker: tests start thousands, and loading takes longest.

The fork is what exec would give: a session, descriptors, arguments and environment of its own, and it ends as an interpreter does.
What has an effect before main() runs cannot differ between forks: `forks` says which starts are alike. Others go by exec, as do
those of suites that are about starting (`Broker.by_fork`).

A request is a JSON object (command, environment, descriptors) of at most MESSAGE_MAX bytes with, as rights, a socket for the
answers, the output, and the descriptors. Answers are lines: the pid, then the exit code as of Popen.returncode. A process that has
ended stays a zombie until the socket of its answers is closed, as a child of one's own does until it is waited for.
"""

import array
import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import IO

__all__ = ["ForkServer", "ForkedProcess", "serve"]

MESSAGE_MAX = 1 << 20
"""Bytes of a request."""
DESCRIPTORS_MAX = 64
"""Descriptors of a request."""
TURN_S = 0.1
"""Longest time for which one thread waits for a process before others may look, too."""
OUT_OF_THE_WAY = 900
"""Received descriptors are moved to this number and up, so that those asked for are free."""
OWN_PREFIX = "SHARDBROKER__"
"""Of variables that main() reads; PYTEST_* is of no interest to it. All others could matter before it."""
LIMITS = tuple(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
INHERITED = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "SigBlk", "SigIgn", "Seccomp:")
"""In /proc/PID/status."""
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may have an effect before main() runs."""
    return {name: value for name, value in environment.items() if not name.startswith((OWN_PREFIX, "PYTEST_"))}


def _surroundings() -> tuple[object, ...]:
    """What a child inherits from the calling thread and cannot have from the fork server."""
    with open("/proc/thread-self/status") as status:
        inherited = [line for line in status if line.startswith(INHERITED)]
    spaces = [os.readlink(f"/proc/thread-self/ns/{name}") for name in NAMESPACES]
    return tuple(inherited), tuple(spaces), tuple(map(resource.getrlimit, LIMITS)), os.sched_getaffinity(0), os.nice(0), os.getcwd()


class ForkedProcess(subprocess.Popen[str]):
    """A process that the fork server has started, to be used like a child of one's own. `stdout` is its output and errors."""

    def __init__(self, args: Sequence[str], answers: socket.socket, output: IO[str]) -> None:
        # Not those of the base: it would start a process.
        self.args = args
        self.stdin, self.stdout, self.stderr = None, output, None
        self.returncode: int | None = None
        self._child_created = False  # of the base: nothing here is for waitpid()
        self._answers, self._lines = answers, b""
        self._reading = threading.Lock()  # threads may wait for a process, and look whether it runs, at the same time
        self.pid = self._line(None) or 0

    def _line(self, deadline: float | None, wait: bool = True) -> int | None:
        """The next line of the answers; None if it does not come in time."""
        while b"\n" not in self._lines:
            left = 0.0 if not wait else None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                return None
            received = self._answers.recv(100)
            if not received:
                raise RuntimeError("the fork server of the tests is gone")
            self._lines += received
        line, _, self._lines = self._lines.partition(b"\n")
        return int(line)

    def _ended(self, code: int | None) -> int | None:
        if code is not None:
            self.returncode = code
            self._answers.close()
        return code

    def poll(self) -> int | None:
        """The exit code, or None."""
        if self._reading.acquire(blocking=False):
            try:
                if self.returncode is None:
                    self._ended(self._line(None, wait=False))
            finally:
                self._reading.release()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; TimeoutExpired after so many seconds."""
        deadline = inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._reading:
                if self.returncode is None:
                    self._ended(self._line(min(deadline, time.monotonic() + TURN_S)))
                if self.returncode is not None:
                    return self.returncode
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)


class ForkServer:
    """The process, started with the first request. It ends with this one."""

    def __init__(self) -> None:
        self._requests: socket.socket | None = None
        self._launching = threading.Lock()
        self._surroundings = _surroundings()
        self._environment = _early(os.environ)

    def forks(self, environment: Mapping[str, str]) -> bool:
        """Whether a start with these variables, here and now, is like those before."""
        return _early(environment) == self._environment and _surroundings() == self._surroundings

    def start(self, command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int] = ()) -> ForkedProcess:
        """Starts `shardbroker` in a session of its own; `descriptors` are open in it under the same numbers."""
        with self._launching:
            if self._requests is None:
                self._requests = self._launch()
        request = {"command": list(command), "environment": dict(environment), "descriptors": list(descriptors)}
        answers, theirs = socket.socketpair()
        reading, writing = os.pipe()
        with theirs:
            try:
                rights = array.array("i", [theirs.fileno(), writing, *descriptors])
                self._requests.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            finally:
                os.close(writing)
        return ForkedProcess(command, answers, open(reading, encoding="utf-8"))

    def _launch(self) -> socket.socket:
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for side in (requests, theirs):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX)
            command = [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"]
            subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True)
        return requests


def _serve(requests: socket.socket) -> None:
    """Answers requests until nobody can make one. Returns in the forks only, ready for main(); sys.argv is set."""
    running: dict[int, tuple[int, socket.socket]] = {}
    """Pid and answers by the descriptor that tells of the end of a process."""
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor == requests.fileno():
                text, received, _, _ = socket.recv_fds(requests, MESSAGE_MAX, DESCRIPTORS_MAX)
                if not text:
                    os._exit(0)
                answers = socket.socket(fileno=received.pop(0))
                pid = os.fork()
                if not pid:
                    for own in (requests, answers, *(other for _, other in running.values())):
                        own.close()
                    for own_descriptor in running:
                        os.close(own_descriptor)
                    return _become(json.loads(text), received)
                for passed in received:
                    os.close(passed)
                ends = os.pidfd_open(pid)
                running[ends] = pid, answers
                waiting.register(ends, select.POLLIN)
                _answer(answers, pid)
            elif descriptor in running:
                pid, answers = running[descriptor]
                waiting.unregister(descriptor)
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                assert ended is not None
                _answer(answers, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
                waiting.register(answers, 0)  # until it is closed at the other side
            else:
                gone = next(ends for ends, (_, answers) in running.items() if answers.fileno() == descriptor)
                pid, answers = running.pop(gone)
                waiting.unregister(descriptor)
                os.waitpid(pid, 0)
                answers.close()
                os.close(gone)


def _answer(answers: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        answers.sendall(b"%d\n" % number)


def _become(request: dict[str, object], received: list[int]) -> None:
    """Makes of this fork what exec would have made."""
    command, environment, descriptors = request["command"], request["environment"], request["descriptors"]
    assert isinstance(command, list) and isinstance(environment, dict) and isinstance(descriptors, list)
    os.setsid()
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip([high[0], *high], [2, 1, *descriptors], strict=True):
        os.dup2(descriptor, number)
    for descriptor in high:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    with open("/proc/self/comm", "w") as name:
        name.write(os.path.basename(command[0]))
    sys.argv = command
    sys.path[0] = os.path.dirname(command[0])


def _load() -> None:
    """Loads what a supervisor has loaded when it forks, and builds the schema of the configuration."""
    import shardbroker.cli.main
    import shardbroker.preflight
    import shardbroker.supervisor  # noqa: F401
    from shardbroker.config import load as load_settings
    from shm.roles import ROLES, load

    load_settings()
    for role in ROLES:
        if not role.loads_late:
            load(role.entry)
    gc.collect()
    gc.freeze()


def serve(descriptor: int) -> None:
    """The fork server itself, and `shardbroker` in its forks."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    _load()
    with socket.socket(fileno=descriptor) as requests:
        _serve(requests)
    from shardbroker.cli.main import main

    sys.exit(main())
