"""Command of the manager about a hand-over; importing the module registers it."""

from typing import Any

import shardbroker.worker.handoff.state as state
from shardbroker.worker.commands import command

__all__ = ["obstacle"]


@command("handoff obstacle")  # type: ignore[untyped-decorator]
def obstacle(worker: Any, args: dict[str, Any]) -> dict[str, str]:
    """Returns why this worker cannot be replaced now; empty: it can."""
    return {"reason": state.obstacle(worker)}
