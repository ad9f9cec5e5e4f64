"""The cluster as this node sees it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.cluster_verbs import Adopt, JoinedMember, OneMember, OneNode, Recovery, WhichNodes
from shardbroker.control.verbs import Params
from shardbroker.management import joining
from shardbroker.management.cluster_map import own_row, rows
from shardbroker.management.cluster_view import LinkReports, core_state, core_view, peers_of
from shardbroker.management.context import Context, handles
from shardbroker.stores.adoption import Adoption

OFF = "no cluster: this broker runs alone (cluster.enable = false); docs/cluster.md explains how brokers are joined"
NO_CORE = "no core: members are cluster.static.seeds (cluster.core.mode = none); remove the address there, on every node"

PROGRESS_S = 5.0
"""Longest time between two looks at an adoption."""
REPEAT_S = 20.0
"""A state that does not change is sent again: `ctl` gives up on a broker that is silent for a minute."""
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


@handles("cluster topology")
async def topology(context: Context, params: WhichNodes) -> dict[str, Any]:
    """Raises ControlError without a cluster."""
    view, nodes = context.view, context.nodes
    if view is None or nodes is None:
        raise ControlError("NOT_AVAILABLE", OFF)
    own = own_row(context.topology, view)
    if params.own:
        return {"data": [own]}
    peers = peers_of(view.read(), context.topology)
    running = [peer for peer in peers if peer.is_up]
    calls = (nodes.call(peer.name, "cluster topology", {"own": True}, "") for peer in running)
    found = await asyncio.gather(*calls, return_exceptions=True)
    answers, reasons = {context.topology.node_name: own}, {peer.name: f"its link is {peer.link}" for peer in peers}
    for peer, answer in zip(running, found, strict=True):
        if isinstance(answer, ControlError):
            reasons[peer.name] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[peer.name] = _own_of(answer)
    return {"data": rows(peers, answers, reasons)}


def _own_of(answer: Any) -> Any:
    """Returns the row of a node in its answer, which may be anything."""
    found = answer.get("data") if isinstance(answer, dict) else None
    return found[0] if isinstance(found, list) and found else {}


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
async def core_add(context: Context, params: OneMember) -> dict[str, Any]:
    """Raises ControlError."""
    return await _change_core(context, "core add", params.node, params.address)


@handles("cluster core remove")
async def core_remove(context: Context, params: OneMember) -> dict[str, Any]:
    """Raises ControlError."""
    return await _change_core(context, "core remove", params.node, params.address)


@handles("cluster core recover")
async def core_recover(context: Context, params: Recovery) -> dict[str, Any]:
    """Raises ControlError."""
    if not params.force:
        raise ControlError("BAD_REQUEST", RECOVERY)
    return await _change_core(context, "core recover")


@handles("cluster join")
async def join(context: Context, params: JoinedMember) -> dict[str, Any]:
    """Raises ControlError."""
    return await joining.join(context, params.address, params.restart)


@handles("cluster leave")
async def leave(context: Context, params: Params) -> dict[str, Any] | None:
    """Raises ControlError."""
    if not joining.is_joined(context.topology.data_dir):
        _check_core(context)
    if context.topology.settings.cluster.has_core:
        await context.core.ask("core leave")
    return await joining.leave(context)


@handles("cluster adopt")
async def adopt(context: Context, params: Adopt) -> AsyncIterator[Any]:
    """Raises ControlError."""
    _check_core(context)
    adopter = context.adopter
    files = params.certfile, params.keyfile
    if params.check:
        yield await adopter.check(params.node, params.directory, *files, params.address)
        return
    wanted = Adoption(
        params.node, params.directory, "", 1, params.address, params.sess_rate, params.leave_behind, *files
    )  # fmt: skip
    running = await adopter.start(wanted)
    shown, due_s = None, 0.0
    while params.wait and not running.has_ended:
        row = running.row()
        if row != shown or time.monotonic() >= due_s:
            shown, due_s = row, time.monotonic() + REPEAT_S
            yield row
        running.changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(running.changed.wait(), PROGRESS_S)
    running.raise_failure()
    yield running.row()


@handles("cluster adoptions")
async def adoptions(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError."""
    _check_core(context)
    return {"data": context.adopter.rows()}


@handles("cluster stop-adoption")
async def stop_adoption(context: Context, params: OneNode) -> dict[str, Any]:
    """Raises ControlError."""
    _check_core(context)
    return await context.adopter.stop(params.node)


async def _change_core(context: Context, verb: str, node: str = "", address: str = "") -> dict[str, Any]:
    _check_core(context)
    found: dict[str, Any] = await context.core.ask(verb, node, address=address)
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
