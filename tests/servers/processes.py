"""Processes of servers. They run as `nobody` where the tests run as root, since PostgreSQL and MariaDB refuse root."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.harness.waiting import stop_all

START_S, STOP_S = 60.0, 20.0


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="shardbroker-server-"))
    if os.geteuid() == 0:
        shutil.chown(path, "nobody")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def account() -> dict[str, Any]:
    return {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


class Server:
    """A server that can be paused, killed and started again with its data."""

    start_s = START_S
    """Longest wait for its first answer."""

    def __init__(self, command: list[str], ready: Callable[[], bool], where: Path, *, as_nobody: bool = True) -> None:
        self._command, self._ready, self._where = command, ready, where
        self._runs_as = account() if as_nobody else {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. What a killed process leaves behind may keep it from starting for a while."""
        deadline = time.monotonic() + self.start_s
        while True:
            with (self._where / "server.log").open("wb") as log:
                self.process = subprocess.Popen(
                    self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self._where, **self._runs_as
                )
            while self.process.poll() is None:
                if self._ready():
                    return
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.05)
            assert time.monotonic() < deadline - self.start_s / 2, self.log()
            time.sleep(0.2)

    def log(self) -> str:
        return (self._where / "server.log").read_text(errors="replace")

    def pause(self) -> None:
        """Stops all its processes, so that connections stay open and nothing answers."""
        stop_all(one.pid for one in self._processes())

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends all its processes at once, as a crash does."""
        self._signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def _signal(self, number: int) -> None:
        """Sends a signal to the process and its children, which may have sessions of their own."""
        for one in self._processes():
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def stop(self) -> None:
        if self.process is None:
            return
        self.resume()
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def running(command: list[str], ready: Callable[[], bool], where: Path, *, as_nobody: bool = True) -> Iterator[Server]:
    """A server from its first answer to its end."""
    server = Server(command, ready, where, as_nobody=as_nobody)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def quietly(command: list[str], text: str = "") -> str:
    """Runs a program to its end and returns what it prints."""
    done = subprocess.run(command, input=text, text=True, capture_output=True, cwd="/", **account())
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
