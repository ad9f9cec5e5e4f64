"""A process of a gateway is replaced while its devices stay connected; docs/design/0016-handover.md.

    supervisor     connects to the socket of the process, and forks a successor that has this connection
    successor   -> {"hello": FORMAT, "pid": ...}                          it has started
    predecessor -> {"refused": reason}                                    nothing has happened, and the successor ends
                 | {"sockets": n, "pid": ...} + memfd with the state       from now on it does nothing else
    predecessor -> {"descriptors": k} + k sockets                         until there are n
    successor   -> {"adopted": n}                                         all of it is in its tables
    predecessor -> {"yours": true}                                        the only step that cannot be undone
    predecessor    ends what does not move, and itself; the successor waits for that end, and serves

Both processes run these steps without a turn of their loops, so nothing is read, sent or timed between them: a predecessor that
continues notices nothing but time, and a successor that fails has done nothing that a device or a worker could notice.
"""

import asyncio
import gc
import marshal
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol

from shardbroker.logs.phrases import Line, log_line, print_line
from shm.peers import ENDED, HandoffError, Peer, await_end, in_memory, kill, open_descriptors

__all__ = ["Offer", "Replaceable", "Shared", "Succession"]

FORMAT = 1
"""Version of the messages. That of the state is `Role.moves` of the gateway, which an upgrade compares before."""
MARSHAL = 4
"""Version of `marshal`, read by each CPython since 3.4."""
HELLO_S = 20.0
"""Longest wait for the successor to start; this process serves meanwhile."""
ADOPTED_S = 10.0
"""Longest time in which the successor takes the state. No device is read meanwhile."""
STATE_S = 25.0
"""Longest wait of the successor for the state."""
LEFT_S = 3.0
"""Longest wait for the end of a predecessor that has given everything; it is killed then."""
KILLED_S = 5.0
"""Longest wait for the end of a process that was killed."""
DEAD_S = 1.0
"""Longest time in which a predecessor whose end of the pair has closed ends."""
SPARE_DESCRIPTORS = 16
"""Descriptors of a replacement at each of its ends, and some in reserve."""
BACKLOG = 2
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


class Replaceable(Protocol):
    """A process of a gateway as these steps see it."""

    loop: asyncio.AbstractEventLoop

    @property
    def is_behind(self) -> bool:
        """Whether settings have changed that this process has not applied."""

    def image(self) -> tuple[dict[str, Any], list[int]]:
        """Returns the state as plain values, and the descriptors of its sockets."""

    def adopt(self, state: Mapping[str, Any], descriptors: list[int]) -> None:
        """Takes the state and the sockets of the predecessor; nothing is read or sent."""

    def serve_on(self, by_s: float) -> None:
        """Continues where the predecessor was, after a time in which no device was read."""

    def shift(self, by_s: float) -> None:
        """Continues as the process that it was, after such a time."""

    def note_owner(self, pid: int) -> None:
        """Records the process that has the place."""

    def leave(self) -> None:
        """Ends what does not move."""

    def report(self, level: str, line: Line) -> None:
        """Logs a line of this process."""


class Shared(Protocol):
    """What the sessions of a gateway have in common."""

    def image(self) -> Any:
        """Returns the state as values that `marshal` writes."""

    def adopt(self, values: Any) -> None:
        """Takes the state of another process."""


class _Refused(Exception):
    """The state cannot be handed over now."""


