"""Evacuation and rebalance of this node, and a rebalance of all nodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardbroker.config.units import parse_duration
from shardbroker.control import VERBS, ControlError
from shardbroker.control.cluster_verbs import Give, StartEvacuation, StartRebalance, StartRebalanceOfAll
from shardbroker.control.verbs import Params
from shardbroker.management.audit import AUTHOR
from shardbroker.management.cluster_view import peers_of
from shardbroker.management.context import HANDLERS, Context, handles
from shardbroker.management.rebalance import GIVE, STATUS, Answers, ask_all, participants, planned, rebalanced
from shardbroker.stores.evacuation import Evacuation, Thresholds

WAIT_MAX_S = 86_400.0


@handles("node evacuate start")
async def start(context: Context, params: StartEvacuation) -> dict[str, Any]:
    """Raises ControlError."""
    wanted = Evacuation(
        params.conn_rate, params.sess_rate, _seconds("wait_takeover", params.wait_takeover), params.redirect_to,
        tuple(params.migrate_to or ()), 0,
    )  # fmt: skip
    return context.evacuation.start(wanted, _seconds("wait", params.wait))


@handles("node evacuate stop")
async def stop(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError."""
    return await _stopped(context, "evacuation")


@handles("node evacuate status")
@handles("node rebalance status")
async def status(context: Context, params: Params) -> dict[str, Any]:
    return context.evacuation.status()


@handles("node rebalance start")
async def start_rebalance(context: Context, params: StartRebalance) -> dict[str, Any]:
    """Raises ControlError."""
    nodes = tuple(name for name in params.nodes or () if name != context.topology.node_name)
    if params.nodes and not nodes:
        raise ControlError("BAD_REQUEST", f"nodes: must name another node than {context.topology.node_name}")
    wanted = _wanted(params, nodes)
    return context.evacuation.start(wanted, _seconds("wait_health_check", params.wait_health_check))


@handles(GIVE)
async def give(context: Context, params: Give) -> dict[str, Any]:
    """Raises ControlError."""
    own = context.topology.node_name
    if own not in params.donors:
        raise ControlError("BAD_REQUEST", f"donors: must have {own}, got {', '.join(params.donors)}")
    wanted = replace(
        _wanted(params, tuple(name for name in params.nodes or () if name != own)), coordinator=params.coordinator,
        donors=tuple(params.donors), connection_goal=params.connection_goal, session_goal=params.session_goal,
    )  # fmt: skip
    return context.evacuation.start(wanted, _seconds("wait_health_check", params.wait_health_check))


@handles("cluster rebalance start")
async def start_rebalance_of_all(context: Context, params: StartRebalanceOfAll) -> dict[str, Any]:
    """Raises ControlError."""
    for name in "wait_health_check", "wait_takeover":
        _seconds(name, getattr(params, name))
    names = participants(context.topology.node_name, _peers(context), params.nodes or ())
    states, counters = await _ask_all(context, names, STATUS), await _ask_all(context, names, "metrics")
    moves = context.topology.settings.cluster.registry == "on"
    plan, left_out = planned(states, counters, params.nodes or (), _thresholds(params), moves)
    given = params.model_dump() | {
        "nodes": [*plan.donors, *plan.recipients], "donors": [*plan.donors], "coordinator": context.topology.node_name,
        "connection_goal": plan.connection_goal, "session_goal": plan.session_goal,
    }  # fmt: skip
    begun = await _ask_all(context, plan.donors, GIVE, **given)
    if not begun.found:
        raise next(iter(begun.errors.values()))
    return {
        "coordinator_node": context.topology.node_name,
        "donors": [*begun.found],
        "recipients": [*plan.recipients],
        "connection_goal": plan.connection_goal,
        "session_goal": plan.session_goal,
        "missing": [*left_out, *begun.missing],
    }


@handles("cluster rebalance stop")
async def stop_rebalance_of_all(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError."""
    states = await _ask_all(context, _linked(context), STATUS)
    names = [name for name, found in states.found.items() if found.get("process") == "rebalance"]
    if not names and not states.errors:
        raise ControlError("BAD_REQUEST", "no node is being rebalanced")
    ended = await _ask_all(context, names, "node rebalance stop")
    # One that refuses has ended by itself meanwhile.
    refused = {name: error for name, error in ended.errors.items() if error.code != "BAD_REQUEST"}
    return {"stopped": [name for name in names if name not in refused], "missing": Answers({}, states.errors | refused).missing}


@handles("cluster rebalance status")
async def status_of_all(context: Context, params: Params) -> dict[str, Any]:
    linked = _linked(context)
    states = await _ask_all(context, linked, STATUS)
    rows = [rebalanced(name, found) for name, found in states.found.items()]
    rows += [{"node": name, "state": "unknown", "message": str(error)} for name, error in states.errors.items()]
    rows += [
        {"node": peer.name, "state": "unknown", "message": f"its link is {peer.link}"}
        for peer in _peers(context)
        if peer.name not in linked
    ]
    return {"data": sorted(rows, key=lambda row: str(row["node"]))}


def _peers(context: Context) -> list[Any]:
    """Returns the other nodes; a broker alone has none."""
    return [] if context.view is None else peers_of(context.view.read(), context.topology)


def _linked(context: Context) -> list[str]:
    return sorted([context.topology.node_name, *(peer.name for peer in _peers(context) if peer.is_up)])


async def _ask_all(context: Context, names: Sequence[str], verb: str, /, **params: Any) -> Answers:
    """Has nodes carry out a verb, this one included."""

    async def ask(name: str, verb: str, params: dict[str, Any]) -> Any:
        if name == context.topology.node_name:
            return await HANDLERS[verb](context, VERBS[verb].params.model_validate(params))
        assert context.nodes is not None
        return await context.nodes.call(name, verb, params, AUTHOR.get())

    return await ask_all(names, ask, verb, params)


@handles("node rebalance stop")
async def stop_rebalance(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError."""
    return await _stopped(context, "rebalance")


async def _stopped(context: Context, process: str) -> dict[str, Any]:
    """Ends the process; returns once every worker that serves accepts clients. Raises ControlError."""
    context.evacuation.stop(process)
    await context.workers.caught_up()
    return context.evacuation.status()


def _thresholds(params: StartRebalance) -> Thresholds:
    return Thresholds(
        params.abs_conn_threshold, params.rel_conn_threshold, params.abs_sess_threshold, params.rel_sess_threshold
    )


def _wanted(params: StartRebalance, nodes: tuple[str, ...]) -> Evacuation:
    """Returns a rebalance of this node. Raises ControlError."""
    return Evacuation(
        params.conn_evict_rate, params.sess_evict_rate, _seconds("wait_takeover", params.wait_takeover), "", nodes, 0,
        thresholds=_thresholds(params),
    )  # fmt: skip


def _seconds(name: str, text: str) -> float:
    """Returns the seconds of a duration. Raises ControlError."""
    try:
        if (found := parse_duration(text)) <= WAIT_MAX_S:
            return found
    except ValueError:
        pass
    raise ControlError("BAD_REQUEST", f"{name}: must be a duration from 0s to 1d, such as 60s, got {text}")
