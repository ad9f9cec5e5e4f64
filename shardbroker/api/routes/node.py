"""The node: status, figures.

By hand: EMQX's names of fields (`/cluster`, `/cluster/topology`, `/nodes`, `/stats`), a list of nodes around one result
(`/metrics`), text (`/status`, `/prometheus/stats`), a state as an error (`/load_rebalance/availability_check`), and what this
process knows without a verb (`/monitor`, `/error_codes`).
"""

import os
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from shardbroker.api.calls import Call
from shardbroker.api.monitor import Monitor
from shardbroker.api.shapes import moment
from shardbroker.control.errors import STATUSES, ControlError

__all__ = ["router"]

router = APIRouter(tags=["Node"])
STATS = {
    "connections.count": "connections.count",
    "sessions.count": "sessions.count",
    "subscriptions.count": "subscriptions.count",
    "subscriptions.shared.count": "subscriptions.shared.count",
    "retained.count": "retained.count",
    "inflight.count": "inflight.count",
    "mqueue.count": "mqueue.count",
    "routes.count": "routes.count",
    "topics.count": "routes.count",
}
"""Gauges that EMQX calls stats -> gauge of this broker."""
STREAMS = 1
"""Streams of changes from a core node to a replicant: the watch of the members. In EMQX each table has some."""
DEFAULT_NAME = "shardbroker"
"""Name of the cluster of a broker alone: the default of `cluster.name`."""


@router.get("/status", response_class=Response)
async def status(call: Call, format: Literal["text", "json"] = "text") -> Response:
    """Whether the broker is running; 503 otherwise."""
    found = await call("status")
    if format == "json":
        body = {"node_name": found["node"], "rel_vsn": found["version"], "broker_status": "started", "app_status": "running"}
        return JSONResponse(body)
    return Response(f"Node {found['node']} is started\nshardbroker is running\n", media_type="text/plain")


@router.get("/error_codes")
async def error_codes() -> list[dict[str, Any]]:
    """Codes of errors, with the HTTP status of each."""
    return [{"code": code, "status": status} for code, status in STATUSES.items()]


@router.get("/cluster")
async def cluster(call: Call) -> dict[str, Any]:
    """Name of the cluster, names of its nodes, and of this one. A broker alone is its only node."""
    try:
        found = await call("cluster status")
    except ControlError as error:
        if error.code != "NOT_AVAILABLE":
            raise
        node = (await call("status"))["node"]
        return {"name": DEFAULT_NAME, "nodes": [node], "self": node}
    return {"name": found["cluster"], "nodes": [node["name"] for node in found["nodes"]], "self": found["self"]}


@router.get("/cluster/topology")
async def cluster_topology(call: Call) -> list[dict[str, Any]]:
    """The core nodes that answer, each with the replicants that keep their lease there. A broker alone is a core node."""
    try:
        found = (await call("cluster topology"))["data"]
    except ControlError as error:
        if error.code != "NOT_AVAILABLE":
            raise
        return [{"core_node": (await call("status"))["node"], "replicant_nodes": []}]
    users = [row for row in found if row["role"] == "replicant"]
    return [
        {
            "core_node": row["node"],
            "replicant_nodes": [{"node": one["node"], "streams": STREAMS} for one in users if row["node"] in one["cores"]],
        }
        for row in found
        if row["role"] == "core"
    ]


@router.get("/load_rebalance/availability_check")
async def availability_check(call: Call) -> dict[str, Any]:
    """For load balancers: 503 while this node is evacuated or rebalanced."""
    found = await call("node evacuate status")
    if found["status"] == "enabled":
        raise ControlError("NODE_EVACUATING", "Node Evacuating" if found["process"] == "evacuation" else "Node Rebalancing")
    return {}


@router.get("/load_rebalance/global_status")
async def global_status(call: Call) -> dict[str, Any]:
    """Evacuations and rebalances of all nodes; `purges` is empty."""
    answer: dict[str, Any] = {"evacuations": [], "purges": [], "rebalances": []}
    for node, found in await call.on_each("node evacuate status"):
        if found.pop("status") == "enabled":
            answer[f"{found['process']}s"].append({"node": node, **found})
    return answer


