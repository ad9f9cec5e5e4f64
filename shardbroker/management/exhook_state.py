"""State of the ExHook servers, as the process integrations writes it to a file."""

import json
from typing import Any

from shardbroker.config.exhook import STATE_FILE
from shardbroker.management.context import Context

__all__ = ["FIGURES", "read_state"]

UNKNOWN = "starting"
"""State of a server before the process integrations has written one."""
FIGURES = ("succeeded", "failed", "dropped")
"""Counts of calls, in the order of the file."""


def read_state(context: Context) -> list[dict[str, Any]]:
    """Returns the servers of `exhook.servers` in their order, with state and counts by hook point."""
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
