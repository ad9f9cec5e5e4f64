"""The cluster as this node sees it."""

from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.cluster_verbs import OneNode, Recovery
from shardbroker.control.verbs import Params
from shardbroker.management.cluster_view import LinkReports, core_state, core_view, peers_of
from shardbroker.management.context import Context, handles

OFF = "no cluster: this broker runs alone (cluster.enable = false); docs/cluster.md explains how brokers are joined"
NO_CORE = "no core: members are cluster.static.seeds (cluster.core.mode = none); remove the address there, on every node"

RECOVERY = (
    "the etcd of this node would go on as the only member of the core, with what it has of the members. What others alone have is "
    "lost, and the etcds of other nodes must not run: stop those brokers or cut them off, then repeat the command with --force"
)


@handles("cluster status")
async def status(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError without a cluster."""
    topology, view = context.topology, context.view
    if view is None:
        raise ControlError("NOT_AVAILABLE", OFF)
    state = view.read()
    peers = peers_of(state, topology)
    own = {
        "name": topology.node_name, "id": topology.node_id, "address": topology.link_address, "state": "running",
        "incarnation": view.incarnation,
    }  # fmt: skip
    others = [
        {"name": peer.name, "id": peer.id, "address": peer.address, "state": peer.state, "incarnation": peer.incarnation}
        for peer in peers
    ]
    reports = LinkReports(topology)
    nodes: list[dict[str, Any]] = [{**node, **reports.load(node["id"])} for node in (own, *others)]
    found = {
        "cluster": topology.settings.cluster.name,
        "self": topology.node_name,
        "nodes": nodes,
        "peers": [
            {"name": peer.name, "link": peer.link, "routes": peer.routes, "lag": peer.lag, **reports.link(peer)} for peer in peers
        ],
        "isolated": state.isolated,
        "epoch": state.epoch,
        "evacuation": context.evacuation.state_of("evacuation"),
        "rebalance": context.evacuation.state_of("rebalance"),
    }
    if topology.settings.cluster.has_core:
        members = {node.node_id: node.state for node in core_view(topology).nodes}
        for node in nodes:
            node["lease"] = members.get(node["id"], "") or "none"
        found["core"] = {"mode": topology.settings.cluster.core.mode, **core_state(topology)}
    return found


@handles("cluster force-leave")
async def force_leave(context: Context, params: OneNode) -> None:
    """Raises ControlError."""
    await _remove(context, "force-leave", params.node)


@handles("cluster forget")
async def forget(context: Context, params: OneNode) -> None:
    """Raises ControlError."""
    await _remove(context, "forget", params.node)


@handles("cluster core status")
async def core_status(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError."""
    _check_core(context)
    return {"data": await context.core.ask("core status")}


@handles("cluster core add")
async def core_add(context: Context, params: OneNode) -> dict[str, Any]:
    """Raises ControlError."""
    return await _change_core(context, "core add", params.node)


@handles("cluster core remove")
async def core_remove(context: Context, params: OneNode) -> dict[str, Any]:
    """Raises ControlError."""
    return await _change_core(context, "core remove", params.node)


@handles("cluster core recover")
async def core_recover(context: Context, params: Recovery) -> dict[str, Any]:
    """Raises ControlError."""
    if not params.force:
        raise ControlError("BAD_REQUEST", RECOVERY)
    return await _change_core(context, "core recover")


@handles("cluster leave")
async def leave(context: Context, params: Params) -> None:
    """Raises ControlError."""
    _check_core(context)
    await context.core.ask("core leave")


async def _change_core(context: Context, verb: str, node: str = "") -> dict[str, Any]:
    _check_core(context)
    found: dict[str, Any] = await context.core.ask(verb, node)
    return found


async def _remove(context: Context, verb: str, node: str) -> None:
    _check_core(context)
    await context.core.ask(verb, node)


def _check_core(context: Context) -> None:
    """Raises ControlError without a core."""
    if context.view is None:
        raise ControlError("NOT_AVAILABLE", OFF)
    if not context.topology.settings.cluster.has_core:
        raise ControlError("NOT_AVAILABLE", NO_CORE)
