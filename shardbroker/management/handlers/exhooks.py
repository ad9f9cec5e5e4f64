"""ExHook servers and their hook points."""

from typing import Any

from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
from shardbroker.management.exhook_state import FIGURES, read_state


@handles("exhook list")
async def list_servers(context: Context, params: Params) -> dict[str, Any]:
    rows = []
    for state in read_state(context):
        metrics = state.pop("metrics").values()
        rows.append({**state, "hooks": [*state["hooks"]], **{name: sum(of[name] for of in metrics) for name in FIGURES}})
    return {"data": rows, "cursor": None}


@handles("exhook hooks")
async def list_hooks(context: Context, params: Params) -> dict[str, Any]:
    """Returns a row for each server and hook point."""
    rows = [
        {"name": state["name"], "hook": point, "topics": state["hooks"].get(point, []), **figures}
        for state in read_state(context)
        for point, figures in state["metrics"].items()
    ]
    return {"data": rows, "cursor": None}