class Offer:
    """The socket at which a process of a gateway awaits a successor."""

    def __init__(self, gateway: Replaceable, path: Path) -> None:
        """Raises OSError."""
        self._gateway = gateway
        self._peer: Peer | None = None
        self._late: Any = None
        self._socket = _listen(path)
        gateway.loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accepts no successor any more. The path is that of the next process already, or is replaced by it."""
        self._gateway.loop.remove_reader(self._socket)
        self._socket.close()
        self._drop()

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            return  # it has gone again, or no descriptor is left: the supervisor tries again
        _, uid, _ = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if self._peer is not None or uid != os.geteuid():
            accepted.close()
            return
        self._peer = Peer(accepted)
        self._gateway.loop.add_reader(accepted, self._answer)
        self._late = self._gateway.loop.call_later(HELLO_S, self._drop)

    def _drop(self) -> None:
        if self._peer is not None:
            self._forget()
            self._peer.close()
            self._peer = None

    def _forget(self) -> None:
        assert self._peer is not None
        self._gateway.loop.remove_reader(self._peer.fileno())
        self._late.cancel()

    def _answer(self) -> None:
        assert self._peer is not None
        self._forget()
        peer, self._peer = self._peer, None
        hand_over(self._gateway, peer)


def hand_over(gateway: Replaceable, peer: Peer) -> None:
    """Hands everything to the process at the other end, and ends this one. Returns if this process continues: the successor has
    ended then."""
    began, successor = time.monotonic(), -1
    try:
        successor, pid = _greeted(peer)
        try:
            with _no_collections():
                _give(gateway, peer, pid, began)
        except BaseException as error:
            _refuse(peer, str(error))
            _end(successor)
            gateway.note_owner(os.getpid())
            gateway.shift(time.monotonic() - began)
            raise
    except Exception as error:  # also a fault of this code: it costs the replacement, not the gateway
        _refuse(peer, str(error))
        peer.close()
        known = isinstance(error, _Refused | HandoffError | OSError)
        gateway.report("error", log_line("gateway not replaced", reason=error if known else repr(error)))
        return
    finally:
        if successor >= 0:
            os.close(successor)
    try:
        gateway.leave()
    finally:
        os._exit(0)  # every way through the loop, also that of an error, would write to sockets that are another process's


def _greeted(peer: Peer) -> tuple[int, int]:
    """Returns a pidfd of the successor, and its pid. Raises HandoffError, OSError, _Refused."""
    hello, _ = peer.receive(time.monotonic())
    if hello.get("hello") != FORMAT:
        raise _Refused(f"the successor sends messages of format {hello.get('hello')}, this process {FORMAT}")
    process = peer.process(hello["pid"])
    if process == ENDED:
        raise HandoffError("the successor has ended")
    return process, hello["pid"]


def _give(gateway: Replaceable, peer: Peer, pid: int, began: float) -> None:
    """Sends everything, up to the step that cannot be undone. Raises HandoffError, OSError, _Refused."""
    if gateway.is_behind:
        raise _Refused("changed settings are not applied yet")
    deadline = time.monotonic() + ADOPTED_S
    state, descriptors = gateway.image()
    used, limit = open_descriptors()
    if used + SPARE_DESCRIPTORS > limit:
        raise _Refused(f"{used} of {limit} descriptors are open")
    state["began"] = began
    memory = in_memory("handoff", lambda file: marshal.dump(state, file, MARSHAL))
    try:
        peer.send({"sockets": len(descriptors), "pid": os.getpid()}, deadline, [memory])
    finally:
        os.close(memory)
    peer.send_all(descriptors, deadline)
    adopted, _ = peer.receive(deadline)
    if adopted.get("adopted") != len(descriptors):
        raise HandoffError("the successor has not adopted every socket")
    gateway.note_owner(pid)
    peer.send({"yours": True}, deadline)


def _end(successor: int) -> None:
    """Kills the successor, and waits for its end: then no socket is in use by two processes."""
    if not kill(successor, KILLED_S):
        raise SystemExit("the successor could not be killed")


def _refuse(peer: Peer, reason: str) -> None:
    with suppress(HandoffError, OSError):  # it has ended
        peer.send({"refused": reason[:REASON_MAX]}, time.monotonic())


REASON_MAX = 500
"""Characters of an error in a message."""


class Succession:
    """The replacement of a process, as its successor sees it."""

    def __init__(self, end: int, title: str) -> None:
        """end: of the pair."""
        self._peer, self._title = Peer(socket.socket(fileno=end)), title

    def take_over(self, gateway: Replaceable) -> None:
        """Returns once everything is this process's. Ends the process if it is not."""
        predecessor = ENDED
        try:
            deadline = time.monotonic() + STATE_S
            self._peer.send({"hello": FORMAT, "pid": os.getpid()}, deadline)
            message, descriptors = self._peer.receive(deadline, 1)
            if "refused" in message:
                os._exit(1)  # the predecessor has logged the reason
            (memory,) = descriptors
            predecessor = self._peer.process(message["pid"])
            descriptors = self._peer.receive_all(message["sockets"], deadline)
            with _no_collections():
                state = _from_memory(memory)
                gateway.adopt(state, descriptors)
        except Exception as error:
            self._give_up(str(error) if isinstance(error, HandoffError | OSError) else repr(error))
        self._commit(predecessor, len(descriptors), deadline)
        gateway.serve_on(time.monotonic() - state["began"])

    def _commit(self, predecessor: int, count: int, deadline: float) -> None:
        try:
            self._peer.send({"adopted": count}, deadline)
            message, _ = self._peer.receive(deadline)
            if "yours" not in message:
                self._give_up("the predecessor continues")
        except HandoffError as error:
            # Killed, the predecessor has not gone on, since it kills this process before it does: everything it had is here.
            if not await_end(predecessor, DEAD_S):
                self._give_up(str(error))
        if not await_end(predecessor, LEFT_S):
            kill(predecessor, KILLED_S)
        if predecessor != ENDED:
            os.close(predecessor)
        self._peer.close()

    def _give_up(self, reason: str) -> NoReturn:
        print_line("error", self._title, log_line("successor ends", reason=reason))
        os._exit(1)  # without a last word in anything shared


@contextmanager
def _no_collections() -> Iterator[None]:
    """The values of a device are some dozen objects, none of them garbage: to look at all of them again and again would make the
    pause half as long again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _listen(path: Path) -> socket.socket:
    """Returns a listening socket at a path of the runtime directory, which this user alone may enter. Raises OSError."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        path.unlink(missing_ok=True)
        one.bind(str(path))
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def _from_memory(memory: int) -> dict[str, Any]:
    """Returns the state in a memfd, which a process of this broker has written, and closes it. Raises OSError, ValueError."""
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        found: dict[str, Any] = marshal.loads(file.read())  # load() would read the file value by value
    return found
