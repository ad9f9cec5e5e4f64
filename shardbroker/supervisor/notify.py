"""Notifications to the service manager by systemd's sd_notify(3): ready, reloading, stopping, status, and watchdog.

Nothing is sent without `NOTIFY_SOCKET`, and a service manager that reads no messages is not waited for.

The watchdog checks real progress: `WATCHDOG=1` is sent only when the loop of every worker and every acceptor has made a pass since
the last message. An idle loop makes one pass a second. A loop that hangs, or a process that cannot be restarted, suppresses the
message, and after `WatchdogSec` the service manager restarts the whole broker.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress

from shardbroker.logs.phrases import Line, log_line

__all__ = ["LEAST_WATCHDOG_S", "Notifier", "Watchdog"]

LEAST_WATCHDOG_S = 4.0
"""Shortest useful `WatchdogSec`: an idle loop makes one pass a second, and two checks must observe it."""
LOOKS = 4
"""Checks of the loops within one `WatchdogSec`."""
STATUS_S = 10.0
"""Seconds between two status messages, each of which costs the service manager some work."""

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """One service manager, or none. Removes its variables from `environment`: processes started later must not use them."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        given = {name: environment.pop(name, "") for name in VARIABLES}
        self.watchdog_s = _watchdog(given)
        """Interval of the required signs of life; 0.0: none are required."""
        self._socket: socket.socket | None = None
        self.variables = {name: value for name, value in given.items() if value}
        """What the environment had, for a program that continues this one."""
        self._address = given["NOTIFY_SOCKET"]
        if self._address:
            if self._address[0] == "@":
                self._address = f"\0{self._address[1:]}"  # an abstract one, in its written form
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    @property
    def listened_to(self) -> bool:
        return self._socket is not None

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def starting(self, status: str, within_s: float) -> None:
        """Extends the start timeout of the service manager, as the start takes longer and makes progress."""
        self._send(f"STATUS={status}\nEXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}\nSTATUS=reading the configuration again")

    def stopping(self, status: str, within_s: float) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def keep_socket(self, name: str, descriptor: int) -> None:
        """Stores a descriptor for the next start (`FileDescriptorStoreMax`)."""
        self._send(f"FDSTORE=1\nFDNAME={name}", descriptor)

    def forget_sockets(self, name: str) -> None:
        """Removes the descriptors stored under this name."""
        self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str, descriptor: int | None = None) -> None:
        if self._socket is None:
            return
        with suppress(OSError):
            rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))]
            self._socket.sendmsg([text.encode()], rights, 0, self._address)


class Watchdog:
    """Checks that loops make passes. `signs` returns a number for each process to watch, which changes with each pass."""

    def __init__(self, interval_s: float, signs: Callable[[], Mapping[str, int]], now: float) -> None:
        self._look_s = interval_s / LOOKS
        self._interval_s = interval_s
        self._signs = signs
        self._seen = dict(signs())
        self._turned: set[str] = set()
        self._since = now
        self._told = False
        self.due = now + self._look_s
        """Time of the next check."""

    def look(self, now: float) -> tuple[bool, Line | None]:
        """Returns (whether every loop has made a pass since the last time this was true, a line for the log or None)."""
        self.due = now + self._look_s
        signs = self._signs()
        self._turned = {name for name in signs if name in self._turned or signs[name] != self._seen.get(name)}
        self._seen = dict(signs)
        standing = sorted(signs.keys() - self._turned)
        if not standing:
            self._turned, self._since, self._told = set(), now, False
            return True, None
        if self._told or now - self._since < self._interval_s / 2:
            return False, None
        self._told = True
        return False, log_line("processes hang", processes=",".join(standing), silent=f"{now - self._since:.1f}s")


def _watchdog(given: Mapping[str, str]) -> float:
    if not given["WATCHDOG_USEC"].isdecimal() or given["WATCHDOG_PID"] not in ("", str(os.getpid())):
        return 0.0
    return int(given["WATCHDOG_USEC"]) / 1e6
