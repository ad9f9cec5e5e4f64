"""SIGTERM and SIGINT as a count, SIGHUP as a request to reload, and a descriptor to wait on."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

__all__ = ["StopSignals"]

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """While entered, SIGTERM and SIGINT only count, and SIGHUP sets `reload`; the previous handlers are restored at the end.

    Main thread only.
    """

    def __init__(self) -> None:
        self.count = 0
        self.reload = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> "StopSignals":
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _NUMBERS:
            self._before[number] = signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)  # held by an earlier program of this process
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def _note(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self.reload = True
        else:
            self.count += 1

    def fileno(self) -> int:
        """Returns a descriptor that is readable after a signal, until clear()."""
        return self._reader.fileno()

    def clear(self) -> None:
        """Resets the descriptor to wait for the next signal; the count stays."""
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """Blocks signals around a fork: a signal to the child must not run the handler that it inherits."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @staticmethod
    def forget() -> None:
        """Resets signals in a new process: SIGTERM ends it until it sets a handler; SIGINT and SIGHUP from a terminal are for the
        supervisor only."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)
