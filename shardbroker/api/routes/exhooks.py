"""Programs that take part in hooks over gRPC.

By hand: rows of one program, where the verbs list all.
"""

from typing import Any

from fastapi import APIRouter

from shardbroker.api.asking import Ask
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter(tags=["ExHook"])


@router.get("/exhooks/{name}")
async def show(ask: Ask, name: str) -> dict[str, Any]:
    """One of them."""
    return await _one(ask, name)


@router.get("/exhooks/{name}/hooks")
async def list_hooks(ask: Ask, name: str) -> list[dict[str, Any]]:
    """What one of them wants, and what became of the calls of each hook point."""
    await _one(ask, name)
    return [row for row in (await ask("exhook hooks"))["data"] if row["name"] == name]


async def _one(ask: Ask, name: str) -> dict[str, Any]:
    for row in (await ask("exhook list"))["data"]:
        if row["name"] == name:
            return dict(row)
    raise ControlError("NOT_FOUND", f"no server {name!r} in exhook.servers")
