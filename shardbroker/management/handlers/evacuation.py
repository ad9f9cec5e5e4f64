"""Evacuation and rebalance of this node."""

from typing import Any

from shardbroker.config.units import parse_duration
from shardbroker.control import ControlError
from shardbroker.control.cluster_verbs import StartEvacuation, StartRebalance
from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
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
    thresholds = Thresholds(
        params.abs_conn_threshold, params.rel_conn_threshold, params.abs_sess_threshold, params.rel_sess_threshold
    )
    nodes = tuple(name for name in params.nodes or () if name != context.topology.node_name)
    if params.nodes and not nodes:
        raise ControlError("BAD_REQUEST", f"nodes: must name another node than {context.topology.node_name}")
    wanted = Evacuation(
        params.conn_evict_rate, params.sess_evict_rate, _seconds("wait_takeover", params.wait_takeover), "", nodes, 0,
        thresholds=thresholds,
    )  # fmt: skip
    return context.evacuation.start(wanted, _seconds("wait_health_check", params.wait_health_check))


@handles("node rebalance stop")
async def stop_rebalance(context: Context, params: Params) -> dict[str, Any]:
    """Raises ControlError."""
    return await _stopped(context, "rebalance")


async def _stopped(context: Context, process: str) -> dict[str, Any]:
    """Ends the process; returns once every worker that serves accepts clients. Raises ControlError."""
    context.evacuation.stop(process)
    await context.workers.caught_up()
    return context.evacuation.status()


def _seconds(name: str, text: str) -> float:
    """Returns the seconds of a duration. Raises ControlError."""
    try:
        if (found := parse_duration(text)) <= WAIT_MAX_S:
            return found
    except ValueError:
        pass
    raise ControlError("BAD_REQUEST", f"{name}: must be a duration from 0s to 1d, such as 60s, got {text}")
