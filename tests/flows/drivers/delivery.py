"""Batches through a driver, with the core's answers to its outcomes: halves, again, a new connection."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvloop

from shardbroker.connectors.connector import Connector
from shardbroker.flows.sinks.driver import Driver, Refused, Unusable
from shardbroker.flows.sinks.row import Row

__all__ = ["Delivery", "Outage", "deliver", "opened", "run", "some_rows"]

PATIENCE_S = 120.0
PAUSE_S = 0.1


@dataclass
class Delivery:
    """What became of rows. attempts: batches that were written again, with the text of the error."""

    failed: list[tuple[Row, str]] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    refused: int = 0


class Outage:
    """Takes a server away after the batch of a number, and has it back some seconds later; for `after` of deliver()."""

    def __init__(self, batch: int, away: Callable[[], object], back: Callable[[], object], seconds: float) -> None:
        self._batch, self._away = batch, away
        self._back = threading.Timer(seconds, back)

    def __call__(self, batch: int) -> None:
        if batch == self._batch:
            self._away()
            self._back.start()

    def join(self) -> None:
        """Returns when the server is back."""
        self._back.join()


async def deliver(
    driver: Driver, rows: Sequence[Row], size: int = 1000, after: Callable[[int], object] = lambda batch: None
) -> Delivery:
    """Writes rows in order. after: is called with the number of each batch that is written. Unusable is raised."""
    waiting = deque(list(rows[at : at + size]) for at in range(0, len(rows), size))
    done, batches, lost, deadline = Delivery(), 0, False, time.monotonic() + PATIENCE_S
    while waiting:
        batch = waiting.popleft()
        assert time.monotonic() < deadline, f"{len(waiting) + 1} batches are left: {done.attempts[-3:]}"
        try:
            if lost:
                await driver.open()
                lost = False
            failures = await driver.write(batch)
        except Refused as error:
            done.refused += 1
            if len(batch) == 1:
                done.failed.append((batch[0], str(error)))
            else:
                middle = len(batch) // 2
                waiting.extendleft([batch[middle:], batch[:middle]])
        except Unusable:
            raise
        except Exception as error:
            done.attempts.append(str(error) or type(error).__name__)
            lost = True
            waiting.appendleft(batch)
            await asyncio.sleep(PAUSE_S)
        else:
            done.failed += [(batch[one.at], one.reason) for one in failures if not one.again]
            again = [batch[one.at] for one in sorted(failures) if one.again]
            if again:
                done.attempts += [one.reason for one in failures if one.again]
                waiting.appendleft(again)
                await asyncio.sleep(PAUSE_S)
            after(batches)
            batches += 1
    return done


def some_rows(count: int, values: Callable[[int], dict[str, Any]] = lambda number: {}) -> list[Row]:
    """Rows with the fields `n`, `topic` and others, and an id of 32 hexadecimal digits."""
    return [
        Row("0", number, f"client{number % 7}", {"n": number, "topic": f"t/{number % 7}", **values(number)}, f"{number:032X}", "n1")
        for number in range(count)
    ]


async def opened(driver: Driver) -> Driver:
    await driver.open()
    return driver


def run(scenario: Coroutine[Any, Any, Any], *connectors: Connector[Any]) -> Any:
    """Runs a scenario in an event loop as flows has one, and closes connectors."""

    async def closing() -> Any:
        try:
            return await scenario
        finally:
            for one in connectors:
                await one.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(closing())
