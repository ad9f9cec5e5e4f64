"""What the supervisor lays out and every process inherits by fork: names, numbers and descriptors.

Processes have numbers: worker w is w (0..workers-1), the manager is `workers`. The number names the process's inbox, its
counter slot and its lane in everybody else's inbox.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["PARTITIONS", "RETAINED_DIR", "LeftOver", "ListenerSockets", "Topology"]

RETAINED_DIR = "retained"
"""Of the retained messages, in the data directory."""

PARTITIONS = 1024
"""Virtual session partitions: partition = crc32(client_id) % PARTITIONS, worker = partition % workers."""


@dataclass(frozen=True)
class ListenerSockets:
    """One listener: its name, type ("tcp"), and a bound, listening SO_REUSEPORT descriptor per acceptor."""

    name: str
    type: str
    descriptors: tuple[int, ...]


@dataclass(frozen=True)
class LeftOver:
    """Rings in shared memory that nobody writes to any more, and the messages that were too large for them."""

    inboxes: tuple[str, ...]
    """Name of each process's inbox."""
    spill_dir: Path


@dataclass(frozen=True)
class Topology:
    """The layout of one running broker.

    handover[a][w] is a SOCK_SEQPACKET pair (acceptor's end, worker's end); the supervisor keeps both ends open, so what
    was handed to a worker that died is still there for its successor.
    """

    instance: str
    """Hex digest of the data directory's path: prefix of segments and of the runtime directory."""
    runtime_dir: Path
    """On tmpfs, mode 0700: LMDB environments and spilled messages."""
    data_dir: Path
    workers: int
    acceptors: int
    cores: tuple[int, ...]
    """Core of each worker."""
    ring_bytes: int
    """Capacity of one lane, a power of two."""
    doorbells: tuple[int, ...]
    """eventfd per process number; write 1 to wake it."""
    handover: tuple[tuple[tuple[int, int], ...], ...]
    listeners: tuple[ListenerSockets, ...]
    settings: Any = field(repr=False)
    """The whole configuration at the start, `shardbroker.config.Settings`."""
    loaded: Any = field(default=None, repr=False)
    """Where it came from, `shardbroker.config.Loaded`; None: nobody has said."""
    journal_workers: int = 0
    """Number of workers that the journals were written by last; 0: there are none."""
    damage: tuple[str, ...] = ()
    """What was found damaged before any process started, for the manager to tell."""
    left_over: tuple["LeftOver", ...] = ()
    """Rings of a broker that was killed, oldest first."""
    access: tuple[tuple[int, int], ...] = ()
    """A SOCK_SEQPACKET pair for each worker (worker's end, integrations' end): questions about clients, and verdicts."""
    node_id: int = 0
    """16 bits, part of message ids."""
    node_name: str = "shardbroker@127.0.0.1"

    @property
    def manager(self) -> int:
        """Process number of the manager."""
        return self.workers

    @property
    def processes(self) -> int:
        """Processes with an inbox and a counter slot: workers and the manager."""
        return self.workers + 1

    @property
    def integrations(self) -> int:
        """Counter slot of the process integrations; it has no inbox."""
        return self.processes + self.acceptors

    def inbox_name(self, process: int) -> str:
        """POSIX shared memory name of a process's inbox."""
        return f"/shardbroker-{self.instance}-inbox-{process}"

    @property
    def counters_name(self) -> str:
        return f"/shardbroker-{self.instance}-counters"

    @property
    def epochs_name(self) -> str:
        return f"/shardbroker-{self.instance}-epochs"

    @property
    def routes_dir(self) -> Path:
        return self.runtime_dir / "routes"

    @property
    def spill_dir(self) -> Path:
        """Messages too large for a ring: one file per message and destination, unlinked by the reader."""
        return self.runtime_dir / "spill"

    def registry_dir(self, worker: int) -> Path:
        return self.runtime_dir / f"registry-{worker}"

    def journal_dir(self, worker: int) -> Path:
        """The worker's journal: its sessions, and what analytics asked for."""
        return self.data_dir / "journal" / str(worker)

    @property
    def retained_dir(self) -> Path:
        return self.data_dir / RETAINED_DIR
