"""The layout that the supervisor prepares and every process inherits by fork: names, numbers (roles.py) and descriptors."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shm.channels import Pairs
from shm.partitions import Division
from shm.roles import Place

__all__ = [
    "COUNTERS", "INBOX", "PEER_INBOX", "RETAINED_DIR", "RINGS_DIR", "ROLES_FILE", "SPILL_DIR", "LeftOver", "ListenerSockets",
    "Topology",
]  # fmt: skip

RETAINED_DIR = "retained"
"""Directory of the retained messages, in the data directory."""
COUNTERS = "counters"
"""Segment in the runtime directory."""
RINGS_DIR, INBOX, PEER_INBOX, SPILL_DIR = "rings", "inbox-", "peer-", "spill"
"""In the runtime directory, and in that of the rings, which survives a killed broker by one rename."""
ROLES_FILE = "roles"
"""Beside the rings: the role of each process with an inbox, a line each."""


@dataclass(frozen=True)
class ListenerSockets:
    """One listener, with a bound, listening descriptor per acceptor; acceptors share the descriptor of a unix socket."""

    name: str
    number: int
    """Index in the counters, reused for another listener after this one is removed."""
    settings: Any = field(repr=False)
    """`shardbroker.config.listeners.Listener`."""
    descriptors: tuple[int, ...]
    address: str
    """Address in the public form: "ssl://127.0.0.1:8883"."""
    port: int
    """0 for a unix socket."""
    activated: bool = False
    """Opened by the service manager, which keeps it open."""
    is_internal: bool = False
    """Of a gateway: for the broker's own processes."""


@dataclass(frozen=True)
class LeftOver:
    """Rings in shared memory without a producer, and the messages that were too large for them."""

    directory: Path
    inboxes: tuple[str, ...]
    """Path of each process's inbox, which may already be removed."""
    spill_dir: Path
    peers: tuple[str, ...] = ()
    """Paths of the inboxes of cluster nodes, named as in `Topology.peer_inbox_name`."""
    roles: tuple[str, ...] = ()
    """Role of each process with an inbox, by slot; empty: of a broker that did not note them."""


