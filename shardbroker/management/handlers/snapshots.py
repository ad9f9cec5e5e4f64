"""Snapshots of the broker's state (shardbroker/management/snapshots.py)."""

from collections.abc import AsyncIterator
from typing import Any

from shardbroker.control.verbs import Params
from shardbroker.management.context import Context, handles
from shardbroker.management.snapshots import take


@handles("snapshot")
async def take_snapshot(context: Context, params: Params) -> AsyncIterator[dict[str, Any]]:
    async for item in take(context):
        yield item
