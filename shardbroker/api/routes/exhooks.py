"""ExHook servers: programs that receive hooks over gRPC.

By hand: rows of one server, where the verbs list all.
"""

from typing import Any

from fastapi import APIRouter

from shardbroker.api.calls import Call
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter(tags=["ExHook"])


@router.get("/exhooks/{name}")
async def show(call: Call, name: str) -> dict[str, Any]:
    """One ExHook server."""
    return await _one(call, name)


@router.get("/exhooks/{name}/hooks")
async def list_hooks(call: Call, name: str) -> list[dict[str, Any]]:
    """Hook points of one ExHook server, with topics and counts of calls."""
    await _one(call, name)
    return [row for row in (await call("exhook hooks"))["data"] if row["name"] == name]


async def _one(call: Call, name: str) -> dict[str, Any]:
    for row in (await call("exhook list"))["data"]:
        if row["name"] == name:
            return dict(row)
    raise ControlError("NOT_FOUND", f"no server {name!r} in exhook.servers")