@router.get("/nodes")
async def nodes(call: Call) -> list[dict[str, Any]]:
    """This node, then the others of its cluster, with what they report to it; a node without a link is `stopped`."""
    return [_node(await call("status")), *await _others(call)]


@router.get("/nodes/{node}")
async def one_node(call: Call, node: str) -> dict[str, Any]:
    """A node of the cluster, by its name."""
    if node == call.node:
        return _node(await call("status"))
    for other in await _others(call):
        if other["node"] == node:
            return other
    raise ControlError("NOT_FOUND", f"no node {node!r}: this is {call.node}")


@router.get("/nodes/{node}/stats")
async def node_stats(call: Call, node: str) -> dict[str, Any]:
    """Gauges of a node."""
    return _stats(await call.at(node)("metrics"))


@router.get("/nodes/{node}/metrics")
async def node_metrics(call: Call, node: str) -> dict[str, Any]:
    """Counters of a node."""
    found: dict[str, Any] = await call.at(node)("metrics")
    return found


@router.get("/stats")
async def stats(call: Call) -> list[dict[str, Any]]:
    """Gauges of each node."""
    return [{"node": node, **_stats(found)} for node, found in await call.on_each("metrics")]


@router.get("/metrics")
async def metrics(
    call: Call, worker: Annotated[int | None, Query(ge=0, description="Of this worker only.")] = None
) -> list[dict[str, Any]]:
    """Counters and gauges of each node, named as in `ctl metrics`."""
    return [{"node": node, **found} for node, found in await call.on_each("metrics", worker=worker)]


@router.get("/monitor_current")
async def monitor_current(request: Request, call: Call) -> dict[str, Any]:
    """Rates per second over the last few seconds, and gauges. `dropped_msg_rate` counts all lost messages, `loss_rates` those of a
    reason."""
    kept: Monitor = request.app.state.monitor
    return await kept.current()


@router.get("/monitor")
async def monitor(
    request: Request, latest: Annotated[int, Query(ge=1, le=3600, description="Age of the oldest sample in seconds.")] = 3600
) -> list[dict[str, Any]]:
    """Samples of the last hour, the oldest first: increase of counters since the previous sample, and gauges. `dropped` counts all
    lost messages, `losses` by reason. The samples are kept in the process of the REST API."""
    kept: Monitor = request.app.state.monitor
    since_ms = time.time_ns() // 1_000_000 - latest * 1000
    return [row for row in kept.history() if row["time_stamp"] >= since_ms]


@router.get("/prometheus/stats", response_class=Response)
async def prometheus(call: Call) -> Response:
    """The text that Prometheus scrapes at `prometheus.bind`."""
    return Response(await call("prometheus"), media_type="text/plain; version=0.0.4; charset=utf-8")


def _node(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": found["node"],
        "node_status": "running" if found["running"] else "starting",
        "version": found["version"],
        "edition": "shardbroker",
        "uptime": found["uptime_ms"],
        "started_at": moment(time.time_ns() // 1_000_000 - found["uptime_ms"]),
        "connections": found["connections"],
        "live_connections": found["connections"],
        "role": "core",
        **dict(zip(("load1", "load5", "load15"), (round(load, 2) for load in os.getloadavg()), strict=True)),
        "process_used": found["workers"] + found["acceptors"] + 2,
        **{
            name: found[name]
            for name in ("pid", "workers", "workers_ready", "acceptors", "sessions", "subscriptions", "routes", "retained")
        },
    }


async def _others(call: Call) -> list[dict[str, Any]]:
    try:
        found = await call("cluster status")
    except ControlError as error:
        if error.code != "NOT_AVAILABLE":
            raise
        return []
    return [_other(node) for node in found["nodes"] if node["name"] != found["self"]]


def _other(found: dict[str, Any]) -> dict[str, Any]:
    known = {"node": found["name"], "node_status": found["state"], "edition": "shardbroker", "role": "core"}
    if found["version"] is None:
        return known
    uptime_ms = found["uptime_ms"]
    return {
        **known, "version": found["version"], "uptime": uptime_ms, "started_at": moment(time.time_ns() // 1_000_000 - uptime_ms),
        "connections": found["connections"], "live_connections": found["connections"], "sessions": found["sessions"],
        "load1": found["load1"],
    }  # fmt: skip


def _stats(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[ours] for name, ours in STATS.items()}
