"""Snapshots at the interval `snapshot.interval`."""

import asyncio
import time

from shardbroker.control import ControlError
from shardbroker.logs.phrases import log_line
from shardbroker.management.context import Context
from shardbroker.management.snapshots import newest_us, take

__all__ = ["take_snapshots"]

LOOK_S = 1.0
"""Between two looks at the interval, which may be changed meanwhile."""


async def take_snapshots(context: Context) -> None:
    """Takes one per interval, counted from the newest that exists. A failure is logged, and tried again an interval later."""
    last = newest_us(context.topology.data_dir) / 1e6
    while True:
        await asyncio.sleep(LOOK_S)
        interval = context.configuration.settings.snapshot.interval
        if time.time() - last < interval or not context.counters.serving:
            continue
        last = time.time()
        try:
            async for _ in take(context):
                pass
        except ControlError as error:
            context.log.add("warning", log_line("snapshot not taken", reason=error))
            context.log.flush()
