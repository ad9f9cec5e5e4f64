"""The state of a supervisor for the program that takes its place by execve; docs/design/0016-handover.md.

    save(topology, kept, lock)     memfd with plain values, and every descriptor of the broker inheritable     old program
    look(memfd)                    what differs; nothing is changed                                            new program, tried
    read(memfd)                    topology, what was kept, lock                                               new program

The process stays the same: its pid, its children with their death signal, locks of open files and blocked signals outlast execve.
All names in shared memory are in the topology. A value that the new program does not know, and a role that has another place there,
is an UpgradeError: the broker has to be restarted then.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zlib import crc32

import cbor2
from pydantic import BaseModel, ValidationError

from shardbroker import __version__
from shardbroker.cluster.handshake import PROTO_MAX, PROTO_MIN
from shardbroker.config import Loaded, Settings
from shardbroker.config.listeners import Listener
from shardbroker.journal.layout import FORMAT_VERSION
from shardbroker.journal.schema import SCHEMA_VERSION
from shardbroker.worker.handoff.protocol import FORMAT as HANDOFF
from shardbroker.worker.handoff.protocol import FORMAT_OF_NODE as HANDOFF_OF_NODE
from shm.channels import CHANNELS, dump_plain
from shm.counters import HISTOGRAMS, NAMES
from shm.layouts import LAYOUTS, LAYOUTS_OF_NODE
from shm.peers import in_memory
from shm.roles import ROLES, Place, Role
from shm.topology import ListenerSockets, Topology

__all__ = ["AdoptedProcess", "Image", "UpgradeError", "UselessError", "descriptors_of", "look", "read", "save", "undo_save"]

FORMAT = 1
"""Version of the values; a program reads only its own."""
PLAIN = (
    "instance", "weights", "ring_bytes", "doorbells", "written_by", "damage", "started_ms", "node_id", "node_name", "link_socket",
    "link_address", "cluster_uuid", "peer_ring_bytes",
)  # fmt: skip
"""Fields of Topology that are plain values, or tuples of them."""


OF_LISTENER = ("descriptors", "address", "port", "activated", "is_internal")
"""Fields of ListenerSockets after its name, number and settings."""


class UpgradeError(Exception):
    """The running broker cannot be continued by this program, which can start instead of it; the text has the reason."""


class UselessError(UpgradeError):
    """This program could not even start with the data of the running broker."""


@dataclass(frozen=True)
class Image:
    """What the new program continues with."""

    topology: Topology
    kept: Mapping[str, Any]
    """Plain values of the supervisor."""
    lock: int
    version: str
    """Of the program that wrote it."""
    moves_workers: bool
    """Whether workers of both programs understand each other's state."""
    moves_roles: tuple[str, ...]
    """Other roles whose processes do so."""


def layouts(is_node: bool = False) -> dict[str, int]:
    """Returns the version of everything that processes of both programs have in shared memory, or send to each other.

    is_node: the broker is a node of a cluster.
    """
    return LAYOUTS | (LAYOUTS_OF_NODE if is_node else {}) | {
        "names of counters": crc32(repr((NAMES, HISTOGRAMS)).encode()),
        "channels": crc32(repr([(one.name, one.sender, one.receiver, int(one.kind), one.shared) for one in CHANNELS]).encode()),
    }


def formats() -> dict[str, int]:
    """Returns the versions of what outlasts a process."""
    return {"journal": FORMAT_VERSION, "records of the journal": SCHEMA_VERSION, "hand-over": HANDOFF} | formats_of_roles(ROLES)


def formats_of_roles(roles: Iterable[Role]) -> dict[str, int]:
    """Returns the versions of what passes between a process and its successor, by role; no entry: its processes are restarted."""
    return {role.name: role.moves for role in roles if role.moves}


def formats_of_node() -> dict[str, int]:
    """Returns the versions of what passes between a worker of a node and its successor, and between nodes."""
    return {"hand-over": HANDOFF_OF_NODE, "link protocol": PROTO_MAX}


