"""What all connectors have in common: bounded requests over lent connections, health, reconnecting, close."""

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any, Generic, TypeVar

from shardbroker.connectors.errors import describe

__all__ = ["Connector", "Health", "PooledConnector", "State"]

RETRY_MIN_S, RETRY_MAX_S = 0.1, 15.0
"""Back-off between attempts to reach a server: it doubles from the one to the other."""
JITTER = 0.5
"""Least share of a back-off that is waited: connectors that lost the same server do not return to it at the same time."""

Lent = TypeVar("Lent")


class State(Enum):
    """Of a connector, as EMQX names them."""

    CONNECTING = "connecting"
    """Neither an answer nor a failure yet."""
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    STOPPED = "stopped"


class Health:
    """Whether a server answers, by the outcome of requests and probes."""

    def __init__(self) -> None:
        self.state = State.CONNECTING
        self.since = time.monotonic()
        """Of the state, seconds of the monotonic clock."""
        self.last_error = ""
        """Of the last failed request or probe; stays when the server answers again."""
        self._failures = 0

    def reached(self) -> None:
        """The server answered."""
        self._failures = 0
        self._enter(State.CONNECTED)

    def lost(self, error: Exception) -> None:
        """The server could not be reached, or did not let the connector in."""
        self.last_error = describe(error)
        self._failures += 1
        self._enter(State.DISCONNECTED)

    def stopped(self) -> None:
        """The connector is closed, for good."""
        self._enter(State.STOPPED)

    def retry_delay_s(self) -> float:
        """Returns how long to wait before the next attempt: doubled by each failure in a row, with jitter."""
        longest = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(max(self._failures - 1, 0), 30))
        return longest * random.uniform(JITTER, 1)

    def _enter(self, state: State) -> None:
        if state is not self.state and self.state is not State.STOPPED:
            self.state, self.since = state, time.monotonic()


class Connector(ABC, Generic[Lent]):
    """A pool of connections to one server. Its constructor opens none; an event loop runs from the first request on."""

    def __init__(self, timeout_s: float) -> None:
        self.health = Health()
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Lent]:
        """Lends a connection for one request, which ends with the timeout, waiting for a free connection included.

        Errors of the library pass through, TimeoutError is no answer in time: then the library may take as long again to give up
        the connection. A request that the server refuses, such as a query with an unknown column, leaves the state as it is.
        """
        try:
            async with asyncio.timeout(self._timeout_s), self._lend() as lent:
                yield lent
        except Exception as error:
            if self._is_lost(error):
                self.health.lost(error)
            else:
                self.health.last_error = describe(error)
            raise
        self.health.reached()

    async def probe(self) -> None:
        """Asks the server for nothing but an answer. Raises what its library raises, or TimeoutError."""
        try:
            async with asyncio.timeout(self._timeout_s), self._lend() as lent:
                await self._ping(lent)
        except Exception as error:
            self.health.lost(error)
            raise
        self.health.reached()

    async def reconnect(self) -> None:
        """Probes until the server answers, with the back-off of `Health.retry_delay_s` between attempts."""
        while self.health.state is not State.STOPPED:
            try:
                return await self.probe()
            except Exception:
                await asyncio.sleep(self.health.retry_delay_s())

    async def close(self) -> None:
        """Closes all connections; requests that are under way fail."""
        self.health.stopped()
        await self._close()

    @abstractmethod
    def _lend(self) -> AbstractAsyncContextManager[Lent]:
        """A connection of the pool, opened if need be."""

    @abstractmethod
    async def _ping(self, lent: Lent) -> None: ...

    @abstractmethod
    def _is_lost(self, error: Exception) -> bool:
        """Whether an error means that the server cannot be used, rather than that it refuses one request."""

    @abstractmethod
    async def _close(self) -> None: ...


class PooledConnector(Connector[Any]):
    """Over a library whose pool is opened by a coroutine."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._opening = asyncio.Lock()
        self._pool: Any = None

    @abstractmethod
    async def _open(self) -> Any:
        """The pool, without connections: these are opened when they are needed."""

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        async with self._opening:
            if self._pool is None:
                self._pool = await self._open()
        async with self._pool.acquire() as connection:
            yield connection

    async def _close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
