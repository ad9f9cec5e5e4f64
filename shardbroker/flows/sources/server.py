"""Serves one source in the event loop of the runner: probes, runs the driver, takes its batches, connects again after a loss."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shardbroker.connectors.connector import State
from shardbroker.connectors.errors import ConnectorError, describe
from shardbroker.flows.bridge.records import Records
from shardbroker.flows.rate import Rate
from shardbroker.flows.sinks.backoff import Backoff
from shardbroker.flows.sources.complaints import Complaints
from shardbroker.flows.sources.figures import Figures
from shardbroker.flows.sources.records import Encoder
from shardbroker.flows.sources.source import Received, SourceDriver

__all__ = ["Batch", "Shipment", "SourceServer", "figures_of"]

CLOSE_S = 5.0
"""Longest wait for workers when a source ends: what they have not consumed by then arrives again."""
PROBE_S = 15.0
"""Longest probe: a driver has a time limit of its own, which is shorter."""
INFLIGHT_RECORDS, INFLIGHT_BYTES = 10_000, 8 << 20
"""Under way to workers, per source: a driver gets no room for its next batch before one of them is consumed."""


class Batch:
    """Records of a driver on their way to workers: (worker, record, kind) each."""

    __slots__ = ("at", "count", "done", "records", "size")

    def __init__(self, records: list[tuple[int, bytes, int]], count: int, done: Callable[[], None]) -> None:
        self.records, self.count, self.done = records, count, done
        self.at = 0
        """Of `records`, the next one for a lane."""
        self.size = sum([len(record) for _, record, _ in records])


class Shipment:
    """A frame of another broker on its way to a worker. origin: of its stream, whose records have one worker."""

    __slots__ = ("count", "done", "origin", "records", "size")

    def __init__(self, records: Records, origin: int, done: Callable[[], None]) -> None:
        self.records, self.origin, self.done = records, origin, done
        self.count, self.size = records.count, records.size


class SourceServer:
    """wake: wakes the process, which empties `queue`."""

    def __init__(
        self,
        id: str,
        driver: SourceDriver,
        encoder: Encoder,
        health_check_s: float,
        complaints: Complaints,
        wake: Callable[[], None],
    ) -> None:
        self.id, self.event = id, encoder.event
        self.queue: deque[Batch | Shipment] = deque()
        """Batches for the process: appended here, taken there."""
        self.figures, self.rate = Figures(), Rate()
        self.is_fed = False
        """Whether a rule names the source behind FROM. Set by the process."""
        self.state = State.CONNECTING
        self.last_error = ""
        self._driver, self._encoder, self._health_check_s = driver, encoder, health_check_s
        self._complaints, self._wake = complaints, wake
        self._backoff = Backoff(random.uniform)
        self._batches = self._records = self._bytes = 0
        """Under way to workers."""
        self._takes = True
        """Whether drivers get room. False: the source ends, once nothing is under way."""
        self._room = asyncio.Event()
        self._orders = asyncio.Event()
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        if hasattr(driver, "admit"):
            listener: Any = driver
            listener.admit, listener.room, listener.complain = self.admit, self.room, complaints.bridge_refused
            listener.payload_max = encoder.payload_max

    @property
    def lag_records(self) -> int | None:
        """Records at the server that were not received yet; None: not known."""
        found = getattr(self._driver, "lag_records", None)
        return found if isinstance(found, int) else None

    # --- orders; in the loop --------------------------------------------------------------------------------------------------

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """after: what ends first, such as the server of the same source before a change."""
        self._task = asyncio.get_running_loop().create_task(self._begin(after))

    def stop(self) -> None:
        """Disconnects, once workers have consumed what was taken, until resume()."""
        self._is_stopped, self._takes = True, False
        self._orders.set()

    def resume(self) -> None:
        """Ends a stop, and the wait for a server."""
        self._is_stopped, self._takes = False, True
        self._backoff.reset()
        self._orders.set()
        self._room.set()

    def restart(self) -> None:
        """Connects again."""
        self.resume()
        if self._running is not None:
            self._running.cancel()

    def reset(self) -> None:
        """Sets the figures to 0; records under way have been received."""
        self.figures = Figures(received=self._records)
        self.rate = Rate(self._records)

    async def close(self, wait_s: float = CLOSE_S) -> None:
        """Ends the source, once workers have consumed what was taken, or after so long."""
        self._is_stopped, self._takes = True, False
        await self._drain(wait_s)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.state = State.STOPPED
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self._driver.close()

    # --- batches --------------------------------------------------------------------------------------------------------------

    async def take(self, batch: Sequence[Received], done: Callable[[], None]) -> None:
        """Takes a batch of the driver; returns once there is room for the next one."""
        records: list[tuple[int, bytes, int]] = []
        figures = self.figures
        for one in batch:
            try:
                records += self._encoder.encode(one, self.is_fed)
            except Exception as error:  # one record must not hold up those behind it
                figures.failed += 1
                self._complaints.record_failed(str(error) if isinstance(error, ValueError) else type(error).__name__)
            else:
                figures.published += one.message is not None
        figures.received += len(batch)
        self._admit(Batch(records, len(batch), done))
        await self.room()

    def admit(self, shipment: Shipment) -> None:
        """Takes a frame of another broker; room() returns once there is room for the next one."""
        figures, records = self.figures, shipment.records
        figures.received += records.count
        figures.published += records.count - records.failed
        figures.failed += records.failed
        if records.failed:
            self._complaints.record_failed("a message that is too large, has passed too many brokers or has a reserved topic")
        self._admit(shipment)

    def _admit(self, made: Batch | Shipment) -> None:
        self._batches += 1
        self._records += made.count
        self._bytes += made.size
        self._backoff.reset()
        self._complaints.reached()
        self.queue.append(made)
        self._wake()

    async def room(self) -> None:
        """Returns once there is room for what follows."""
        while not self._takes or self._records >= INFLIGHT_RECORDS or self._bytes >= INFLIGHT_BYTES:
            self._room.clear()
            await self._room.wait()

    def finished(self, batches: list[Batch | Shipment]) -> None:
        """Notes that workers have consumed batches."""
        for batch in batches:
            self._batches -= 1
            self._records -= batch.count
            self._bytes -= batch.size
            failed = batch.records.failed if isinstance(batch, Shipment) else 0
            self.figures.acknowledged += batch.count - failed
            try:
                batch.done()
            except Exception as error:  # of a driver whose connection is gone
                self.last_error = describe(error)
        self._room.set()

    async def _drain(self, wait_s: float) -> None:
        """Returns when nothing is under way, or after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._batches:
                    self._room.clear()
                    await self._room.wait()

    # --- the task -------------------------------------------------------------------------------------------------------------

    async def _begin(self, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        while True:
            if self._is_stopped:
                self.state = State.STOPPED
                await self._wait_for_orders(None)
                continue
            if self.state is not State.DISCONNECTED:
                self.state = State.CONNECTING
            try:
                await self._serve()
            except Exception as error:
                self._lose(describe(error))
                await self._wait_for_orders(self._backoff.next_s())

    async def _wait_for_orders(self, wait_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._orders.wait()
        self._orders.clear()

    async def _serve(self) -> None:
        """Runs the driver until it is ordered to stop. Raises any exception when the server is lost."""
        await self._probe()
        self.state = State.CONNECTED
        running = self._running = asyncio.get_running_loop().create_task(self._run())
        ordered = asyncio.get_running_loop().create_task(self._orders.wait())
        try:
            while not self._is_stopped:
                await asyncio.wait({running, ordered}, timeout=self._health_check_s, return_when=asyncio.FIRST_COMPLETED)
                if running.cancelled():
                    return  # restart()
                if running.done():
                    running.result()
                    raise ConnectorError("the driver has ended")
                if ordered.done():
                    self._orders.clear()
                    if self._is_stopped:
                        await self._drain(CLOSE_S)
                    ordered = asyncio.get_running_loop().create_task(self._orders.wait())
                    continue
                await self._probe()
                self._complaints.reached()
                self._backoff.reset()
        finally:
            self._running = None
            for task in (running, ordered):
                task.cancel()
            await asyncio.gather(running, ordered, return_exceptions=True)

    async def _run(self) -> None:
        await self._driver.run(self.take)

    async def _probe(self) -> None:
        async with asyncio.timeout(PROBE_S):
            await self._driver.probe()

    def _lose(self, reason: str) -> None:
        self.state, self.last_error = State.DISCONNECTED, reason
        self._complaints.lost(reason)


def figures_of(server: SourceServer) -> dict[str, Any]:
    """Returns the figures of a source, with its status. Called once a second."""
    figures = server.figures
    server.rate.tick(figures.received)
    lag = server.lag_records
    return {
        **figures.named(),
        "rate": round(server.rate.now, 2),
        "rate_last5m": round(server.rate.last5m, 2),
        "rate_max": round(server.rate.max, 2),
        "status": server.state.value,
        "error": server.last_error if server.state in (State.DISCONNECTED, State.CONNECTING) else "",
        **({"lag_records": lag} if lag is not None else {}),
    }
