"""Plugins: every worker has the same ones; a change applies to all workers or to none."""

import asyncio
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.plugin_verbs import OnePlugin, PluginLoad
from shardbroker.control.verbs import Params
from shardbroker.hooks import POINTS
from shardbroker.hooks.plugins import Found, PluginError, installed, own_settings
from shardbroker.hooks.wanted import Wanted, read_wanted, write_wanted
from shardbroker.management.context import Context, handles

RULES = "client.authorize"
"""Hook point whose results connections cache, as those of rules."""
NOTHING = {"calls": 0, "errors": 0, "seconds": 0.0, "slowest": 0.0}
"""Cost of a callback without calls."""

_turn = asyncio.Lock()
"""Serializes changes: each reads and writes the list of loaded plugins."""


@handles("plugins list")
async def list_plugins(context: Context, params: Params) -> dict[str, Any]:
    found, wanted = _installed(context), _wanted(context)
    states = await context.workers.call_available("hooks")
    loaded = [name for state in states if state for name in state["loaded"]]
    rows = []
    for name in sorted({*found, *wanted, *loaded}):
        workers = loaded.count(name)
        problems = [state["problems"][name] for state in states if state and name in state["problems"]]
        rows.append({
            "name": name,
            "state": "loaded" if workers == len(states) else "not loaded" if name not in wanted and not workers else "failed",
            "workers": workers,
            "source": found[name].source if name in found else None,
            "problem": problems[0] if problems else None,
        })  # fmt: skip
    return {"data": rows, "cursor": None}


@handles("plugins load")
async def load(context: Context, params: PluginLoad) -> dict[str, Any]:
    """Loads in one worker first: a plugin that fails does not reach the others."""
    name = params.name
    async with _turn:
        found, before = _installed(context), _wanted(context)
        if name not in found:
            raise ControlError("NOT_FOUND", f"no plugin {name!r}; installed are {', '.join(found) or 'none'}")
        _check_workers(context)
        after = {**before, name: params.setting}
        _keep(context, after)  # workers that start from here on load it
        plugins = context.configuration.settings.plugins
        settings = {**own_settings(plugins.settings, name), **params.setting}
        points: set[str] = set()
        try:
            for worker in range(len(context.workers)):
                points |= {*await context.workers.call(worker, "plugin load", name=name, settings=settings, dir=plugins.dir)}
        except BaseException:
            _keep(context, before)
            await context.workers.call_available("plugin revert", name=name, wanted=name in before)
            raise
        await context.workers.call_available("plugin keep", name=name)
        _tell_rules(context, points)
    return {"name": name, "workers": len(context.workers), "points": sorted(points)}


@handles("plugins unload")
async def unload(context: Context, params: OnePlugin) -> dict[str, Any]:
    """Unloads in every ready worker; the others start without it."""
    async with _turn:
        before = _wanted(context)
        if params.name in before:
            _keep(context, {name: settings for name, settings in before.items() if name != params.name})
        found = await context.workers.call_available("plugin unload", name=params.name)
        unloaded = [points for points in found if points is not None]
        if params.name not in before and not unloaded:
            raise ControlError("NOT_FOUND", f"plugin {params.name!r} is not loaded")
        points = {point for of_worker in unloaded for point in of_worker}
        _tell_rules(context, points)
    return {"name": params.name, "workers": len(unloaded), "points": sorted(points)}


@handles("hooks list")
async def list_hooks(context: Context, params: Params) -> dict[str, Any]:
    """Returns a row for each callback, and one for each point without callbacks."""
    states = [state for state in await context.workers.call_available("hooks") if state]
    rows: dict[tuple[str, str | None], dict[str, Any]] = {}
    for state in states:
        for row in state["callbacks"]:
            total = rows.setdefault((row["point"], row["callback"]), {**row, **NOTHING})
            for field in ("calls", "errors", "seconds"):
                total[field] += row[field]
            total["slowest"] = max(total["slowest"], row["slowest"])
    used = {point for point, _ in rows}
    unused = [{"point": name, "callback": None, "plugin": None, "priority": None, **NOTHING} for name in POINTS if name not in used]
    every = sorted([*rows.values(), *unused], key=lambda row: POINTS[row["point"]].bit)
    for row in every:
        row |= {field: round(row[field], 6) for field in ("seconds", "slowest")}
    return {"data": every, "cursor": None}


def _installed(context: Context) -> dict[str, Found]:
    try:
        return installed(context.configuration.settings.plugins.dir)
    except PluginError as error:
        raise ControlError("NOT_AVAILABLE", str(error)) from None


def _wanted(context: Context) -> Wanted:
    try:
        return read_wanted(context.topology.data_dir)
    except PluginError as error:
        raise ControlError("NOT_AVAILABLE", str(error)) from None


def _keep(context: Context, wanted: Wanted) -> None:
    try:
        write_wanted(context.topology.data_dir, wanted)
    except PluginError as error:
        raise ControlError("NOT_AVAILABLE", str(error)) from None


def _check_workers(context: Context) -> None:
    """Checks that all workers are ready. Raises ControlError otherwise."""
    for worker in range(len(context.workers)):
        if not context.workers.is_up(worker):
            raise ControlError("WORKER_DOWN", f"worker {worker} is not ready; try again later")


def _tell_rules(context: Context, points: set[str]) -> None:
    if RULES in points:
        context.counters.access_changed(rules=True)
