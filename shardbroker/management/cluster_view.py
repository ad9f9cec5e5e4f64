"""The members of the cluster, from shared memory and from the core, and the alarms about them."""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from shardbroker.cluster.core import CoreNode, CoreView, decode_view
from shardbroker.cluster.view import LinkState, RouteState
from shardbroker.management.alarms import Alarm, StandingAlarm
from shardbroker.stores.link_reports import read_report
from shm.topology import Topology

__all__ = ["ClusterAlarms", "LinkReports", "Peer", "core_state", "core_view", "peers_of"]

HELD_MS = 5_000
"""How long a peer is down, or this node isolated, before the alarm: a broker that starts has no peers for a moment."""


SKEW_MS = 1_000
"""Difference of two clocks for an alarm: stamps order events of nodes by their clocks."""


class Peer(NamedTuple):
    """One member other than this node."""

    name: str
    """The address for a node that has never connected."""
    id: int | None
    address: str
    state: str
    """running or stopped, as far as this node knows."""
    incarnation: int
    """0 for a node that has never connected."""
    link: str
    """Name of a LinkState in lower case."""
    routes: str
    """bootstrap, local_replay or normal. For a peer that is not connected: where its next connection begins."""
    lag: int
    """Entries of this node's route log that the peer has not stored."""
    skew_ms: int
    """By which its clock is ahead of this node's, when it was last linked."""

    @property
    def is_up(self) -> bool:
        return self.link == "up"


