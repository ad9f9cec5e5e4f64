"""What the supervisor tells an acceptor while it runs: listeners that come, change and go, and TLS files that have changed.

One message each way over a SOCK_SEQPACKET pair, the socket of a listener along with it.

    order     CBOR: [verb, the fields of ListenerSockets, with the settings as plain values]
    answer    the problem as text, or one NUL if there is no problem
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cbor2

from shm.channels import dump_plain
from shm.topology import ListenerSockets

__all__ = ["Order", "discard_orders", "receive_order", "send_answer", "send_order", "take_answer"]

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
    fields = {**vars(order.listener), "settings": order.listener.settings.model_dump()}
    with socket.socket(fileno=_own(channel)) as end:
        descriptors = [] if descriptor is None else [descriptor]
        socket.send_fds(end, [dump_plain([order.verb, fields])], descriptors, socket.MSG_DONTWAIT)


def receive_order(channel: int, parse: Callable[[Any], Any]) -> tuple[Order, int] | None:
    """Returns (order, listening socket or -1), or None without an order. `parse` makes settings from plain values."""
    received = _receive(channel)
    if received is None:
        return None
    verb, fields = cbor2.loads(received[0])
    fields |= {"settings": parse(fields["settings"]), "descriptors": tuple(fields["descriptors"])}
    return Order(verb, ListenerSockets(**fields)), received[1]


def discard_orders(channel: int) -> None:
    """Takes the orders that an acceptor has not read, and closes the sockets that came with them."""
    while (received := _receive(channel)) is not None:
        if received[1] >= 0:
            os.close(received[1])


def _receive(channel: int) -> tuple[bytes, int] | None:
    with socket.socket(fileno=_own(channel)) as end:
        try:
            data, descriptors, _, _ = socket.recv_fds(end, ORDER_BYTES, 1, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
    return (data, descriptors[0] if descriptors else -1) if data else None


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
