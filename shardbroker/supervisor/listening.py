"""The listening sockets: made by the supervisor, so that connections wait in them while an acceptor restarts."""

import errno
import os
import socket
import stat
from contextlib import ExitStack, suppress

from acceptor.tls import TlsError, build_context
from shardbroker.config.listeners import Listener, parse_address, unix_path
from shm.topology import ListenerSockets

__all__ = ["StartError", "check_tls", "listen", "unlisten"]

BACKLOG = 4096
"""Connections that may wait to be accepted on one socket; the kernel caps it with net.core.somaxconn."""
UNIX_MODE, INTERNAL_MODE = 0o660, 0o600
"""Modes of a unix socket: the broker's user and group may connect, or for an internal one the user alone; the directory may
restrict access further."""


class StartError(Exception):
    """The broker, or a part of it, cannot start; the text has the obstacle."""


def check_tls(name: str, settings: Listener) -> None:
    """Checks the TLS files of a listener. Raises StartError."""
    if settings.secure:
        try:
            build_context(settings.tls, settings.over_websocket)
        except TlsError as error:
            raise StartError(f"listener {name}: {error}") from None


def listen(
    name: str, number: int, settings: Listener, acceptors: int, held: tuple[int, ...] = (), activated: bool = False,
    is_internal: bool = False,
) -> ListenerSockets:  # fmt: skip
    """Opens a listener: its files are checked, its sockets listen. Raises StartError; then no part of it is left open.

    `held` sockets are already listening. There is one for each acceptor if possible: acceptors share those of a unit, which has
    another owner, and of a unix socket; for others, further sockets are opened.
    """
    check_tls(name, settings)
    if activated and len(held) > acceptors:
        raise StartError(f"listener {name}: {len(held)} sockets of the service manager for {acceptors} acceptors: each needs one")
    for spare in held[acceptors:]:
        os.close(spare)
    held = held[:acceptors]
    path = unix_path(settings.bind)
    with ExitStack() as undo:
        for descriptor in held:
            undo.callback(os.close, descriptor)
        try:
            if held and (activated or path is not None):
                descriptors, (address, port) = tuple(held[i % len(held)] for i in range(acceptors)), _shown(held[0])
            elif path is None:
                descriptors, address, port = _listen_ip(settings, acceptors, undo, held)
            else:
                mode = INTERNAL_MODE if is_internal else UNIX_MODE
                descriptors, address, port = _listen_unix(path, mode, acceptors, undo), path, 0
        except OSError as error:
            raise StartError(f"listener {name}: cannot listen on {settings.bind}: {error.strerror or error}") from None
        undo.pop_all()
    return ListenerSockets(name, number, settings, descriptors, f"{_scheme(settings)}://{address}", port, activated, is_internal)


def unlisten(sockets: ListenerSockets, keep_path: bool = False) -> None:
    """Closes the supervisor's descriptors, and removes the path of a unix socket unless the service manager keeps it open."""
    for descriptor in set(sockets.descriptors):
        os.close(descriptor)
    path = unix_path(sockets.settings.bind)
    if path is not None and not keep_path and not sockets.activated:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _scheme(settings: Listener) -> str:
    unix = unix_path(settings.bind) is not None
    return {"tcp": "unix"}.get(settings.type, f"{settings.type}+unix") if unix else settings.type


def _kept(undo: ExitStack, descriptor: int) -> int:
    undo.callback(os.close, descriptor)
    return descriptor


def _shown(descriptor: int) -> tuple[str, int]:
    """Returns (address for display, port or 0) of a socket."""
    with socket.socket(fileno=os.dup(descriptor)) as held:
        name = held.getsockname()
        if held.family == socket.AF_UNIX:
            return os.fsdecode(name), 0
        return f"{_host(held.family, name[0])}:{name[1]}", int(name[1])


def _host(family: int, host: object) -> str:
    return f"[{host!s}]" if family == socket.AF_INET6 else str(host)


def _listen_ip(settings: Listener, acceptors: int, undo: ExitStack, held: tuple[int, ...]) -> tuple[tuple[int, ...], str, int]:
    """Opens a listening socket per acceptor on one address; with port 0 all get the port assigned to the first."""
    host, port = parse_address(settings.bind)
    descriptors = [*held]
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # SO_REUSEPORT would let two brokers share a port silently, so the port is probed first.
    if not held:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
    for _ in range(acceptors - len(held)):
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            descriptors.append(_kept(undo, listener.detach()))
    return tuple(descriptors), f"{_host(family, address[0])}:{int(address[1])}", int(address[1])


def _listen_unix(path: str, mode: int, acceptors: int, undo: ExitStack) -> tuple[int, ...]:
    """Opens one socket for all acceptors: unix sockets have no SO_REUSEPORT."""
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o777 & ~mode)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return (_kept(undo, listener.detach()),) * acceptors


def _remove_stale(path: str) -> None:
    """Removes a socket left behind by a killed broker, but not one in use, nor another file."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "path exists and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
