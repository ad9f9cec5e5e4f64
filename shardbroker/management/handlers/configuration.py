"""Configuration: effective values, and changes at run time."""

from typing import Any

from shardbroker.control.verbs import ConfigGet, ConfigReset, ConfigSet, ConfigUpdate, Params
from shardbroker.management.audit import AUTHOR
from shardbroker.management.context import Context, handles
from shardbroker.management.handlers.access import admin
from shm.roles import WORKER


@handles("config get")
async def get(context: Context, params: ConfigGet) -> dict[str, Any]:
    rows = context.cluster_settings.rows if params.cluster else context.configuration.rows
    return {"data": rows(params.key), "cursor": None}


@handles("config set")
async def set_value(context: Context, params: ConfigSet) -> dict[str, Any]:
    if params.cluster:
        done = await context.cluster_settings.set({params.key: params.value}, _author(context))
        ((key, value),) = done.pop("values").items()
        return {"key": key, "value": value, **done}
    return await everywhere(context, await context.configuration.set(params.key, params.value))


@handles("config update")
async def update(context: Context, params: ConfigUpdate) -> dict[str, Any]:
    if params.cluster:
        return await context.cluster_settings.set(params.values, _author(context))
    return await everywhere(context, await context.configuration.set_many(params.values))


@handles("config reset")
async def reset_value(context: Context, params: ConfigReset) -> dict[str, Any]:
    if params.cluster:
        return await context.cluster_settings.reset(params.key, _author(context))
    return await everywhere(context, await context.configuration.reset(params.key))


@handles("config reload")
async def reload(context: Context, params: Params) -> dict[str, Any]:
    done = await context.configuration.reload()
    with admin(context) as access:
        access.reload()
    return await everywhere(context, done, files=True)


def _author(context: Context) -> str:
    """Returns the author of the request, with the node that carries it out."""
    return f"{AUTHOR.get()}@{context.topology.node_name}"


async def everywhere(context: Context, done: dict[str, Any], files: bool = False) -> dict[str, Any]:
    """Returns `done` once every process that serves has applied the change. Workers that do not within the time limit are listed in
    `workers_behind`, other processes in `processes_behind`. files: rules and passwords were read again, even without a change."""
    behind = await context.configuration.behind() if done["applied"] else []
    await context.rules.settled()
    await context.streams.settled()
    names = {place.title: place.number for place in context.topology.places_of(WORKER)}
    workers = {names[title] for title in behind if title in names}
    if files:
        workers |= {*await context.workers.caught_up()}
    others = [title for title in behind if title not in names]
    if workers:
        done = done | {"workers_behind": sorted(workers)}
    return done | {"processes_behind": others} if others else done
