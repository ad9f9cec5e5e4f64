"""The base of all connectors: requests with a timeout over lent connections, health, reconnecting, close."""

import asyncio
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from shardbroker.connectors.errors import describe

__all__ = ["RETRY_MAX_S", "RETRY_MIN_S", "Connector", "Health", "Identity", "PooledConnector", "State", "retry_delay_s"]

RETRY_MIN_S, RETRY_MAX_S = 0.1, 15.0
"""Limits of the delay between attempts to reach a server: it doubles from the first to the second."""
JITTER = 0.5
"""Least share of the delay that is waited: connectors that lost the same server do not return to it at the same time."""

Lent = TypeVar("Lent")


def retry_delay_s(
    failures: int,
    uniform: Callable[[float, float], float] = random.uniform,
    least_s: float = RETRY_MIN_S,
    most_s: float = RETRY_MAX_S,
) -> float:
    """Returns the delay before the next attempt, in seconds: doubled by each failure in a row, with jitter."""
    longest = min(most_s, least_s * 2.0 ** min(max(failures - 1, 0), 30))
    return longest * uniform(JITTER, 1)


class Identity(NamedTuple):
    """Where a connector is, for names at a server. origin: of the data directory, random. number: of the process flows. synced:
    whether messages are on the disk before they are acknowledged."""

    node: str
    origin: str
    number: int
    processes: int
    synced: bool = False


class State(Enum):
    """The states of a connector, as EMQX names them."""

    CONNECTING = "connecting"
    """No request has succeeded or failed yet."""
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    STOPPED = "stopped"


class Health:
    """The health of a server, by the outcome of requests and probes."""

    def __init__(self) -> None:
        self.state = State.CONNECTING
        self.since = time.monotonic()
        """Start of the state, seconds of the monotonic clock."""
        self.last_error = ""
        """Error of the last failed request or probe; kept when the server is available again."""
        self._failures = 0

    def reached(self) -> None:
        """Records that the server has answered."""
        self._failures = 0
        self._enter(State.CONNECTED)

    def lost(self, error: Exception) -> None:
        """Records that the server could not be reached, or rejected the connector's account."""
        self.last_error = describe(error)
        self._failures += 1
        self._enter(State.DISCONNECTED)

    def stopped(self) -> None:
        """Records that the connector is closed, for good."""
        self._enter(State.STOPPED)

    def retry_delay_s(self) -> float:
        """Returns the delay before the next attempt, in seconds: doubled by each failure in a row, with jitter."""
        return retry_delay_s(self._failures)

    def _enter(self, state: State) -> None:
        if state is not self.state and self.state is not State.STOPPED:
            self.state, self.since = state, time.monotonic()


class Connector(ABC, Generic[Lent]):
    """A pool of connections to one server. The constructor opens none; an event loop is needed from the first request on."""

    def __init__(self, timeout_s: float) -> None:
        self.health = Health()
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def connection(self, within_s: float = math.inf) -> AsyncIterator[Lent]:
        """Lends a connection for one request. The timeout includes the wait for a free connection; within_s: a shorter one.

        Errors of the library pass through. TimeoutError means no response in time; the library may then take as long again to give
        up the connection. A request that the server refuses, such as a query with an unknown column, does not change the state.
        """
        try:
            async with asyncio.timeout(min(self._timeout_s, within_s)), self._lend() as lent:
                yield lent
        except Exception as error:
            if self._is_lost(error):
                self.health.lost(error)
            else:
                self.health.last_error = describe(error)
            raise
        self.health.reached()

    async def probe(self) -> None:
        """Checks that the server answers. Raises an error of its library, or TimeoutError."""
        try:
            async with asyncio.timeout(self._timeout_s), self._lend() as lent:
                await self._ping(lent)
        except Exception as error:
            self.health.lost(error)
            raise
        self.health.reached()

    async def reconnect(self) -> None:
        """Probes until the server answers, with the delay of `Health.retry_delay_s` between attempts."""
        while self.health.state is not State.STOPPED:
            try:
                return await self.probe()
            except Exception:
                await asyncio.sleep(self.health.retry_delay_s())

    async def close(self) -> None:
        """Closes all connections; outstanding requests fail."""
        self.health.stopped()
        await self._close()

    @abstractmethod
    def _lend(self) -> AbstractAsyncContextManager[Lent]:
        """Lends a connection of the pool, opened if need be."""

    @abstractmethod
    async def _ping(self, lent: Lent) -> None: ...

    @abstractmethod
    def _is_lost(self, error: Exception) -> bool:
        """Returns whether an error means that the server cannot be used, rather than that it refuses one request."""

    @abstractmethod
    async def _close(self) -> None: ...


class PooledConnector(Connector[Any]):
    """A connector over a library whose pool is opened by a coroutine."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._opening = asyncio.Lock()
        self._pool: Any = None

    @abstractmethod
    async def _open(self) -> Any:
        """Returns the pool, without connections: these are opened when they are needed."""

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
