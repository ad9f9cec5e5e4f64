"""What a driver of a source is run with in tests, in place of the frame: `take` collects, and a test says when batches are done."""

import asyncio
from collections.abc import Callable, Sequence

from shardbroker.flows.sources.source import Received, SourceDriver

__all__ = ["Taker"]

WAIT_S = 60.0
"""Longest wait for records: a test that hangs is to fail."""


class Taker:
    """acknowledges: whether batches are done at once; otherwise with finish()."""

    def __init__(self, acknowledges: bool = True) -> None:
        self.acknowledges = acknowledges
        self.received: list[Received] = []
        self.batches: list[int] = []
        """Sizes of batches."""
        self._done: list[Callable[[], None]] = []
        self._event = asyncio.Event()

    async def take(self, batch: Sequence[Received], done: Callable[[], None]) -> None:
        self.received += batch
        self.batches.append(len(batch))
        self._event.set()
        if self.acknowledges:
            done()
        else:
            self._done.append(done)

    def finish(self) -> None:
        """Notes that workers have consumed all that was taken."""
        for done in self._done:
            done()
        self._done.clear()

    async def wait_for(self, count: int) -> None:
        """Returns once so many records were taken."""
        async with asyncio.timeout(WAIT_S):
            while len(self.received) < count:
                self._event.clear()
                await self._event.wait()

    def run(self, driver: SourceDriver) -> "asyncio.Task[None]":
        """Runs a driver, until the task is cancelled."""

        async def run() -> None:
            await driver.run(self.take)

        return asyncio.get_running_loop().create_task(run())
