"""Keys of replays, `$replay/<period>/<filter>`, which streams are, too."""

from typing import Any

from pydantic import Field

from shardbroker.config.base import LIMIT_MAX, Section
from shardbroker.config.streams import has_streams
from shardbroker.config.units import Whole

__all__ = ["Replay", "needs_replays"]

REPLAYS_MAX = 10_000
"""Replays of a worker: each may have half a megabyte of messages under way."""


class Replay(Section):
    """Replays of what journals have, for clients that subscribe to `$replay/<period>/<filter>` (replay.md)."""

    max_replays: Whole = Field(
        100,
        ge=0,
        le=REPLAYS_MAX,
        description="Replays of connected clients that run at a time, for each worker; others wait. 0: no replays.",
    )
    rate: Whole = Field(50_000, ge=0, le=LIMIT_MAX, description="Messages a second of one replay; 0: no limit.")


def needs_replays(settings: Any) -> bool:
    """Returns whether there may be replays."""
    if not settings.replay.max_replays or settings.durability.level == "none":
        return False
    return bool(settings.journal.capture or settings.streams) or has_streams(settings.process.data_dir)
