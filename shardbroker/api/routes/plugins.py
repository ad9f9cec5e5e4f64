"""Plugins and hooks."""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from shardbroker.api.asking import Ask
from shardbroker.api.shapes import Body

__all__ = ["router"]

router = APIRouter(tags=["Plugins"])


class PluginStart(Body):
    settings: dict[str, str] = Field({}, description="For the plugin, over what the configuration has for it.")


@router.get("/plugins")
async def list_plugins(ask: Ask) -> list[dict[str, Any]]:
    """Plugins that are there, and which of them are loaded."""
    return list((await ask("plugins list"))["data"])


@router.put("/plugins/{name}/start")
async def start(ask: Ask, name: str, body: PluginStart | None = None) -> dict[str, Any]:
    """Loads a plugin in every worker, or loads it anew, and keeps it over restarts."""
    done: dict[str, Any] = await ask("plugins load", name=name, setting=body.settings if body else {})
    return done


@router.put("/plugins/{name}/stop")
async def stop(ask: Ask, name: str) -> dict[str, Any]:
    """Takes a plugin out of every worker."""
    done: dict[str, Any] = await ask("plugins unload", name=name)
    return done


@router.get("/hooks")
async def list_hooks(ask: Ask) -> list[dict[str, Any]]:
    """Hook points, their callbacks in the order of calls, and what those have cost in all workers."""
    return list((await ask("hooks list"))["data"])
