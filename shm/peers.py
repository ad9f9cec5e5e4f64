"""Messages between two processes over a SOCK_SEQPACKET pair: CBOR maps, some with descriptors.

Each process knows the end of the other one by the end of the stream, provided that no third process has an end of the pair.
"""

import errno
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import IO, Any

import cbor2

__all__ = ["ENDED", "HandoffError", "Peer", "await_end", "in_memory", "kill", "open_descriptors"]

DESCRIPTORS = 250
"""Descriptors in one message; the kernel allows 253."""
ENDED = -1
"""In place of a pidfd: that of a process that has ended."""
MESSAGE_MAX = 8192
"""Longest message, bytes: a number for each of 1024 workers. What is longer is in a memfd."""


class HandoffError(Exception):
    """The other process has ended, is late, or sends what it may not."""


class Peer:
    """The other process."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()

    def has_message(self, timeout_s: float) -> bool:
        """Returns whether a message, or the end, can be read."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(None if timeout_s == inf else max(0.0, timeout_s) * 1000))

    def process(self, pid: int) -> int:
        """Returns a pidfd of the other process, whose pid it has sent; ENDED if it has ended since, and its messages are here."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return ENDED
        poll = select.poll()
        poll.register(self._end, 0)  # POLLHUP is always reported
        if not poll.poll(0):
            return process
        os.close(process)  # the number may be that of another process already
        return ENDED

    def send(self, message: dict[str, Any], deadline: float, descriptors: Sequence[int] = ()) -> None:
        """Sends one message. Raises HandoffError."""
        data = cbor2.dumps(message)
        poll = select.poll()
        poll.register(self._end, select.POLLOUT)
        while True:
            try:
                socket.send_fds(self._end, [data], descriptors)
                return
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                # Without privileges, no more descriptors may be in flight than a process may have open.
                if error.errno not in _PASSING:
                    raise HandoffError(f"the other process does not take a message: {error.strerror}") from None
                time.sleep(0.001)
            if time.monotonic() > deadline:
                raise HandoffError("the other process takes no message in time")
            poll.poll(10)

    def receive(self, deadline: float, most: int = 0) -> tuple[dict[str, Any], list[int]]:
        """Returns the next message, with at most `most` descriptors. Raises HandoffError, after the end too."""
        if not self.has_message(deadline - time.monotonic()):
            raise HandoffError("no message of the other process in time")
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._end, MESSAGE_MAX, most)
        except OSError as error:
            raise HandoffError(f"no message of the other process: {error.strerror}") from None
        if not data:
            raise HandoffError("the other process has ended")
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            for descriptor in descriptors:
                os.close(descriptor)
            raise HandoffError("a message without all of its descriptors: too many are open")
        message: dict[str, Any] = cbor2.loads(data)
        return message, descriptors

    def send_all(self, descriptors: Sequence[int], deadline: float) -> None:
        """Sends descriptors in batches. Raises HandoffError."""
        for first in range(0, len(descriptors), DESCRIPTORS):
            batch = descriptors[first : first + DESCRIPTORS]
            self.send({"descriptors": len(batch)}, deadline, batch)

    def receive_all(self, count: int, deadline: float) -> list[int]:
        """Returns `count` descriptors. Raises HandoffError."""
        found: list[int] = []
        while len(found) < count:
            message, descriptors = self.receive(deadline, DESCRIPTORS)
            if message.get("descriptors") != len(descriptors) or not descriptors:
                raise HandoffError("a message without its descriptors")
            found += descriptors
        return found


def open_descriptors() -> tuple[int, int]:
    """Returns how many descriptors this process has open, and how many it may."""
    return len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def await_end(process: int, timeout_s: float) -> bool:
    """Returns whether a process, a pidfd, has ended: all of its descriptors are closed then."""
    if process == ENDED:
        return True
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def kill(process: int, timeout_s: float) -> bool:
    """Kills a process, a pidfd; returns whether it has ended. One that hangs in the kernel has not, and may continue."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    return await_end(process, timeout_s)


def in_memory(name: str, write: Callable[[IO[bytes]], object]) -> int:
    """Returns a memfd with what `write` writes, which no file system has. Raises OSError, and what `write` raises."""
    memory = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            write(file)
    except BaseException:
        os.close(memory)
        raise
    return memory


_PASSING = frozenset((errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS))
