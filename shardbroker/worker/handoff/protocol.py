"""Messages between a worker and those that follow it, over pairs that the supervisor has made (shm/peers.py).

A worker and its successor:

    successor   -> {"hello": FORMAT, "node": FORMAT_OF_NODE, "pid": ...}   it is ready to take over
    predecessor -> {"refused": reason}                                  nothing has happened, and the successor ends
                 | {"connections": n, "pid": ...} + memfd with the state    the predecessor reads and sends nothing any more
    predecessor -> {"descriptors": k} + k sockets of clients            until there are n
    successor   -> {"adopted": n}                                       all of it is in its tables
    predecessor -> {"yours": true}                                      the only step that cannot be undone
    predecessor -> {"left": true}                                       it has closed sockets and journal, and ends

All workers of a broker end, and others follow; first over a pair of each worker with the supervisor:

    supervisor -> {"look": true}         worker -> {"reason": text, "taken": n}   from the first of these on it serves nothing
                                                 | {"refused": reason}
    supervisor -> {"continue": true}                                              it serves as before; possible until "close"
    supervisor -> {"part": [workers, weights]} worker -> {"parted": [connections, ...]} | {"failed": reason}
    supervisor -> {"close": true}        worker -> {"closed": true}               its journal is closed
    supervisor -> {"ends": n}, then n descriptors                                 an end for each worker that follows, in order

and then over a pair of each of them with each worker that follows:

    before -> {"connections": n} + memfd with the state, then {"descriptors": k} + k sockets, until there are n
    after  -> {"adopted": n}
    before -> {"left": true}              it has closed these sockets

The end of a process is seen by the end of the stream, since no third process has an end of the pair.
"""

import marshal
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cbor2

from shm.peers import HandoffError, in_memory

__all__ = [
    "FORMAT", "FORMAT_OF_NODE", "REASON_MAX", "discard_successor", "receive_end", "send_departure", "send_successor",
    "state_from_memory", "state_in_memory",
]  # fmt: skip

FORMAT = 3
"""Version of the state. A successor with another one is refused. Since 2 it fences the output of connections at level `machine`;
since 3 connections and facts about sessions are in BULK_FORMAT."""
FORMAT_OF_NODE = 1
"""Version of what the state of a node of a cluster has besides; compared by such nodes alone."""
BULK = ("connections", "facts")
"""Parts of the state with values for each client. They are in BULK_FORMAT, which takes a third of the time of CBOR."""
BULK_FORMAT = 4
"""Of `marshal`, read by each CPython since 3.4."""
REASON_MAX = 500
"""Characters of an error in a message."""


def send_successor(channel: int, end: int) -> None:
    """Gives a worker its end of the pair to a successor. Raises OSError."""
    _send_end(channel, end, _SUCCESSOR)


def send_departure(channel: int, end: int) -> None:
    """Gives a worker its end of the pair to the supervisor, which ends all workers. Raises OSError."""
    _send_end(channel, end, _DEPARTURE)


def _send_end(channel: int, end: int, mark: bytes) -> None:
    with _borrowed(channel) as sender:
        socket.send_fds(sender, [mark], [end], socket.MSG_DONTWAIT)


def receive_end(channel: int) -> tuple[list[int], bool]:
    """Returns the end that was sent, or nothing, and whether it is that of a departure. Raises HandoffError if no descriptor is
    left for it here: it is closed then, which the other process notices."""
    with _borrowed(channel) as receiver:
        try:
            mark, descriptors, flags, _ = socket.recv_fds(receiver, MARK_MAX, 1, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return [], False
    if flags & socket.MSG_CTRUNC:
        raise HandoffError("no descriptor is left for the pair to the successor")
    return descriptors, mark == _DEPARTURE


def state_in_memory(given: dict[str, Any]) -> int:
    """Returns a memfd with a state, which holds keys of TLS connections. Raises OSError, ValueError."""
    state = given | {name: marshal.dumps(given[name], BULK_FORMAT) for name in BULK}
    return in_memory("handoff", lambda file: cbor2.dump(state, file))


def state_from_memory(memory: int) -> dict[str, Any]:
    """Returns the state in a memfd, which a process of this broker has written, and closes it. Raises OSError, ValueError."""
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        found: dict[str, Any] = cbor2.load(file)
    return found | {name: marshal.loads(found[name]) for name in BULK}


def discard_successor(channel: int) -> None:
    """Closes an end that was sent and not taken, if there is one."""
    with suppress(HandoffError):  # closed for want of a descriptor
        for end in receive_end(channel)[0]:
            os.close(end)


@contextmanager
def _borrowed(channel: int) -> Iterator[socket.socket]:
    """The channel as an object, without another descriptor: there may be none left."""
    borrowed = socket.socket(fileno=channel)
    try:
        yield borrowed
    finally:
        borrowed.detach()


_SUCCESSOR, _DEPARTURE = b"successor", b"departure"
MARK_MAX = 16
"""Longest of these marks, bytes."""
