"""Which nodes are core nodes, and which of them a node uses.

Each node knows that of itself: whether it runs an etcd of the core, where that answers, and at which one it keeps its lease. So
nodes are asked for their rows, and the address of an etcd is found among the addresses of all.
"""

from collections.abc import Mapping
from typing import Any, Literal

from shardbroker.management.cluster_view import Peer, core_state, peers_of
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["CORE", "REPLICANT", "own_row", "rows"]

CORE: Literal["core"] = "core"
REPLICANT: Literal["replicant"] = "replicant"
UNKNOWN = "unknown"
"""Role of a node that has not answered."""


def own_row(topology: Topology, view: ViewSegment) -> dict[str, Any]:
    """Returns what this node knows of itself: `serves` and `uses` are addresses of etcd, `linked` the names of nodes."""
    cluster, state = topology.settings.cluster, core_state(topology)
    serves = str(state.get("serves", ""))
    return {
        "node": topology.node_name,
        "role": REPLICANT if cluster.is_managed and not serves else CORE,
        "serves": serves,
        "uses": state["endpoint"] if cluster.has_core and state["state"] == "connected" else "",
        "linked": [peer.name for peer in peers_of(view.read(), topology) if peer.is_up],
    }


def rows(peers: list[Peer], answers: Mapping[str, Any], reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns a row for each node, core nodes first. answers: own rows of nodes by their names; reasons: why a peer has none.

    `cores` are the core nodes that a core node is linked to, and the one at which a replicant keeps its lease.
    """
    known = {name: found for name, found in answers.items() if isinstance(found, dict)}
    roles = {name: found["role"] if found.get("role") in (CORE, REPLICANT) else UNKNOWN for name, found in known.items()}
    serving = {str(found["serves"]): name for name, found in known.items() if found.get("serves") and roles[name] == CORE}
    made = [
        {"node": name, "role": roles[name], "state": "running", "cores": _cores(found, roles, serving), "reason": ""}
        for name, found in known.items()
    ]
    made += [
        {"node": peer.name, "role": UNKNOWN, "state": peer.state, "cores": [], "reason": reasons.get(peer.name, "")}
        for peer in peers
        if peer.name not in known
    ]
    return sorted(made, key=lambda row: ((CORE, REPLICANT, UNKNOWN).index(str(row["role"])), str(row["node"])))


def _cores(found: dict[str, Any], roles: Mapping[str, str], serving: Mapping[str, str]) -> list[str]:
    if found.get("role") == CORE:
        linked = found.get("linked")
        return sorted(str(name) for name in linked if roles.get(str(name)) == CORE) if isinstance(linked, list) else []
    uses = str(found.get("uses", ""))
    return [serving.get(uses, uses)] if uses else []
