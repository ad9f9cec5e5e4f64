"""The thread of all sinks of a process: an event loop that owns connectors, drivers and the servers of actions.

The process gives orders with `call`; lines for the log, answers and room in a buffer come back through queues and its bell.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from threading import Thread
from typing import Any

from shardbroker.connectors.connector import State
from shardbroker.connectors.errors import describe
from shardbroker.flows.sinks.row import Row
from shardbroker.flows.sinks.server import CLOSE_S, ActionServer
from shardbroker.flows.sources.server import SourceServer
from shardbroker.logs.phrases import Line

__all__ = ["ConnectorHandle", "SinkRunner"]

PROBE_S = 15.0
"""Between two probes of a connector that no action uses."""


class ConnectorHandle:
    """A connector and the number of actions and sources that use it."""

    def __init__(self, id: str, connector: Any) -> None:
        self.id, self.connector = id, connector
        self.users = 0
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self.connector.close()

    async def _watch(self) -> None:
        """Probes while no action does so."""
        while True:
            health = self.connector.health
            if not self.users or health.state is State.CONNECTING:
                with suppress(Exception):
                    await self.connector.probe()
            await asyncio.sleep(PROBE_S)


class _Fallen:
    """A row that has failed for good, until the other actions that got it are done with it."""

    def __init__(self, server: ActionServer, row: Row, left: int) -> None:
        self._server, self._row, self._left = server, row, left

    def done(self) -> None:
        """One of them is."""
        self._left -= 1
        if not self._left:
            self._server.settle([self._row])


class SinkRunner:
    """wake: wakes the process for `lines` and `answers`, and for readers that wait for room."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.lines: deque[tuple[str, Line]] = deque()
        self.answers: deque[bytes] = deque()
        self.wake = wake
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="sinks", daemon=True)
        self._servers: dict[str, ActionServer] = {}
        self._fallbacks: dict[str, list[str]] = {}
        self._sources: set[SourceServer] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    # --- of the process -------------------------------------------------------------------------------------------------------

    def call(self, call: Callable[..., Any], *args: Any) -> None:
        """Calls it in the loop."""
        self._loop.call_soon_threadsafe(call, *args)

    def wake_servers(self, servers: list[ActionServer]) -> None:
        """Has rows taken that were admitted; once for many rows."""
        self.call(_wake, servers)

    def write(self, level: str, line: Line) -> None:
        """Has a line written by the process."""
        self.lines.append((level, line))
        self.wake()

    def close(self, wait_s: float) -> None:
        """Ends all servers; returns when no batch is under way, or after so long."""
        closing = asyncio.run_coroutine_threadsafe(self._close(wait_s), self._loop)
        with suppress(TimeoutError):
            closing.result(wait_s + CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    # --- in the loop ----------------------------------------------------------------------------------------------------------

    def apply(
        self,
        ended: Iterable[ActionServer],
        begun: Iterable[tuple[ActionServer, list[str]]],
        connectors_ended: Iterable[ConnectorHandle],
        connectors_begun: Iterable[ConnectorHandle],
        sources: tuple[Iterable[SourceServer], Iterable[SourceServer]] = ((), ()),
    ) -> None:
        """Replaces servers, each with its fallbacks; the new one of an action begins when the former one has ended.

        sources: those that end, and those that begin; likewise.
        """
        closing = {}
        ended, begun = list(ended), list(begun)
        for server in ended:
            if self._servers.get(server.id) is server:
                del self._servers[server.id]
                del self._fallbacks[server.id]
        for server, fallbacks in begun:
            self._servers[server.id], self._fallbacks[server.id] = server, fallbacks
        for server in ended:
            closing[server.id] = self.keep(self._end(server))
        closing_sources = {source.id: self.keep(source.close()) for source in sources[0]}
        for source in sources[0]:
            self._sources.discard(source)
        for handle in connectors_begun:
            handle.start()
        for server, _ in begun:
            server.start(closing.get(server.id))
        for source in sources[1]:
            self._sources.add(source)
            source.start(closing_sources.get(source.id))
        self.keep(self._end_connectors([*closing.values(), *closing_sources.values()], list(connectors_ended)))

    def keep(self, work: Any) -> asyncio.Task[Any]:
        """Runs a coroutine to its end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(self, server: ActionServer) -> None:
        await server.close()
        for row in server.action.loose_rows():
            assert row.done is not None
            self._admit(server.id, row, row.done)

    async def _end_connectors(self, before: list[asyncio.Task[Any]], handles: list[ConnectorHandle]) -> None:
        if before:
            await asyncio.wait(before)
        await asyncio.gather(*(handle.close() for handle in handles))

    def failed(self, server: ActionServer, row: Row, reason: str) -> None:
        """Gives a row that has failed for good to the fallbacks of its action, if there are any."""
        if not server.action.keeps_failed:
            return
        fallbacks = self._fallbacks.get(server.id, [])
        fallen = _Fallen(server, row, len(fallbacks) or 1)
        if not fallbacks:
            fallen.done()
        for id in fallbacks:
            self._admit(id, row, fallen.done)

    def _admit(self, id: str, row: Row, done: Callable[[], None]) -> None:
        """Admits a row of another action; one that no longer is counts as done."""
        server = self._servers.get(id)
        if server is None:
            done()
            return
        with server.action.lock:
            server.action.admit_loose(row.reported_to(done), self._loop.time())
        server.wake()

    async def _close(self, wait_s: float) -> None:
        servers = list(self._servers.values())
        self._servers.clear()  # rows of others are not done, and will be read again
        sources, self._sources = self._sources, set()
        await asyncio.gather(*(server.close(wait_s) for server in servers), *(source.close(0.0) for source in sources))
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def probe(
        self,
        connector: Any,
        driver: Any,
        answer: Callable[[str], bytes],
        work: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        """Checks a connector that is used for nothing else. driver: of an action over it, which is checked as well; or None. work:
        is done with the connector if it can be used."""
        error = ""
        try:
            await (connector if driver is None else driver).probe()
            if work is not None:
                await work(connector)
        except Exception as raised:
            error = describe(raised)
        for one in (driver, connector):
            with suppress(Exception):
                await one.close()
        self.answers.append(answer(error))
        self.wake()


def _wake(servers: list[ActionServer]) -> None:
    for server in servers:
        server.wake()