class LinkReports:
    """What the link processes have reported last; a process that does not run has reported nothing."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._signals = read_report(topology.link_report(0))

    @cached_property
    def _data(self) -> list[dict[str, Any]]:
        return [read_report(self._topology.link_report(number)) for number in range(1, self._topology.links)]

    @property
    def differing(self) -> list[str]:
        """Returns the linked nodes with another `cluster.registry`."""
        return [*self._signals.get("differing", ())]

    def load(self, node_id: int | None) -> dict[str, Any]:
        """Returns the load that a node has reported; each value is None without a report or a link."""
        found: dict[str, Any] = self._signals.get("loads", {}).get(str(node_id), {})
        uptime_s, load1, turns_away = (found.get(name) for name in ("uptime_s", "load1", "turns_away"))
        return {
            "version": found.get("version"),
            "uptime_ms": None if uptime_s is None else uptime_s * 1000,
            "connections": found.get("connections"),
            "sessions": found.get("sessions"),
            "received_rate": found.get("received"),
            "sent_rate": found.get("sent"),
            "load1": None if load1 is None else load1 / 100,
            "accepts_clients": None if turns_away is None else not turns_away,
        }

    def link(self, peer: Peer) -> dict[str, Any]:
        """Returns the state of the data connections to a peer, the bytes that wait for it on disk, whether it has the retained
        messages of this node, and the users, rules, bans, accounts and keys (synced, syncing, or none for a peer that is not linked
        or takes none), and the last error."""
        links = [one["links"].get(str(peer.id)) for one in self._data if "links" in one]
        known = [one for one in links if one is not None]
        errors = [one.get("errors", {}).get(peer.address, "") for one in (self._signals, *self._data)]
        return {
            "data": "up" if known and len(known) == len(self._data) and all(one["connected"] for one in known) else "down",
            "spool_bytes": sum(one["spool_bytes"] for one in known),
            "retained": self._signals.get("retained", {}).get(str(peer.id), "none"),
            "access": self._signals.get("access", {}).get(str(peer.id), "none"),
            "error": next((error for error in errors if error), ""),
        }


def core_view(topology: Topology) -> CoreView:
    """Returns the members by the core, those that an earlier broker knew if it was not reached yet."""
    for path in (topology.core_file, topology.core_copy):
        with suppress(FileNotFoundError, ValueError):
            return decode_view(path.read_bytes())
    return CoreView()


def core_state(topology: Topology) -> dict[str, Any]:
    """Returns the contact to the core: state, error, endpoint, version."""
    with suppress(FileNotFoundError, ValueError):
        found: dict[str, Any] = json.loads(topology.core_state.read_bytes())
        return found
    return {"state": "connecting", "error": "", "endpoint": "", "version": ""}


def peers_of(state: Any, topology: Topology) -> list[Peer]:
    """Returns the members other than this node, in the order of `static.seeds`, or of ids with a core. `state`: ViewState of
    shm/view.pyx."""
    cluster, own_address = topology.settings.cluster, topology.link_address
    known = {node.address: (node_id, node) for node_id, node in state.nodes.items() if node.is_member}
    if not cluster.has_core:
        return [_peer(address, *known.get(address, (None, None))) for address in cluster.static.seeds if address != own_address]
    nodes = [node for node in core_view(topology).nodes if node.node_id != topology.node_id and not node.is_gone]
    return [_peer(node.address, *known.get(node.address, (node.node_id, None)), of_core=node) for node in nodes]


def _peer(address: str, node_id: int | None, node: Any, of_core: CoreNode | None = None) -> Peer:
    if node is None:
        return Peer(of_core.name if of_core is not None else address, node_id, address, "stopped", 0, "down", "bootstrap", 0, 0)
    link, routes = LinkState(node.link), RouteState(node.routes)
    is_running = link in (LinkState.SYNCING, LinkState.UP, LinkState.SUSPECT)
    if routes == RouteState.DISCONNECTED:
        routes = RouteState.BOOTSTRAP if is_running else RouteState.LOCAL_REPLAY
    return Peer(
        node.name, node_id, address, "running" if is_running else "stopped", node.incarnation, link.name.lower(),
        routes.name.lower(), node.lag, node.skew_ms,
    )  # fmt: skip


class ClusterAlarms:
    """Alarms of a node: it is isolated, peers are down, clocks or `cluster.registry` differ, or the core is lost."""

    def __init__(self, node: str, has_core: bool = False) -> None:
        self._isolated = StandingAlarm(node, "cluster_isolated", "error")
        self._down = StandingAlarm(node, "cluster_peer_down", "error")
        self._skew = StandingAlarm(node, "cluster_clock_skew", "warning")
        self._registry = StandingAlarm(node, "cluster_registry_differs", "error")
        self._core = StandingAlarm(node, "cluster_core_lost", "error")
        self._faults = StandingAlarm(node, "cluster_core_faulty", "error")
        self._has_core = has_core
        self._since_ms: dict[str, int] = {}

    def look(self, isolated: bool, peers: list[Peer], now_ms: int, differing: Sequence[str] = ()) -> list[Alarm | None]:
        """Checks the view of this node. differing: linked nodes with another `cluster.registry`."""
        missing = {peer.address: peer.name for peer in peers if not peer.is_up}
        self._since_ms = {one: self._since_ms.get(one, now_ms) for one in [*missing, *([ISOLATED] if isolated else [])]}
        late = {one for one, since_ms in self._since_ms.items() if now_ms - since_ms >= HELD_MS}
        down = tuple(name for address, name in missing.items() if address in late)
        text = f"no link to {', '.join(down)}; messages for their clients wait" if down else "all peers are linked"
        reached = sum(peer.state == "running" for peer in peers) + 1
        reachable = f"{reached} of {len(peers) + 1} nodes are reachable"
        isolation = f"{reachable}, and the core is not" if self._has_core else f"{reachable}, fewer than half"
        return [
            self._isolated.look(ISOLATED in late, isolation if isolated else "the node is not isolated any more", now_ms),
            self._down.look(down, text, now_ms, {"peers": [*down]}),
            self._look_at_clocks(peers, now_ms),
            self._look_at_registry(differing, now_ms),
        ]

    def look_at_core(self, core: dict[str, Any], now_ms: int) -> list[Alarm | None]:
        """Checks the contact to the core, and its own alarms: `core_state`. Members stay as they were until it is back."""
        is_lost = core["state"] in ("lost", "refused")
        faults = tuple(core.get("alarms", ()))
        text = "; ".join(CORE_FAULTS.get(one, f"etcd has the alarm {one}") for one in faults)
        return [
            self._core.look(is_lost, f"{core['state']}: {core['error']}" if is_lost else "the core is reached", now_ms),
            self._faults.look(faults, text or "etcd has no alarm", now_ms, {"alarms": [*faults]}),
        ]

    def _look_at_registry(self, differing: Sequence[str], now_ms: int) -> Alarm | None:
        names = tuple(differing)
        text = f"cluster.registry differs at {', '.join(names)}: clients do not find their sessions, and CONNECT is late"
        return self._registry.look(names, text if names else "cluster.registry is the same everywhere", now_ms, {"peers": [*names]})

    def _look_at_clocks(self, peers: list[Peer], now_ms: int) -> Alarm | None:
        skewed = {peer.name: peer.skew_ms for peer in peers if peer.state == "running" and abs(peer.skew_ms) > SKEW_MS}
        clocks = [f"{name} {abs(skew) / 1000:g} s {'ahead' if skew > 0 else 'behind'}" for name, skew in skewed.items()]
        text = f"clocks differ from this node's: {', '.join(clocks)}" if clocks else "clocks of all linked peers agree"
        return self._skew.look(tuple(skewed), text, now_ms, {"peers": [*skewed]})


CORE_FAULTS = {
    "NOSPACE": "NOSPACE: the database of etcd has reached its quota, and no member can join or leave; remove foreign keys, then "
    "etcdctl compact, defrag and alarm disarm",
    "CORRUPT": "CORRUPT: the members of etcd have different keys; stop the wrong one, remove it from the core, and add it again",
}
"""etcd's own alarms, and what to do."""
ISOLATED = ""
"""Key of the isolation beside the addresses of peers."""
