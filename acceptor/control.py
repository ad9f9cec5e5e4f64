"""What the supervisor tells an acceptor while it runs: listeners that come, change and go, and TLS files that have changed.

One message each way over a SOCK_SEQPACKET pair, the socket of a listener along with it. The supervisor is the acceptor's parent
and the channel nobody else's, so messages are pickled.
"""

import os
import pickle
import socket
from dataclasses import dataclass

from shm.topology import ListenerSockets

__all__ = ["Order", "receive_order", "send_answer", "send_order", "take_answer"]

ORDER_BYTES = 1 << 17
"""Longest order: a listener with hundreds of access rules."""


@dataclass(frozen=True)
class Order:
    """`verb`: "put" (a new listener, or other settings for one that there is), "remove", "reload" (its TLS files)."""

    verb: str
    listener: ListenerSockets
    """`descriptors` are the supervisor's; the acceptor gets a number of its own with the order."""


def send_order(channel: int, order: Order, descriptor: int | None) -> None:
    """Raises OSError if the acceptor does not take it."""
    with socket.socket(fileno=_own(channel)) as end:
        socket.send_fds(end, [pickle.dumps(order)], [] if descriptor is None else [descriptor], socket.MSG_DONTWAIT)


def receive_order(channel: int) -> tuple[Order, int] | None:
    """(order, listening socket or -1), None if there is none."""
    with socket.socket(fileno=_own(channel)) as end:
        try:
            data, descriptors, _, _ = socket.recv_fds(end, ORDER_BYTES, 1, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
    if not data:
        return None
    order: Order = pickle.loads(data)
    return order, descriptors[0] if descriptors else -1


def send_answer(channel: int, problem: str) -> None:
    """The order is carried out, or why it is not. The supervisor that has stopped waiting is not waited for."""
    with socket.socket(fileno=_own(channel)) as end:
        try:
            end.send(problem.encode() or b"\0", socket.MSG_DONTWAIT)
        except OSError:
            pass


def take_answer(channel: int, timeout_s: float) -> str | None:
    """The problem, empty if there is none; None if the acceptor does not answer in time."""
    with socket.socket(fileno=_own(channel)) as end:
        end.settimeout(timeout_s)
        try:
            return end.recv(ORDER_BYTES).strip(b"\0").decode(errors="replace")
        except OSError:
            return None
        finally:
            end.settimeout(0)


def _own(channel: int) -> int:
    return os.dup(channel)
