"""Log messages of acceptors: short datagrams to the manager, which writes the log. They never block, and their rate is limited.

A notice is CBOR: [level, text, number of notices dropped before it].
"""

import os
import socket

import cbor2

from shardbroker.logs.phrases import Line

__all__ = ["NOTICE_BYTES", "Notices", "read_notice"]

NOTICES_A_SECOND = 20
"""Notices per second and acceptor: an attack on the broker must not flood the log. Dropped notices are counted, and so are the
refused connections."""

NOTICE_BYTES = 2048
"""Longest notice; its text is cut to a quarter of that."""


class Notices:
    """One acceptor's end of the channel."""

    def __init__(self, descriptor: int) -> None:
        self._channel = socket.socket(fileno=os.dup(descriptor))
        self._channel.setblocking(False)
        self._second = 0
        self._left = NOTICES_A_SECOND
        self._unsent = 0

    def log(self, level: str, text: Line, now_ms: int) -> None:
        """Sends a line for the log, or drops and counts it. `now_ms` is monotonic."""
        if now_ms // 1000 != self._second:
            self._second, self._left = now_ms // 1000, NOTICES_A_SECOND
        if self._left:
            self._left -= 1
            try:
                self._channel.send(cbor2.dumps([level, text[: NOTICE_BYTES // 4], self._unsent]))
            except OSError:
                self._unsent += 1  # the manager is behind or down
            else:
                self._unsent = 0
        else:
            self._unsent += 1


def read_notice(data: bytes) -> tuple[str, Line, int]:
    """Returns (level, text, number of notices dropped before it)."""
    level, text, unsent = cbor2.loads(data)
    return str(level), Line(str(text)), int(unsent)
