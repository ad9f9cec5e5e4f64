"""Messages between a worker and its successor, over a SOCK_SEQPACKET pair that the supervisor has made. CBOR maps.

    successor   -> {"hello": FORMAT, "pid": ...}                        it is ready to take over
    predecessor -> {"refused": reason}                                  nothing has happened, and the successor ends
                 | {"connections": n, "pid": ...} + memfd with the state    the predecessor reads and sends nothing any more
    predecessor -> {"descriptors": k} + k sockets of clients            until there are n
    successor   -> {"adopted": n}                                       all of it is in its tables
    predecessor -> {"yours": true}                                      the only step that cannot be undone
    predecessor -> {"left": true}                                       it has closed sockets and journal, and ends

The end of a process is seen by the end of the stream, since no third process has an end of the pair.
"""

import errno
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import cbor2

__all__ = ["FORMAT", "HandoffError", "Peer", "await_end", "discard_successor", "receive_successor", "send_successor"]

FORMAT = 2
"""Version of the state. A successor with another one is refused. Since 2 it fences the output of connections at level `machine`."""
DESCRIPTORS = 250
"""Descriptors in one message; the kernel allows 253."""
MESSAGE_MAX = 4096
"""Longest message, bytes. The state itself is in a memfd."""


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
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

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


def await_end(process: int, timeout_s: float) -> bool:
    """Returns whether a process, a pidfd, has ended: all of its descriptors are closed then."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def send_successor(channel: int, end: int) -> None:
    """Gives a worker its end of the pair to a successor. Raises OSError."""
    with _borrowed(channel) as sender:
        socket.send_fds(sender, [_MARK], [end], socket.MSG_DONTWAIT)


def receive_successor(channel: int) -> list[int]:
    """Returns the end that was sent, or nothing. Raises HandoffError if no descriptor is left for it here: it is closed then, which
    the successor notices."""
    with _borrowed(channel) as receiver:
        try:
            _, descriptors, flags, _ = socket.recv_fds(receiver, len(_MARK), 1, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return []
    if flags & socket.MSG_CTRUNC:
        raise HandoffError("no descriptor is left for the pair to the successor")
    return descriptors


def discard_successor(channel: int) -> None:
    """Closes an end that was sent and not taken, if there is one."""
    with suppress(HandoffError):  # closed for want of a descriptor
        for end in receive_successor(channel):
            os.close(end)


@contextmanager
def _borrowed(channel: int) -> Iterator[socket.socket]:
    """The channel as an object, without another descriptor: there may be none left."""
    borrowed = socket.socket(fileno=channel)
    try:
        yield borrowed
    finally:
        borrowed.detach()


_MARK = b"successor"
_PASSING = frozenset((errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS))
