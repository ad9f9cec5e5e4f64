"""What acceptors have to say: short messages to the manager, which writes the log. They never wait, and there are only so many.

A notice is CBOR: [level, text, how many before it were not sent].
"""

import os
import socket

import cbor2

__all__ = ["NOTICE_BYTES", "Notices", "quoted", "read_notice"]

NOTICES_A_SECOND = 20
"""From one acceptor: an attack must not become one on the log. What is left out is counted, and stands in the metrics."""

NOTICE_BYTES = 2048
"""Longest notice; a text is cut to a quarter of it."""


class Notices:
    """One acceptor's end of the channel."""

    def __init__(self, descriptor: int) -> None:
        self._channel = socket.socket(fileno=os.dup(descriptor))
        self._channel.setblocking(False)
        self._second = 0
        self._left = NOTICES_A_SECOND
        self._unsent = 0

    def say(self, level: str, text: str, now_ms: int) -> None:
        """For the log; `now_ms` never goes back."""
        if now_ms // 1000 != self._second:
            self._second, self._left = now_ms // 1000, NOTICES_A_SECOND
        if self._left:
            self._left -= 1
            try:
                self._channel.send(cbor2.dumps([level, text[: NOTICE_BYTES // 4], self._unsent]))
            except OSError:
                self._unsent += 1  # the manager is behind, or not there
            else:
                self._unsent = 0
        else:
            self._unsent += 1


def read_notice(data: bytes) -> tuple[str, str, int]:
    """(level, text, how many before it were not sent)."""
    level, text, unsent = cbor2.loads(data)
    return str(level), str(text), int(unsent)


def quoted(text: str) -> str:
    """In quotes, on one line: whatever a stranger has put into it, it writes no log lines of its own."""
    return '"' + "".join("\\" + c if c in '"\\' else c if c.isprintable() else ascii(c)[1:-1] for c in text) + '"'
