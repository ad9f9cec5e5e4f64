"""Command of the manager about claims; importing the module registers it."""

from typing import Any

from shardbroker.worker.commands import command

__all__ = ["claims"]


@command("cluster claims")  # type: ignore[untyped-decorator]
def claims(worker: Any, args: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the figures of claims, or None: sessions do not move."""
    figures: dict[str, Any] | None = None if worker.cluster is None else worker.cluster.core.claims.figures.as_answer()
    return figures
