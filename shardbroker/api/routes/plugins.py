"""Plugins.

By hand: the body may be missing, as in EMQX, and its field is `settings`.
"""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from shardbroker.api.calls import Call
from shardbroker.api.shapes import Body

__all__ = ["router"]

router = APIRouter(tags=["Plugins"])


class PluginStart(Body):
    settings: dict[str, str] = Field({}, description="Settings of the plugin, with precedence over the configuration.")


@router.put("/plugins/{name}/start")
async def start(call: Call, name: str, body: PluginStart | None = None) -> dict[str, Any]:
    """Loads or reloads a plugin in every worker and keeps it over restarts."""
    done: dict[str, Any] = await call("plugins load", name=name, setting=body.settings if body else {})
    return done
