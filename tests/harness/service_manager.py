"""What systemd does for a service, as far as the broker sees it: a notify socket, a watchdog, sockets that it holds."""

import array
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.harness.broker import Broker

PATIENCE_S = 20.0
MESSAGE_BYTES = 4096
HAND_OVER = """
import fcntl, os, sys
descriptors = [int(number) for number in sys.argv[1].split(",") if number]
high = [fcntl.fcntl(number, fcntl.F_DUPFD, 100) for number in descriptors]
for place, number in enumerate(high):
    os.dup2(number, 3 + place, inheritable=True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(high))}
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Puts the sockets where they belong and becomes the broker: LISTEN_PID names its process, so it is written after the fork."""


class ServiceManager:
    """A real notify socket, and the descriptors that a service has asked it to keep."""

    def __init__(self, watchdog_s: float = 0.0) -> None:
        self._dir = tempfile.TemporaryDirectory(prefix="shardbroker-notify-")
        self.path = str(Path(self._dir.name) / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self.watchdog_s = watchdog_s
        self.kept: dict[str, list[int]] = {}
        """Name to descriptors."""

    def __enter__(self) -> "ServiceManager":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()
        for descriptor in [one for held in self.kept.values() for one in held]:
            os.close(descriptor)
        self._dir.cleanup()

    def supervise(self, broker: Broker, sockets: Mapping[str, list[int]] | None = None) -> Broker:
        """The broker, told of this service manager and given these sockets; not started yet."""
        broker.environment["NOTIFY_SOCKET"] = self.path
        if self.watchdog_s:
            broker.environment["WATCHDOG_USEC"] = str(round(self.watchdog_s * 1e6))
        given = [(name, number) for name, numbers in (sockets or {}).items() for number in numbers]
        if given:
            broker.environment["LISTEN_FDNAMES"] = ":".join(name for name, _ in given)
            numbers = ",".join(str(number) for _, number in given)
            broker.descriptors = tuple(number for _, number in given)
            broker.program = (sys.executable, "-c", HAND_OVER, numbers, *broker.program)
        return broker

    def take(self, timeout_s: float = PATIENCE_S) -> dict[str, str] | None:
        """The next message as fields; None if none comes in time."""
        self._socket.settimeout(timeout_s)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(64))
        except TimeoutError:
            return None
        fields = dict(line.split("=", 1) for line in data.decode().splitlines())
        descriptors = array.array("i")
        for _, _, payload in ancillary:
            descriptors.frombytes(payload)
        if fields.get("FDSTORE"):
            self.kept.setdefault(fields["FDNAME"], []).extend(descriptors)
        if fields.get("FDSTOREREMOVE"):
            for descriptor in self.kept.pop(fields["FDNAME"], []):
                os.close(descriptor)
        return fields

    def until(self, name: str, timeout_s: float = PATIENCE_S) -> dict[str, str]:
        """The next message with this field; those before it are passed over."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            fields = self.take(left)
            if fields is not None and name in fields:
                return fields
        raise AssertionError(f"no message with {name} in {timeout_s} s")

    def seen(self, name: str, within_s: float) -> bool:
        """Whether a message with this field comes in so long."""
        try:
            self.until(name, within_s)
        except AssertionError:
            return False
        return True
