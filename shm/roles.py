"""The processes of a broker, a row for each kind, from which numbers, slots, inboxes, lanes, titles and the draining order follow.

Processes are numbered in the order of the table, those with an inbox before the others. The number of a process is that of its
counter slot and, with an inbox, also that of the inbox, of its doorbell and of its lane in every inbox. Workers are first, since
the number of a worker is also its destination in the route table (destinations.pxd).

A new kind of process is a row and an entry point: docs/design/0004-a-new-kind-of-process.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

__all__ = [
    "ACCEPTOR", "API", "CLUSTER", "COAP", "EXPROTO", "FLOWS", "INTEGRATIONS", "LINK", "MANAGER", "MQTTSN", "ROLES", "STOMP",
    "WORKER", "Cores", "Place", "Role", "lay_places", "load",
]  # fmt: skip

WORKER, MANAGER, LINK, FLOWS = "worker", "manager", "link", "flows"
INTEGRATIONS, API, ACCEPTOR, CLUSTER = "integrations", "api", "acceptor", "cluster"
COAP, EXPROTO, MQTTSN, STOMP = "gateway-coap", "gateway-exproto", "gateway-mqttsn", "gateway-stomp"
"""Names of the rows of ROLES."""


class Cores(NamedTuple):
    """Numbers of CPU cores: those usable by the broker, and those chosen for workers and for acceptors."""

    usable: Sequence[int]
    workers: Sequence[int]
    """Never empty: worker w runs on core w of them, modulo their number."""
    acceptors: Sequence[int] = ()
    """Empty: acceptors run on any usable core."""


@dataclass(frozen=True)
class Role:
    """A kind of process. Functions are named as `module:function`, so that a row loads nothing by itself."""

    name: str
    entry: str | Callable[..., None]
    """Runs the process until SIGTERM: `entry(topology)`, or `entry(topology, number)` if the row has a count. In its counter
    slot it sets the state READY, and DOWN at the end."""
    drain_order: int
    """Rows end in this order; the supervisor sends SIGTERM to a row when all rows with a lower one have ended."""
    inbox: bool = False
    count: Callable[[Any, Cores], int] | None = None
    """How many there are, from the settings and the cores, titled <name>-0 and so on; None: one, titled <name>."""
    cores: Callable[[Cores, int], Sequence[int]] = lambda cores, number: ()
    """Cores that process `number` is pinned to; empty: none."""
    needed: str | None = None
    """`needed(settings, listeners)`: whether the process runs. A process that becomes needed is started, and then stays."""
    loads_late: bool = False
    """The entry point is loaded only in its own process, not before the fork: most brokers do not need it, or it needs an extra
    that may be missing."""
    accepts: bool = False
    """Owns the listening sockets with its number. Draining begins with these processes, which leave the state READY."""
    sends_away: bool = False
    """Disconnects its clients over `process.drain_time`, in addition to the time that every process has to end."""
    moves: int = 0
    """Version of the state that a process hands to the one that replaces it while clients stay; 0: it is restarted instead. Workers
    have versions of their own (shardbroker/worker/handoff)."""
    watched: bool = False
    """Records its passes (`pass_us`): the service manager's watchdog detects a process without passes."""

    def is_needed(self, settings: Any, listeners: Sequence[Any]) -> bool:
        """Returns whether its processes run under these settings and settings of listeners."""
        return self.needed is None or bool(load(self.needed)(settings, listeners))


@dataclass(frozen=True)
class Place:
    """The place of one process of a role, which outlives the process."""

    role: Role
    number: int
    """Number within the role."""
    slot: int
    """Number among all processes: see the head of this module."""
    cores: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return self.role.name if self.role.count is None else f"{self.role.name}-{self.number}"

    @property
    def arguments(self) -> tuple[int, ...]:
        """Returns the arguments of the entry point after the topology."""
        return () if self.role.count is None else (self.number,)


def _workers(settings: Any, cores: Cores) -> int:
    return len(cores.workers) if settings.process.workers == "auto" else int(settings.process.workers)


