"""Gateways: their state, and their clients."""

from math import inf
from typing import Any

from shardbroker.config.show import shown
from shardbroker.control import ControlError
from shardbroker.control.gateway_verbs import EnableGateway, GatewayClients, OneGateway
from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
from shardbroker.management.gateway_state import gateway_rows
from shardbroker.management.handlers.clients import page_of_clients

__all__: list[str] = []


@handles("gateways list")
async def list_gateways(context: Context, params: Params) -> dict[str, Any]:
    rows = _rows(context)
    for row in rows:
        del row["figures"]
    return {"data": rows, "cursor": None}


@handles("gateways show")
async def show_gateway(context: Context, params: OneGateway) -> dict[str, Any]:
    row = _one(context, params.name)
    settings = shown(getattr(context.configuration.settings.gateways, params.name))
    state = {one["name"]: one for one in row["listeners"]}
    listeners = [
        {key: "infinity" if value == inf else value for key, value in one.items()} | state[name]
        for name, one in settings.pop("listeners").items()
    ]
    return {**settings, **row, "listeners": listeners}


@handles("gateways enable")
async def enable_gateway(context: Context, params: EnableGateway) -> dict[str, Any]:
    _one(context, params.name)
    key = f"gateways.{params.name}.enable"
    found = await context.configuration.set(key, "true" if params.enable else "false")
    if "shadowed_by" in found:
        await context.configuration.reset(key)
        raise ControlError("BAD_REQUEST", f"{key}: must be changed where it is set, by {found['shadowed_by']}")
    return {"name": params.name, "enable": params.enable}


@handles("gateways clients")
async def list_gateway_clients(context: Context, params: GatewayClients) -> dict[str, Any]:
    _one(context, params.name)
    prefix = f"{params.name}:"
    return await page_of_clients(context, params, lambda record: (record.get("listener") or "").startswith(prefix))


def _rows(context: Context) -> list[dict[str, Any]]:
    return gateway_rows(context.topology, context.counters, context.configuration.settings)


def _one(context: Context, name: str) -> dict[str, Any]:
    rows = {row["name"]: row for row in _rows(context)}
    if name in rows:
        return rows[name]
    known = ", ".join(rows)
    raise ControlError("NOT_FOUND", f"no gateway {name!r}; gateways: {known}")