def save(topology: Topology, kept: Mapping[str, Any], lock: int) -> int:
    """Returns a memfd for `read`; it and all descriptors of the broker survive execve. Raises OSError.

    It holds the secrets of the settings, as the memory of every process of the broker does, and no file system has it.
    """
    memory = written(topology, kept, lock)
    try:
        for descriptor in (*descriptors_of(topology), lock, memory):
            os.set_inheritable(descriptor, True)
    except BaseException:
        undo_save(topology, lock, memory)
        raise
    return memory


def written(topology: Topology, kept: Mapping[str, Any], lock: int) -> int:
    """Returns a memfd for `look`; nothing is inherited yet. Raises OSError."""
    values = {
        "format": FORMAT,
        "version": __version__,
        "layouts": layouts(topology.links > 0),
        "formats": formats(),
        **({"formats_of_node": formats_of_node()} if topology.links else {}),
        "roles": [role.name for role in ROLES],
        "kept": dict(kept),
        "lock": lock,
        "topology": {name: getattr(topology, name) for name in PLAIN},
        "paths": [str(topology.runtime_dir), str(topology.data_dir)],
        "places": [[one.role.name, one.role.inbox, one.number, one.slot, one.cores] for one in topology.places],
        "channels": topology.channels,
        "listeners": [
            [one.name, one.number, _set(one.settings), *(getattr(one, name) for name in OF_LISTENER)]
            for one in topology.listeners
        ],
        "settings": _set(topology.settings),
    }
    return in_memory("supervisor", lambda file: file.write(dump_plain(values)))


def _set(settings: BaseModel) -> dict[str, Any]:
    """Returns what is not as by default: an earlier program does not know keys that were added since, and refuses the state only if
    one of them is set."""
    return settings.model_dump(exclude_defaults=True)


def undo_save(topology: Topology, lock: int, memory: int) -> None:
    """There is no execve after all: programs that are started later inherit nothing."""
    os.close(memory)
    for descriptor in (*descriptors_of(topology), lock):
        with suppress(OSError):
            os.set_inheritable(descriptor, False)


def descriptors_of(topology: Topology) -> Iterator[int]:
    """Yields every descriptor in a topology, each once."""
    found = {*topology.doorbells, topology.link_socket}
    for listener in topology.listeners:
        found.update(listener.descriptors)
    for senders in topology.channels.values():
        for receivers in senders:
            for pair in receivers:
                found.update(pair)
    yield from sorted(found - {-1})


def look(memory: int, roles: Sequence[Role] = ROLES) -> Image:
    """Returns the state without using it, and closes the memfd. Raises UpgradeError."""
    return _image(_values(memory), None, roles)


def read(memory: int, loaded: Loaded | None = None, roles: Sequence[Role] = ROLES) -> Image:
    """Returns the state, and closes the memfd. Raises UpgradeError.

    loaded: the sources of the settings as this program reads them; those in force are the ones of the image.
    """
    image = _image(_values(memory), loaded, roles)
    for descriptor in (*descriptors_of(image.topology), image.lock):
        os.set_inheritable(descriptor, False)
    return image


def _values(memory: int) -> dict[str, Any]:
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        values: dict[str, Any] = cbor2.load(file)
    if values.get("format") != FORMAT:
        raise UpgradeError(f"format {values.get('format')} of the supervisor's state, this program reads {FORMAT}")
    return values


