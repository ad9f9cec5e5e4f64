"""What the manager asks of the supervisor, whose process tree, sockets and descriptors are: CBOR maps over a SOCK_SEQPACKET pair.

One request at a time: {"verb": ..., ...} -> {"problem": text, empty if it was done, ...}. The supervisor looks at it between two
other things that it waits for, and never waits for the manager.
"""

import os
import socket
from typing import Any

import cbor2

__all__ = ["answer", "ask", "end_requests", "take_request"]

REQUEST_BYTES = 1 << 16
"""Longest request and answer: a listener with hundreds of access rules."""


def ask(channel: int, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The supervisor's answer. Raises OSError (TimeoutError too) if there is none."""
    with socket.socket(fileno=os.dup(channel)) as end:
        end.settimeout(0)
        try:
            while end.recv(REQUEST_BYTES):
                pass  # answers that a predecessor did not wait for
        except BlockingIOError:
            pass
        end.settimeout(timeout_s)
        end.send(cbor2.dumps(request))
        data = end.recv(REQUEST_BYTES)
        if not data:
            raise ConnectionError("the broker stops")
        found: dict[str, Any] = cbor2.loads(data)
        return found


def take_request(channel: int) -> dict[str, Any] | None:
    """The next request; None if there is none."""
    with socket.socket(fileno=os.dup(channel)) as end:
        try:
            data = end.recv(REQUEST_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
    found: dict[str, Any] = cbor2.loads(data)
    return found


def end_requests(channel: int) -> None:
    """Ends ask() of the other end at once, one that waits already too: nothing will be answered."""
    with socket.socket(fileno=os.dup(channel)) as end:
        end.shutdown(socket.SHUT_RDWR)


def answer(channel: int, result: dict[str, Any]) -> None:
    """To the request that was taken. A manager that takes no answers gets none."""
    with socket.socket(fileno=os.dup(channel)) as end:
        try:
            end.send(cbor2.dumps(result), socket.MSG_DONTWAIT)
        except OSError:
            pass