def _acceptors(settings: Any, cores: Cores) -> int:
    return min(2, len(cores.usable)) if settings.process.acceptors == "auto" else int(settings.process.acceptors)


def _links(settings: Any, cores: Cores) -> int:
    """Number 0 has the signals of all peers, each other one data."""
    return 1 + int(settings.cluster.links) if settings.cluster.enable else 0


WORKERS_A_FLOWS = 8
"""Workers whose journals one process reads by default: it is to keep up with what they write for rules."""


def _flows(settings: Any, cores: Cores) -> int:
    """Without journals there is nothing to read."""
    if settings.durability.level == "none":
        return 0
    workers = _workers(settings, cores)
    wanted = settings.flows.processes
    return min(workers, -(-workers // WORKERS_A_FLOWS) if wanted == "auto" else int(wanted))


def _gateways(kind: str) -> Callable[[Any, Cores], int]:
    return lambda settings, cores: int(getattr(settings.gateways, kind).processes)


ROLES = (
    Role(
        WORKER, "shardbroker.worker.main:run", drain_order=10, inbox=True, count=_workers,
        cores=lambda cores, number: (cores.workers[number % len(cores.workers)],), sends_away=True, watched=True,
    ),
    Role(MANAGER, "shardbroker.management.main:run", drain_order=50, inbox=True),
    # After the last records of workers.
    Role(LINK, "shardbroker.link.main:run", drain_order=25, inbox=True, count=_links, loads_late=True),
    # After the last blocks of workers, and what other nodes had sent.
    Role(FLOWS, "shardbroker.flows.main:run", drain_order=27, inbox=True, count=_flows,
         needed="shardbroker.config.flows:needs_flows", loads_late=True),
    Role(INTEGRATIONS, "shardbroker.integrations.main:run", drain_order=40,
         needed="shardbroker.access.auth_client:needs_integrations"),
    Role(API, "shardbroker.api.main:run", drain_order=30, needed="shardbroker.config.api:needs_api", loads_late=True),
    # Clients over TLS are disconnected through the acceptors, which therefore end after the workers.
    Role(
        ACCEPTOR, "acceptor.main:run", drain_order=20, count=_acceptors, cores=lambda cores, number: cores.acceptors,
        accepts=True, watched=True,
    ),
    # After the workers, which disconnect its clients. A program reaches all devices of ExProto at one address, so there is one.
    Role(COAP, "shardbroker.gateways.coap.main:run", drain_order=15, count=_gateways("coap"),
         needed="shardbroker.config.gateways:needs_coap", loads_late=True, moves=1),
    Role(EXPROTO, "shardbroker.gateways.exproto.main:run", drain_order=15, needed="shardbroker.config.gateways:needs_exproto",
         loads_late=True),
    Role(MQTTSN, "shardbroker.gateways.mqttsn.main:run", drain_order=15, count=_gateways("mqttsn"),
         needed="shardbroker.config.gateways:needs_mqttsn", loads_late=True, moves=1),
    Role(STOMP, "shardbroker.gateways.stomp.main:run", drain_order=15, count=_gateways("stomp"),
         needed="shardbroker.config.gateways:needs_stomp", loads_late=True),
    # First of all: other nodes then take over its partitions, and need not wait for the end of its lease.
    Role(CLUSTER, "shardbroker.membership.main:run", drain_order=5, needed="shardbroker.config.cluster:needs_core",
         loads_late=True),
)  # fmt: skip
"""Roles in the order in which they are started."""


def lay_places(roles: Sequence[Role], settings: Any, cores: Cores) -> tuple[Place, ...]:
    """Returns the places of all processes, by slot."""
    places: list[Place] = []
    for role in sorted(roles, key=lambda role: not role.inbox):
        for number in range(1 if role.count is None else role.count(settings, cores)):
            places.append(Place(role, number, len(places), tuple(role.cores(cores, number))))
    return tuple(places)


def load(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function by its `module:function`, or the function itself. Raises ImportError, AttributeError."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