@dataclass(frozen=True)
class Topology:
    """The layout of one running broker."""

    instance: str
    """Hex digest of the data directory's path, in the name of the runtime directory."""
    runtime_dir: Path
    """On tmpfs, mode 0700, this user's own (shm/runtime.py): segments, LMDB environments, spilled messages."""
    data_dir: Path
    places: tuple[Place, ...]
    """Places of all possible processes, by slot."""
    weights: tuple[int, ...] = field(default=(), kw_only=True)
    """Share of the sessions of each worker; empty: equal shares."""
    ring_bytes: int
    """Capacity of one lane, a power of two."""
    doorbells: tuple[int, ...]
    """eventfd per process with an inbox; write 1 to wake it."""
    channels: Pairs = field(repr=False)
    """Descriptor pairs between processes (channels.py)."""
    listeners: tuple[ListenerSockets, ...]
    settings: Any = field(repr=False)
    """The whole configuration at the start, `shardbroker.config.Settings`."""
    loaded: Any = field(default=None, repr=False)
    """Origin of the settings, `shardbroker.config.Loaded`; None: unknown."""
    written_by: int = 0
    """Number of the division (shm/partitions.py) that last wrote the journals; 0: there are no journals."""
    damage: tuple[str, ...] = ()
    """Damage found before any process started, for the log and an alarm of the manager."""
    left_over: tuple["LeftOver", ...] = ()
    """Rings of a broker that was killed, oldest first."""
    parse_listener: Callable[[Any], Any] = field(default=lambda values: values, repr=False)
    """Converts plain values to the settings of a listener."""
    parse_settings: Callable[[Any], Any] = field(default=lambda values: values, repr=False)
    """Converts plain values to the whole configuration."""
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    """Unix ms of the start of the broker, whose processes may start later."""
    node_id: int = 0
    """16 bits, part of message ids."""
    node_name: str = "shardbroker@127.0.0.1"
    link_socket: int = -1
    """Listening descriptor for connections of other nodes; -1 without a cluster."""
    link_address: str = ""
    """Address of this node among the members of its cluster."""
    cluster_uuid: bytes = b""
    """Uuid of the cluster; empty without one."""
    predecessor: tuple[int, int] | None = None
    """In a process that replaces a running one: its end of the pair to it, and the other end, to be closed, -1 if it is not in this
    process; None: it starts."""
    arrivals: tuple[tuple[int, ...], ...] = ()
    """In a worker of a number that was changed while the broker runs: for each such worker its end of the pair to each worker
    before; empty: it starts, or replaces one."""
    peer_ring_bytes: int = 0
    """Capacity of a ring from one worker to one peer, a power of two."""

    def close_listeners(self, acceptor: int | None) -> None:
        """Closes the listening sockets of other acceptors, or all of them (None), in a new process. Otherwise a removed listener
        would stay open without a process that accepts its connections."""
        for listener in self.listeners:
            own = None if acceptor is None else listener.descriptors[acceptor]
            for descriptor in {*listener.descriptors} - {own}:
                os.close(descriptor)

    @cached_property
    def division(self) -> Division:
        """Returns the assignment of sessions to workers."""
        return Division(self.workers, self.weights)

    def sending_ends(self, channel: str, number: int = 0) -> list[int]:
        """Returns the ends of a channel that process `number` of the sender has, by number of the receiver."""
        return [pair[0] for pair in self.channels[channel][number]]

    def receiving_ends(self, channel: str, number: int = 0) -> list[int]:
        """Returns the ends of a channel that process `number` of the receiver has, by number of the sender."""
        return [pairs[number][1] for pairs in self.channels[channel]]

    def places_of(self, role: str) -> list[Place]:
        """Returns the places of a role, by number."""
        return [place for place in self.places if place.role.name == role]

    @property
    def always_there(self) -> list[Place]:
        """Returns the places of processes that run under any settings."""
        return [place for place in self.places if place.role.needed is None]

    def slot_of(self, role: str, number: int = 0) -> int:
        """Returns the slot of process `number` of a role, which is the number of its inbox too if it has one."""
        return self.places_of(role)[number].slot

    @cached_property
    def workers(self) -> int:
        return len(self.places_of("worker"))

    @cached_property
    def acceptors(self) -> int:
        return len(self.places_of("acceptor"))

    @cached_property
    def links(self) -> int:
        """Returns the number of link processes, that for signals included; 0 without a cluster."""
        return len(self.places_of("link"))

    def link_of(self, worker: int) -> int:
        """Returns the number of the link process that has the data of a worker; only in a cluster."""
        return 1 + worker % (self.links - 1)

    @cached_property
    def manager(self) -> int:
        """Returns the process number of the manager."""
        return self.slot_of("manager")

    @cached_property
    def processes(self) -> int:
        """Returns the number of processes with an inbox, which have the numbers 0..processes-1."""
        return sum(place.role.inbox for place in self.places)

    def inbox_name(self, process: int) -> str:
        """Returns the path of a process's inbox."""
        return str(self.rings_dir / f"{INBOX}{process}")

    def peer_inbox_name(self, node: int, link: int) -> str:
        """Returns the path of the rings from all workers to a node, by number of the worker, that link process `link` reads."""
        return str(self.rings_dir / f"{PEER_INBOX}{node}-{link}")

    @property
    def rings_dir(self) -> Path:
        return self.runtime_dir / RINGS_DIR

    @property
    def counters_name(self) -> str:
        return str(self.runtime_dir / COUNTERS)

    @property
    def epochs_name(self) -> str:
        return str(self.runtime_dir / "epochs")

    @property
    def routes_dir(self) -> Path:
        return self.runtime_dir / "routes"

    @property
    def remote_routes_dir(self) -> Path:
        """Returns the directory of the routes of other nodes."""
        return self.runtime_dir / "routes-remote"

    @property
    def peer_routes_dir(self) -> Path:
        """Returns the directory in which the routes of other nodes outlive the broker."""
        return self.data_dir / "cluster" / "routes"

    @property
    def core_file(self) -> Path:
        """Returns the file with the members by the core, written by the process `cluster` once it has reached the core."""
        return self.runtime_dir / "core-members"

    @property
    def core_copy(self) -> Path:
        """Returns the file in which they outlive the broker."""
        return self.data_dir / "cluster" / "members"

    @property
    def core_state(self) -> Path:
        """Returns the file with the state of the process `cluster`, JSON."""
        return self.runtime_dir / "core.json"

    @property
    def cluster_values(self) -> Path:
        """Returns the file with the settings of all nodes, by the process `cluster`: shardbroker/config/cluster_values.py."""
        return self.runtime_dir / "core-config"

    @property
    def cluster_applied(self) -> Path:
        """Returns the file with what this node has applied of them, written by the manager: shardbroker/cluster/core.py."""
        return self.runtime_dir / "core-applied"

    @property
    def cluster_report(self) -> Path:
        """Returns the file with what all nodes have applied, written by the process `cluster`, JSON."""
        return self.runtime_dir / "core-applied.json"

    def link_report(self, number: int) -> Path:
        """Returns the file with what a link process reports: shardbroker/stores/link_reports.py."""
        return self.runtime_dir / f"link-{number}.json"

    @property
    def leaves_file(self) -> Path:
        """Returns the file that is there if this node leaves the cluster when it stops."""
        return self.runtime_dir / "leaves"

    @property
    def view_name(self) -> str:
        """Returns the path of the segment with the members of the cluster."""
        return str(self.runtime_dir / "view")

    @property
    def exclusive_dir(self) -> Path:
        return self.runtime_dir / "exclusive"

    @property
    def spill_dir(self) -> Path:
        """Returns the directory of messages too large for a ring: one file per message and destination, unlinked by the reader."""
        return self.rings_dir / SPILL_DIR

    def registry_dir(self, worker: int) -> Path:
        return self.runtime_dir / f"registry-{worker}"

    def journal_dir(self, worker: int) -> Path:
        """Returns the directory of a worker's journal: its sessions, and the messages captured for analytics."""
        return self.data_dir / "journal" / str(worker)

    @property
    def spool_dir(self) -> Path:
        """Returns the directory of messages for nodes that are not reachable."""
        return self.data_dir / "spool"

    @property
    def retained_dir(self) -> Path:
        return self.data_dir / RETAINED_DIR
