"""Serves one action in the event loop of the runner: opens, probes, writes batches, opens again after a loss."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from shardbroker.connectors.connector import State
from shardbroker.connectors.errors import describe
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.sinks.action import SinkAction
from shardbroker.flows.sinks.batch import Batch
from shardbroker.flows.sinks.complaints import Complaints
from shardbroker.flows.sinks.driver import Refused
from shardbroker.flows.sinks.row import Row

__all__ = ["ActionServer"]

CLOSE_S = 5.0
"""Longest wait for batches under way when an action ends: the time limit of a connector by default."""
SYNC_S = 0.5
"""Least time between two syncs of a driver that has them. The process wakes the server once a second if a cursor waits for one."""


class ActionServer:
    """driver: of the action. failed: is called with each row that has failed for good. room: is called when the buffer has room."""

    def __init__(
        self,
        action: SinkAction,
        driver: Any,
        complaints: Complaints,
        failed: Callable[["ActionServer", Row, str], None],
        room: Callable[[], None],
    ) -> None:
        self.action, self.id = action, action.id
        self._driver, self._complaints, self._failed, self._room = driver, complaints, failed, room
        self.synced: dict[str, Cursor] | None = {} if hasattr(driver, "sync") else None
        """Cursors of what is permanent, of a driver that has to sync."""
        self._event = asyncio.Event()
        self._writes: set[asyncio.Task[None]] = set()
        self._probing: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._probe_s = 0.0
        self._sync_s = 0.0

    # --- orders; in the loop --------------------------------------------------------------------------------------------------

    def start(self, after: asyncio.Task[None] | None = None) -> None:
        """after: what ends first, such as the server of the same action before a change."""
        self._task = asyncio.get_running_loop().create_task(self._begin(after))

    def wake(self) -> None:
        self._event.set()

    def stop(self) -> None:
        """Takes no more batches."""
        with self.action.lock:
            self.action.stopped()
        self.wake()

    def resume(self) -> None:
        """Ends a stop, and the wait for a server."""
        with self.action.lock:
            self.action.restarted()
        self.wake()

    def restart(self) -> None:
        """Connects again, behind the batches under way."""
        self.resume()

    async def close(self, wait_s: float = CLOSE_S) -> None:
        """Returns when no batch is under way; their rows are done, or will be read again."""
        if self._task is not None:
            self._task.cancel()
        with self.action.lock:
            self.action.stopped()
        if self._writes:
            await asyncio.wait(self._writes, timeout=wait_s)
        left = [*self._writes, *([self._probing] if self._probing is not None else []), *([self._task] if self._task else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        with suppress(Exception):
            await self._sync()
        with suppress(Exception):
            await self._driver.close()

    # --- the task -------------------------------------------------------------------------------------------------------------

    async def _begin(self, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        while True:
            try:
                await self._step()
            except Exception as error:  # of a driver that does what it must not
                self._lose(type(error).__name__)

    async def _step(self) -> None:
        state = self.action.state
        if state is State.CONNECTED:
            self._write_all()
            self._probe_when_due()
            if self.synced is not None:
                await self._sync_when_due()
            await self._wait_until(self._next_s())
        elif state is State.STOPPED:
            await self._wait_until(None)
        elif self._writes:
            await self._wait_until(None)  # their outcome belongs to the connection that is lost
        elif self.action.retry_at_s > time.monotonic():
            await self._wait_until(self.action.retry_at_s)
        else:
            await self._connect()

    async def _wait_until(self, at_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(at_s):
                await self._event.wait()
        self._event.clear()

    def _next_s(self) -> float:
        with self.action.lock:
            due_s = self.action.due_s()
        return self._probe_s if due_s is None else min(due_s, self._probe_s)

    async def _connect(self) -> None:
        try:
            await self._driver.open()
            stored = await self._driver.stored() if getattr(self._driver, "stores_cursor", False) else None
        except Exception as error:
            self._lose(describe(error))
            return
        with self.action.lock:
            if self.action.state is not State.STOPPED:
                self.action.connected(stored)
            is_proving = self.action.is_proving
        self._probe_s = time.monotonic() + self.action.limits.health_check_s
        if not is_proving:
            self._complaints.reached()

    def _lose(self, reason: str) -> None:
        with self.action.lock:
            self.action.lost_server(reason, time.monotonic())
        self._complaints.lost(reason)
        self.wake()

    # --- batches --------------------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        """Begins to write all batches that are due: at most the lanes times the window."""
        while True:
            with self.action.lock:
                batch = self.action.take(time.monotonic(), time.time_ns() // 1_000_000)
            if batch is None:
                break
            self._keep(asyncio.get_running_loop().create_task(self._write(batch)))
        self._finish()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._writes.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        self.wake()

    async def _write(self, batch: Batch) -> None:
        action = self.action
        failed: list[tuple[Row, str]] = []
        try:
            failures = await self._driver.write(batch.rows)
        except Refused as error:
            with action.lock:
                failed = action.refused(batch, describe(error))
        except Exception as error:
            self._outcome_unknown(batch, describe(error))
        except BaseException:  # the process ends
            self._outcome_unknown(batch, "stopped")
            raise
        else:
            with action.lock:
                failed = action.written(batch, failures, time.monotonic(), time.time_ns() // 1_000_000)
            if action.state is State.DISCONNECTED:
                self._complaints.lost(action.last_error)
            else:
                self._complaints.reached()
        for row, reason in failed:
            self._complaints.row_failed(row.journal, row.position, reason)
            self._failed(self, row, reason)
        self._finish()

    def _outcome_unknown(self, batch: Batch, reason: str) -> None:
        with self.action.lock:
            self.action.unreachable(batch, reason, time.monotonic())
        self._complaints.lost(reason)

    def settle(self, rows: Iterable[Row]) -> None:
        """Notes that the fallbacks are done with rows that have failed here."""
        with self.action.lock:
            for row in rows:
                self.action.settle(row)
        self._finish()

    def _finish(self) -> None:
        """Reports rows that are done to where they belong, and room in the buffer to a reader that waits for it."""
        action = self.action
        while action.finished:
            with action.lock:
                finished, action.finished = action.finished, []
            for done in finished:
                done()
        with action.lock:
            is_waited_for = action.has_late and action.buffer.is_low
        if is_waited_for:
            self._room()

    # --- probes and syncs -----------------------------------------------------------------------------------------------------

    def _probe_when_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._probe_s or (self._probing is not None and not self._probing.done()):
            return
        self._probe_s = now_s + self.action.limits.health_check_s
        self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        try:
            await self._driver.probe()
        except Exception as error:
            if self.action.state is State.CONNECTED:
                self._lose(describe(error))
            return
        with self.action.lock:
            self.action.answered()

    async def _sync_when_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._sync_s:
            return
        self._sync_s = now_s + SYNC_S
        self._keep(asyncio.get_running_loop().create_task(self._try_sync()))

    async def _try_sync(self) -> None:
        try:
            await self._sync()
        except Exception as error:
            self._lose(describe(error))

    async def _sync(self) -> None:
        if self.synced is None:
            return
        with self.action.lock:
            cursors = {journal: self.action.cursor(journal) for journal in self.action.journals}
        if cursors != self.synced:
            await self._driver.sync()
            self.synced = cursors


