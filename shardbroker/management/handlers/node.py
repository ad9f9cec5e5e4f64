"""The broker as a whole: its processes, counters, listeners, journals and log."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from typing import Any

import psutil

from shardbroker import __version__
from shardbroker.control import ControlError
from shardbroker.control.losses import losses, lost
from shardbroker.control.verbs import LogLevel, Metrics, OneWorker, Params, SetWorkers
from shardbroker.management.context import Context, handles
from shardbroker.management.handlers.listeners import call_supervisor
from shardbroker.management.handlers.upgrade import obstacle_of
from shardbroker.management.prometheus import render
from shm.counters import HISTOGRAMS, ProcessState
from shm.roles import Place

SEAL_S = 3.0
"""Longest time to seal a journal."""
SEAL_POLL_S = 0.02
"""Between two attempts."""
REPLACE_POLL_S = 0.05
"""Between two looks at a worker that is being replaced."""


@handles("status")
async def status(context: Context, params: Params) -> dict[str, Any]:
    topology, totals = context.topology, context.counters.totals()
    states = [ProcessState(context.counters.state(worker)) for worker in range(topology.workers)]
    return {
        "node": topology.node_name,
        "version": __version__,
        "running": context.counters.serving,
        "pid": os.getppid(),
        "uptime_ms": time.time_ns() // 1_000_000 - context.counters.life(topology.manager)[1],
        "data_dir": str(topology.data_dir),
        "workers": topology.workers,
        "workers_ready": sum(state == ProcessState.READY for state in states),
        "acceptors": topology.acceptors,
        "acceptor_cores": list(topology.places_of("acceptor")[0].cores),
        "connections": totals["connections.count"],
        "sessions": totals["sessions.count"],
        "subscriptions": totals["subscriptions.count"] + totals["subscriptions.shared.count"],
        "routes": context.route_count(),
        "retained": totals["retained.count"],
        "messages_received": totals["messages.received"],
        "messages_sent": totals["messages.sent"],
        "messages_lost": lost(totals),
        "losses": losses(totals),
    }


@handles("metrics")
async def metrics(context: Context, params: Metrics) -> dict[str, Any]:
    if params.worker is None:
        totals = context.counters.totals()
        return {**totals, "messages.lost": lost(totals), "routes.count": context.route_count()}
    context.workers.check(params.worker)
    counters = context.counters.of(params.worker)
    return {**counters, "messages.lost": lost(counters)}


@handles("prometheus")
async def prometheus(context: Context, params: Params) -> str:
    return await render(context)


@handles("workers list")
async def list_workers(context: Context, params: Params) -> dict[str, Any]:
    return {"data": [process_row(context, place) for place in context.topology.always_there], "cursor": None}


def process_row(context: Context, place: Place) -> dict[str, Any]:
    is_worker = place.role.name == "worker"
    pid, started_ms, starts = context.counters.life(place.slot)
    values = context.counters.of(place.slot)
    return {
        "name": place.title,
        "state": ProcessState(context.counters.state(place.slot)).name.lower(),
        "pid": pid,
        "core": place.cores[0] if is_worker else None,
        "cores": list(place.cores),
        "weight": context.topology.division.weight(place.number) if is_worker else None,
        "started_at": started_ms,
        "starts": starts,
        "connections": values["connections.count"],
        "sessions": values["sessions.count"],
        "subscriptions": values["subscriptions.count"] + values["subscriptions.shared.count"],
        "memory_bytes": values["memory.bytes.count"],
        "messages_received": values["messages.received"],
        "messages_sent": values["messages.sent"],
    }


@handles("load")
async def load(context: Context, params: Params) -> dict[str, Any]:
    """Returns running totals; the difference of two results is the activity in between (shardbroker.control.figures)."""
    counters = context.counters
    return {
        "at_ns": time.monotonic_ns(),
        "totals": {**counters.totals(), "routes.count": context.route_count()},
        "workers": [worker_load(context, worker) for worker in range(context.topology.workers)],
        "histograms": {name: [list(bucket) for bucket in counters.buckets(name)] for name in HISTOGRAMS},
        "ring_bytes": context.topology.ring_bytes,
    }


def worker_load(context: Context, worker: int) -> dict[str, Any]:
    pid = context.counters.life(worker)[0]
    cpu_s, memory = 0.0, 0
    with suppress(psutil.Error):  # it has just ended
        process = psutil.Process(pid)
        times = process.cpu_times()
        cpu_s, memory = times.user + times.system, process.memory_info().rss
    lanes = enumerate(context.workers.outboxes[worker].lanes)
    return {
        "worker": worker,
        "core": context.topology.places[worker].cores[0],
        "weight": context.topology.division.weight(worker),
        "pid": pid,
        "state": ProcessState(context.counters.state(worker)).name.lower(),
        "cpu_s": cpu_s,
        "memory_bytes": memory,
        "counters": dict(context.counters.of(worker)),
        "rings": {producer: lane.fill() for producer, lane in lanes if producer != worker},
    }


@handles("workers restart")
async def restart_worker(context: Context, params: OneWorker) -> dict[str, Any]:
    """Drains and ends a worker; the supervisor restarts it."""
    await context.workers.call(params.worker, "ping")
    pid, _, starts = context.counters.life(params.worker)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        raise ControlError("WORKER_DOWN", f"worker {params.worker} has ended") from None
    return {"worker": params.worker, "pid": pid, "starts": starts}


@handles("workers replace")
async def replace_worker(context: Context, params: OneWorker) -> dict[str, Any]:
    """Has the supervisor start a successor, and waits until it serves in place of the worker, or has ended."""
    context.workers.check(params.worker)
    request = {"verb": "workers replace", "worker": params.worker}
    begun = await call_supervisor(context, request)
    if begun["problem"]:
        raise ControlError("TRY_AGAIN", begun["problem"])
    while (await call_supervisor(context, request | {"verb": "workers replacing"}))["successor"]:
        await asyncio.sleep(REPLACE_POLL_S)
    await context.workers.call(params.worker, "ping")
    pid, _, starts = context.counters.life(params.worker)
    if pid != begun["successor"]:
        raise ControlError("NOT_AVAILABLE", f"worker {params.worker} was not replaced; the log has the reason")
    return {"worker": params.worker, "pid": pid, "starts": starts}


@handles("workers set")
async def set_workers(context: Context, params: SetWorkers) -> dict[str, Any]:
    """Begins the change, which replaces this process, too: it is under way when this returns."""
    for worker in range(context.topology.workers):
        if reason := await obstacle_of(context, worker):
            raise ControlError("TRY_AGAIN", f"worker {worker}: {reason}")
    request = {"verb": "workers set", "workers": params.workers, "weights": params.weights}
    begun = await call_supervisor(context, request)
    if begun["problem"]:
        raise ControlError("BAD_REQUEST" if begun["is_wrong"] else "TRY_AGAIN", begun["problem"])
    return _of_setting(begun["state"])


@handles("workers setting")
async def workers_setting(context: Context, params: Params) -> dict[str, Any]:
    return _of_setting((await call_supervisor(context, {"verb": "workers setting"}))["state"])


def _of_setting(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state with a statement about how long it lasts."""
    if state["phase"] == "none":
        return state
    return {**state, "lasts": f"until the broker ends; a start of the service reads process.workers, now {state['configured']}"}


@handles("journal status")
async def journal_status(context: Context, params: Params) -> dict[str, Any]:
    return await of_each_journal(context, "journal")


@handles("journal seal")
async def seal_journals(context: Context, params: Params) -> dict[str, Any]:
    """Retries for SEAL_S: at level `machine` the previous segment may not be on disk yet."""
    deadline = time.monotonic() + SEAL_S
    while True:
        try:
            return await of_each_journal(context, "journal seal")
        except ControlError as error:
            if error.code != "TRY_AGAIN" or time.monotonic() > deadline:
                raise
        await asyncio.sleep(SEAL_POLL_S)


async def of_each_journal(context: Context, command: str) -> dict[str, Any]:
    rows = []
    for worker, state in enumerate(await context.workers.call_all(command)):
        if state:
            rows.append({"worker": worker, "directory": str(context.topology.journal_dir(worker)), **state})
    return {"data": rows, "cursor": None}


@handles("log level")
async def log_level(context: Context, params: LogLevel) -> dict[str, Any]:
    """Sets the level until the next start or the next change of log.level; `config set log.level` is permanent."""
    if params.level is not None:
        context.log.level = params.level
    return {"level": context.log.level}
