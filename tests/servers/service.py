"""A server that tests can kill, stop in its tracks, and start again with its data."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.processes import START_S, STOP_S, account

__all__ = ["Service", "service"]


class Service:
    """port: where it listens. Its output is in `server.log` of `where`."""

    def __init__(self, command: list[str], port: int, ready: Callable[[], bool], where: Path, as_nobody: bool = True) -> None:
        self.port, self.where = port, where
        self._command, self._ready = command, ready
        self._runs_as = account() if as_nobody else {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.where / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.where, **self._runs_as
            )
        deadline = time.monotonic() + START_S
        while not self._ready():
            assert self._process.poll() is None and time.monotonic() < deadline, self.log
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self.where / "server.log").read_text(errors="replace")

    def kill(self) -> None:
        """As by kill -9, or the machine losing power."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def pause(self) -> None:
        """Its connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


@contextmanager
def service(command: list[str], port: int, ready: Callable[[], bool], where: Path, as_nobody: bool = True) -> Iterator[Service]:
    """A server from its first answer to its end."""
    one = Service(command, port, ready, where, as_nobody)
    try:
        one.start()
        yield one
    finally:
        one.stop()
