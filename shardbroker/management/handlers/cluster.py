"""The cluster as this node sees it."""

from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.verbs import Params
from shardbroker.management.cluster_view import peers_of
from shardbroker.management.context import Context, handles

OFF = "no cluster: this broker runs alone (cluster.enable = false); docs/cluster.md explains how brokers are joined"


@handles("cluster status")
async def status(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError without a cluster."""
    topology, view = context.topology, context.view
    if view is None:
        raise ControlError("NOT_AVAILABLE", OFF)
    state = view.read()
    peers = peers_of(state, topology.settings.cluster, topology.link_address)
    own = {
        "name": topology.node_name, "id": topology.node_id, "address": topology.link_address, "state": "running",
        "incarnation": view.incarnation,
    }  # fmt: skip
    others = [
        {"name": peer.name, "id": peer.id, "address": peer.address, "state": peer.state, "incarnation": peer.incarnation}
        for peer in peers
    ]
    return {
        "cluster": topology.settings.cluster.name,
        "self": topology.node_name,
        "nodes": [own, *others],
        "peers": [{"name": peer.name, "link": peer.link, "routes": peer.routes, "lag": peer.lag} for peer in peers],
        "isolated": state.isolated,
        "epoch": state.epoch,
    }
