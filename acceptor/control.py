"""Orders of the supervisor to a running acceptor: listeners that are added, changed or removed, and TLS files that have changed.

One message each way over a SOCK_SEQPACKET pair; the socket of a listener travels with the order. Settings travel on another road
(shm/in_force.py): an order carries a descriptor, and its answer is the text of an error (docs/design/0007-configuration.md).

    order     CBOR: [verb, the fields of ListenerSockets, with the settings as plain values]
    answer    the error as text, or one NUL byte after success; of "pumps" a number
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
"""Most bytes of an order: a listener with hundreds of access rules."""


@dataclass(frozen=True)
class Order:
    """`verb`: "put" (a new listener, or new settings of an existing one), "remove", "reload" (its TLS files), "pumps" (how many TLS
    connections stay in the acceptor; the listener is not looked at)."""

    verb: str
    listener: ListenerSockets
    """`descriptors` are numbers of the supervisor; the acceptor receives its own descriptor with the order."""


def send_order(channel: int, order: Order, descriptor: int | None) -> None:
    """Sends an order. Raises OSError if the socket does not accept it."""
    fields = {**vars(order.listener), "settings": order.listener.settings.model_dump()}
    with socket.socket(fileno=_own(channel)) as end:
        descriptors = [] if descriptor is None else [descriptor]
        socket.send_fds(end, [dump_plain([order.verb, fields])], descriptors, socket.MSG_DONTWAIT)


def receive_order(channel: int, parse: Callable[[Any], Any]) -> tuple[Order, int] | None:
    """Returns (order, listening socket or -1), or None without an order. `parse` returns the settings of plain values."""
    received = _receive(channel)
    if received is None:
        return None
    verb, fields = cbor2.loads(received[0])
    fields |= {"settings": parse(fields["settings"]), "descriptors": tuple(fields["descriptors"])}
    return Order(verb, ListenerSockets(**fields)), received[1]


def discard_orders(channel: int) -> None:
    """Reads the orders that an acceptor has not read, and closes the sockets that they carry."""
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
    """Answers an order with its error, empty after success. A supervisor that no longer waits is ignored."""
    with socket.socket(fileno=_own(channel)) as end:
        try:
            end.send(problem.encode() or b"\0", socket.MSG_DONTWAIT)
        except OSError:
            pass


def take_answer(channel: int, timeout_s: float) -> str | None:
    """Returns the error of an order, empty after success; None if the acceptor does not answer in time."""
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
