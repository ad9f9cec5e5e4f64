"""Programs that take part in hooks over gRPC, as the process integrations writes down what became of them."""

import json
from typing import Any

from shardbroker.config.exhook import STATE_FILE
from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles

__all__ = ["read_state"]

UNKNOWN = "starting"
"""State of a program that nobody has written about yet."""


def read_state(context: Context) -> list[dict[str, Any]]:
    """All programs of `exhook.servers`, in their order."""
    try:
        written = json.loads((context.topology.runtime_dir / STATE_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        written = []
    rows = []
    for one in context.configuration.settings.exhook.servers:
        settings = one.model_dump(mode="json")
        state: dict[str, Any] = next((found for found in written if one.enable and found["settings"] == settings), {})
        rows.append({
            "name": one.name,
            "enable": one.enable,
            "status": state.get("status", UNKNOWN) if one.enable else "disabled",
            "url": one.url,
            "request_timeout": one.request_timeout,
            "failed_action": one.failed_action,
            "auto_reconnect": one.auto_reconnect,
            "pool_size": one.pool_size,
            "hooks": state.get("hooks", {}),
            "queued": state.get("queued", 0),
            "metrics": {point: dict(zip(FIGURES, of, strict=True)) for point, of in state.get("metrics", {}).items()},
        })  # fmt: skip
    return rows


FIGURES = ("succeeded", "failed", "dropped")


@handles("exhook list")
async def list_servers(context: Context, params: Params) -> dict[str, Any]:
    rows = []
    for state in read_state(context):
        metrics = state.pop("metrics").values()
        rows.append({**state, "hooks": [*state["hooks"]], **{name: sum(of[name] for of in metrics) for name in FIGURES}})
    return {"data": rows, "cursor": None}


@handles("exhook hooks")
async def list_hooks(context: Context, params: Params) -> dict[str, Any]:
    """A row for each program and hook point."""
    rows = [
        {"name": state["name"], "hook": point, "topics": state["hooks"].get(point, []), **figures}
        for state in read_state(context)
        for point, figures in state["metrics"].items()
    ]
    return {"data": rows, "cursor": None}
