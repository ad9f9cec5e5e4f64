"""What the core of sinks does with a driver, without buffers: batches in order, halves of what is refused, open() after a loss."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop

from shardbroker.flows.sinks.driver import Refused, Unusable
from shardbroker.flows.sinks.row import Row

BOUND_S = 240.0


def rows_of(values: Sequence[dict[str, Any]], first: int = 0, journal: str = "0") -> list[Row]:
    """Returns a row for each, at ascending positions."""
    return [
        Row(journal, first + number, "c", one, id=f"{first + number:032x}", node="n1", at_ms=1_700_000_000_000)
        for number, one in enumerate(values)
    ]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the process has
        runner.run(asyncio.wait_for(scenario(), BOUND_S))


async def written(driver: Any, rows: Sequence[Row]) -> dict[int, str]:
    """Writes rows of one batch. Returns position -> reason of those that have failed."""
    try:
        failures = await driver.write(rows)
    except Refused as error:
        if len(rows) == 1:
            return {rows[0].position: str(error)}
        middle = len(rows) // 2
        return {**await written(driver, rows[:middle]), **await written(driver, rows[middle:])}
    return {rows[failure.at].position: failure.reason for failure in failures}


async def written_at_last(driver: Any, rows: Sequence[Row], lost: Callable[[Exception], None]) -> dict[int, str]:
    """Writes a batch until the server has answered; `lost` is called with each error. Rows that are there already are left out."""
    is_open = True
    while True:
        try:
            if not is_open:
                await driver.open()
                stored = await driver.stored() if driver.stores_cursor else {}
                rows = [row for row in rows if row.position >= stored.get(row.journal, 0)]
                is_open = True
            return await written(driver, rows) if rows else {}
        except Unusable:
            raise
        except Exception as error:
            lost(error)
            is_open = False
            await asyncio.sleep(0.05)
