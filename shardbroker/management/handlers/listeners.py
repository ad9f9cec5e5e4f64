"""Listeners, which the supervisor opens and closes."""

import asyncio
from typing import Any

from shardbroker.config.sources import parse_assignment
from shardbroker.control import ControlError
from shardbroker.control.verbs import ListenerSettings, OneListener, Params
from shardbroker.management.context import Context, handles
from shm.requests import call

__all__ = ["call_supervisor"]

ANSWER_S = 30.0
"""Longest wait for the supervisor, which waits up to 5 s for each acceptor."""

_turn = asyncio.Lock()


@handles("listeners list")
async def list_listeners(context: Context, params: Params) -> dict[str, Any]:
    found = await call_supervisor(context, {"verb": "listeners list"})
    rows = []
    for row in found["listeners"]:
        number = row.pop("number")
        row["id"] = f"{row['type']}:{row['name']}"
        row["running"] = number is not None
        row["current_connections"] = 0 if number is None else context.counters.sockets(number)
        row |= {name: "infinity" for name in ("max_connections", "max_conn_rate") if row[name] in (0, float("inf"))}
        rows.append(row)
    return {"data": rows, "cursor": None}


@handles("listeners add")
async def add_listener(context: Context, params: ListenerSettings) -> dict[str, Any]:
    return await _set(context, "listeners add", params)


@handles("listeners update")
async def update_listener(context: Context, params: ListenerSettings) -> dict[str, Any]:
    return await _set(context, "listeners update", params)


@handles("listeners remove")
async def remove_listener(context: Context, params: OneListener) -> dict[str, Any]:
    return await _change(context, {"verb": "listeners remove", "name": params.name})


@handles("listeners stop")
async def stop_listener(context: Context, params: OneListener) -> dict[str, Any]:
    return await _change(context, {"verb": "listeners stop", "name": params.name})


@handles("listeners start")
async def start_listener(context: Context, params: OneListener) -> dict[str, Any]:
    return await _change(context, {"verb": "listeners start", "name": params.name})


@handles("listeners restart")
async def restart_listener(context: Context, params: OneListener) -> dict[str, Any]:
    return await _change(context, {"verb": "listeners restart", "name": params.name})


async def _set(context: Context, verb: str, params: ListenerSettings) -> dict[str, Any]:
    """The supervisor opens the address and loads the files; the preflight checks `auth_chain`."""
    settings = _tree(params)
    if "auth_chain" in settings:
        await context.configuration.check_chain(params.name, settings["auth_chain"])
    return await _change(context, {"verb": verb, "name": params.name, "settings": settings})


async def _change(context: Context, request: dict[str, Any]) -> dict[str, Any]:
    found = await call_supervisor(context, request)
    if found["problem"]:
        raise ControlError("BAD_REQUEST", found["problem"])
    return {"name": request["name"]}


async def call_supervisor(context: Context, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request at a time to the supervisor, in a thread since it blocks until the response."""
    async with _turn:
        try:
            return await asyncio.to_thread(call, context.topology.sending_ends("requests")[0], request, ANSWER_S)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"supervisor did not respond: {error}") from None


def _tree(params: ListenerSettings) -> dict[str, Any]:
    """Returns assignments as nested tables."""
    root: dict[str, Any] = {}
    for assignment in params.settings:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ControlError("BAD_REQUEST", f"settings: must be KEY=VALUE, such as max_connections=100, got {assignment}")
        path, value = parse_assignment(f"listeners.{params.name}.{key.strip()}", text)
        here = root
        for part in path[2:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = value
    return root
