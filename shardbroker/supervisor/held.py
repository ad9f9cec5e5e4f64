"""Listening sockets that outlive the broker, so that an upgrade refuses no connection: they wait in the sockets for the successor.

The service manager passes them when the broker starts, by systemd's protocol (`LISTEN_FDS`, `LISTEN_FDNAMES`), in two forms:

- **activated**: a socket unit has opened it, and its `FileDescriptorName` is the name of a listener. The unit defines its address,
  and the listener's `bind` is ignored.
- **kept**: the broker has opened it and stored a copy with the service manager (`FDSTORE`), which passes it to the service's next
  process. Its name is that of the listener after `KEPT_PREFIX`. It is used if `bind` is still the same, and closed otherwise.
"""

import fcntl
import os
import socket
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field

from shardbroker.config.listeners import parse_address, unix_path
from shardbroker.supervisor.listening import StartError
from shardbroker.supervisor.notify import Notifier
from shm.topology import ListenerSockets

__all__ = ["KEPT_PREFIX", "HeldListener", "HeldSockets", "SocketStore", "hand_over"]

FIRST_DESCRIPTOR = 3
"""SD_LISTEN_FDS_START: the first descriptor passed, followed by the others."""
KEPT_PREFIX = "shardbroker."
"""Prefix of the listener's name; a listener's own name has no dot in it, so the two kinds never collide."""
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def hand_over(sockets: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Moves sockets to where the next program of this process expects them, whatever is open there; returns its variables.

    Only execve may follow.
    """
    free = FIRST_DESCRIPTOR + len(sockets)
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, free) for _, descriptor in sockets]
    for place, descriptor in enumerate(moved):
        os.dup2(descriptor, FIRST_DESCRIPTOR + place, inheritable=True)
    return dict(zip(VARIABLES, (str(os.getpid()), str(len(sockets)), ":".join(name for name, _ in sockets)), strict=True))


@dataclass(frozen=True)
class HeldListener:
    """The held sockets of one listener."""

    descriptors: tuple[int, ...] = ()
    activated: bool = False


@dataclass
class HeldSockets:
    """The sockets passed and not taken yet, by name."""

    by_name: dict[str, list[int]] = field(default_factory=dict)
    stored: tuple[str, ...] = ()
    """Names of listeners with sockets that the service manager has kept."""

    @classmethod
    def handed_over(cls, environment: MutableMapping[str, str] | None = None) -> "HeldSockets":
        """Returns the sockets passed to this process, and removes the variables from the environment. Raises StartError."""
        environment = os.environ if environment is None else environment
        pid, count, names = (environment.pop(name, "") for name in VARIABLES)
        held = cls()
        if pid != str(os.getpid()) or not count.isdecimal():
            return held
        given = names.split(":") if names else []
        for place in range(int(count)):
            descriptor = FIRST_DESCRIPTOR + place
            name = given[place] if place < len(given) else "unknown"
            try:
                with socket.socket(fileno=os.dup(descriptor)) as looked_at:
                    listens = looked_at.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            except OSError:
                listens = 0
            if not listens:
                raise StartError(f"the service manager hands over descriptor {descriptor}, {name}, which is not a listening socket")
            os.set_inheritable(descriptor, False)
            os.set_blocking(descriptor, False)
            held.by_name.setdefault(name, []).append(descriptor)
        held.stored = tuple(name.removeprefix(KEPT_PREFIX) for name in held.by_name if name.startswith(KEPT_PREFIX))
        return held

    def take(self, name: str, bind: str) -> HeldListener:
        """Takes the sockets of the listener of this name."""
        activated, kept = self.by_name.pop(name, []), self.by_name.pop(KEPT_PREFIX + name, [])
        fits = [one for one in kept if not activated and _address_of(one) == _wanted(bind)]
        for descriptor in kept:
            if descriptor not in fits:
                os.close(descriptor)
        return HeldListener(tuple(activated or fits), bool(activated))

    def finish(self, listeners: Iterable[str]) -> None:
        """Checks that no socket is left. Raises StartError for a socket of a unit without a listener: clients would wait in it for
        ever. Kept sockets of removed listeners are closed."""
        left, self.by_name = self.by_name, {}
        for descriptor in (one for descriptors in left.values() for one in descriptors):
            os.close(descriptor)
        strangers = [name for name in left if not name.startswith(KEPT_PREFIX)]
        if strangers:
            raise StartError(
                f"the service manager hands over sockets named {', '.join(strangers)}: allowed as FileDescriptorName= are the "
                f"names of the listeners, {', '.join(listeners)}"
            )


class SocketStore:
    """Stores the broker's own listening sockets with the service manager."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._kept: dict[str, tuple[int, ...]] = {}

    def begin(self, stored: Iterable[str]) -> None:
        """Notes the listeners whose sockets the service manager has from the last start: those of removed ones would stay open."""
        self._kept = dict.fromkeys(stored, ())

    def follow(self, listeners: Iterable[ListenerSockets]) -> None:
        """Updates the stored sockets after listeners were added, changed or removed."""
        own = {one.name: one.descriptors for one in listeners if not one.activated}
        for name in self._kept.keys() - own.keys():
            self._notifier.forget_sockets(KEPT_PREFIX + name)
        for name, descriptors in own.items():
            if self._kept.get(name) != descriptors:
                self._notifier.forget_sockets(KEPT_PREFIX + name)
                for descriptor in dict.fromkeys(descriptors):
                    self._notifier.keep_socket(KEPT_PREFIX + name, descriptor)
        self._kept = own


def _address_of(descriptor: int) -> object:
    with socket.socket(fileno=os.dup(descriptor)) as held:
        return held.getsockname()


def _wanted(bind: str) -> object:
    path = unix_path(bind)
    if path is not None:
        return path
    host, port = parse_address(bind)
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4]
