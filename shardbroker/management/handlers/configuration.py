"""Configuration: effective values, and changes at run time."""

from typing import Any

from shardbroker.control.verbs import ConfigGet, ConfigReset, ConfigSet, ConfigUpdate, Params
from shardbroker.management.context import Context, handles
from shardbroker.management.handlers.access import admin


@handles("config get")
async def get(context: Context, params: ConfigGet) -> dict[str, Any]:
    return {"data": context.configuration.rows(params.key), "cursor": None}


@handles("config set")
async def set_value(context: Context, params: ConfigSet) -> dict[str, Any]:
    return await in_workers(context, await context.configuration.set(params.key, params.value))


@handles("config update")
async def update(context: Context, params: ConfigUpdate) -> dict[str, Any]:
    return await in_workers(context, await context.configuration.set_many(params.values))


@handles("config reset")
async def reset_value(context: Context, params: ConfigReset) -> dict[str, Any]:
    return await in_workers(context, await context.configuration.reset(params.key))


@handles("config reload")
async def reload(context: Context, params: Params) -> dict[str, Any]:
    done = await context.configuration.reload()
    with admin(context) as access:
        access.reload()
    return await in_workers(context, done, files=True)


async def in_workers(context: Context, done: dict[str, Any], files: bool = False) -> dict[str, Any]:
    """Returns `done` when every ready worker has applied the change, so that the response confirms it. Workers that have not
    applied it in time are in `workers_behind`. files: rules and passwords were reloaded, possibly without a changed setting."""
    behind = await context.workers.caught_up() if done["applied"] or files else []
    return done | {"workers_behind": behind} if behind else done
