"""What the core of sinks does with a driver, without buffers: batches in order, halves of what is refused, open() after a loss."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvloop

from shardbroker.connectors.errors import describe
from shardbroker.flows.drivers.sql_cursors import CursorMoved
from shardbroker.flows.sinks.driver import Refused, Unusable
from shardbroker.flows.sinks.row import Row

BOUND_S = 240.0
NO_RESPONSE = "no response in time"
"""What a driver says of a server that is paused."""


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


async def rows_that_a_trigger_rejects_fail_alone(driver: Any, again: Callable[[], Any], bad: dict[int, str]) -> None:
    """An INSERT of `n`, rejected for the values of `bad` with these reasons. again: a call after which no row is rejected.

    A row is not failed while the probe fails. With exactly_once the failures come back from one call, and the cursor moves behind.
    """
    batch = rows_of([{"n": number} for number in range(100)])
    assert await written(driver, batch) == bad
    (first, *_) = bad
    if driver.stores_cursor:
        await driver.open()
        assert await driver.stored() == {"0": 100}
        return

    async def lost() -> None:
        raise Unusable("not now")

    driver.probe = lost  # a stand-in for a server that has been lost meanwhile
    with pytest.raises(Unusable, match=r"^not now$"):
        await driver.write([batch[first]])
    del driver.probe
    with pytest.raises(Refused):
        await driver.write([batch[first]])
    again()
    assert await written(driver, [batch[first]]) == {}


async def row_is_written_later(driver: Any, end: Callable[[], Any], shown: str) -> None:
    """An INSERT of `n` into a server in a state that is to pass, so that no row has failed. end: a call that ends it."""
    batch = rows_of([{"n": number} for number in range(2)])
    for rows in (batch, batch[:1]):
        with pytest.raises(Exception) as caught:
            await driver.write(rows)
        assert not isinstance(caught.value, Refused) and shown in describe(caught.value), repr(caught.value)
    end()
    assert await written_at_last(driver, batch, lambda error: None) == {}


async def refused_rows_are_done(driver: Any, reason: str) -> None:
    """An INSERT of `n`, a column that takes no number below 0, exactly once. reason: of a row that the server refuses."""
    batch = rows_of([{"n": number} for number in range(1000)])
    for at, value in ((10, -1), (11, "x"), (500, -5), (999, -1)):
        batch[at].values["n"] = value
    for row in batch[990:]:
        row.position = 990  # rows of one record, which have one position
    failures = {failure.at: failure.reason for failure in await driver.write(batch)}
    assert sorted(failures) == [10, 11, 500, 999]
    assert failures[500] == reason
    await driver.open()
    assert await driver.stored() == {"0": 991}
    for again in (batch, batch[-5:], batch[:500], rows_of([{"n": 1}] * 2, 990)):
        with pytest.raises(CursorMoved):
            await driver.write(again)
    await driver.open()
    assert await written(driver, rows_of([{"n": None}], 991)) == {}
    assert await written(driver, rows_of([{"n": "x"}], 992)) != {}
    await driver.open()
    assert await driver.stored() == {"0": 993}, "a row that cannot be sent is done too"