def _image(values: Mapping[str, Any], loaded: Loaded | None, roles: Sequence[Role]) -> Image:
    ours = formats()
    for name in ("journal", "records of the journal"):
        if ours[name] < values["formats"][name]:
            raise UselessError(f"{name}: version {values['formats'][name]}, this program reads {ours[name]}")
    known = layouts("formats_of_node" in values)
    other = [name for name in sorted({*known, *values["layouts"]}) if known.get(name) != values["layouts"].get(name)]
    if other:
        raise UpgradeError(f"other layout in shared memory: {', '.join(other)}")
    more = [role.name for role in roles if role.name not in values["roles"]]
    if more:
        raise UpgradeError(f"the running broker has no place for a process {more[0]}")
    try:
        settings = Settings.model_validate(values["settings"])
        listeners = tuple(
            ListenerSockets(name, number, Listener.model_validate(own), tuple(descriptors), *rest)
            for name, number, own, descriptors, *rest in values["listeners"]
        )
    except ValidationError as error:
        raise UpgradeError(f"settings that this program does not accept: {error.errors()[0]['loc']}") from None
    runtime_dir, data_dir = map(Path, values["paths"])
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values["topology"].items()}
    parts = {one.name for one in fields(Topology)}
    if not plain.keys() <= parts:
        raise UpgradeError(f"unknown parts of the topology: {', '.join(sorted(plain.keys() - parts))}")
    topology = Topology(
        runtime_dir=runtime_dir,
        data_dir=data_dir,
        places=tuple(_places(values["places"], {role.name: role for role in roles})),
        channels={
            name: tuple(tuple(tuple(pair) for pair in receivers) for receivers in senders)
            for name, senders in values["channels"].items()
        },
        listeners=listeners,
        settings=settings,
        loaded=loaded,
        parse_listener=Listener.model_validate,
        parse_settings=Settings.model_validate,
        **plain,
    )
    moves = values["formats"]["hand-over"] == ours["hand-over"]
    if topology.links:
        moves = _compare_node(values.get("formats_of_node")) and moves
    also = tuple(name for name, number in formats_of_roles(roles).items() if values["formats"].get(name) == number)
    return Image(topology, values["kept"], values["lock"], values["version"], moves, also)


def _compare_node(theirs: Mapping[str, int] | None) -> bool:
    """Returns whether workers of a node of a cluster can move. Raises UpgradeError."""
    if theirs is None:
        raise UpgradeError("the running broker is a node of a cluster, and its version replaces no processes of one")
    ours, spoken = formats_of_node(), theirs["link protocol"]
    if not PROTO_MIN <= spoken <= PROTO_MAX:
        versions = f"{PROTO_MIN}" if PROTO_MIN == PROTO_MAX else f"{PROTO_MIN} to {PROTO_MAX}"
        raise UselessError(f"link protocol: other nodes speak version {spoken}, this program {versions}; stop all nodes to upgrade")
    return theirs["hand-over"] == ours["hand-over"]


def _places(rows: Iterable[Sequence[Any]], roles: Mapping[str, Role]) -> Iterator[Place]:
    """Processes keep their slots: what is in shared memory is numbered by them."""
    for name, inbox, number, slot, cores in rows:
        role = roles.get(name)
        if role is None:
            raise UpgradeError(f"no role {name} in this program")
        if role.inbox != inbox:
            raise UpgradeError(f"role {name} has {'an' if role.inbox else 'no'} inbox in this program")
        yield Place(role, number, slot, tuple(cores))


class AdoptedProcess:
    """A child that an earlier program of this process has started, with the methods of multiprocess.Process that Child uses.

    It has not been waited for, so its number cannot be that of another process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.sentinel = os.pidfd_open(pid)
        """Readable when the process has ended."""
        self.exitcode: int | None = None

    def join(self) -> None:
        """Waits for the end of the process."""
        self._wait(0)

    def is_alive(self) -> bool:
        """Returns whether the process runs."""
        self._wait(os.WNOHANG)
        return self.exitcode is None

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._send(signal.SIGKILL)

    def close(self) -> None:
        """Closes the descriptor; the process has ended."""
        os.close(self.sentinel)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, number)

    def _wait(self, options: int) -> None:
        if self.exitcode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.exitcode = os.waitstatus_to_exitcode(status)
