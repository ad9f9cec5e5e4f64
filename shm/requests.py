"""Requests of the manager to the supervisor, which owns the process tree, sockets and descriptors: CBOR maps over SOCK_SEQPACKET.

One request at a time: {"verb": ..., ...} -> {"problem": text, empty on success, ...}. The supervisor handles requests between its
other events and never waits for the manager.
"""

import os
import socket
from typing import Any

import cbor2

__all__ = ["DRAINED", "LEFT", "MOVED", "REFUSED", "RESTARTED", "answer", "call", "end_requests", "take_request"]

MOVED, RESTARTED, DRAINED, LEFT, REFUSED = "moved", "restarted", "drained", "left", "refused"
"""What an upgrade does with a part of the broker: nothing that a client notices | a new process | a new process, and its clients
are disconnected | it continues with the code that it has | nothing, and so with the whole broker."""

REQUEST_BYTES = 1 << 16
"""Longest request and longest answer: a listener with hundreds of access rules."""


def call(channel: int, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Sends a request and returns the supervisor's answer. Raises OSError (TimeoutError included) without one."""
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
    """Returns the next request, or None."""
    with socket.socket(fileno=os.dup(channel)) as end:
        try:
            data = end.recv(REQUEST_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
    found: dict[str, Any] = cbor2.loads(data)
    return found


def end_requests(channel: int) -> None:
    """Ends call() at the other end at once, a pending call included: no further request is answered."""
    with socket.socket(fileno=os.dup(channel)) as end:
        end.shutdown(socket.SHUT_RDWR)


def answer(channel: int, result: dict[str, Any]) -> None:
    """Answers the request that was taken. The answer is dropped if the manager does not read it."""
    with socket.socket(fileno=os.dup(channel)) as end:
        try:
            end.send(cbor2.dumps(result), socket.MSG_DONTWAIT)
        except OSError:
            pass
