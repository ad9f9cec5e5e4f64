"""States, back-off and bounds that all connectors share, over one without a server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shardbroker.connectors import connector as common
from shardbroker.connectors.connector import Connector, State
from shardbroker.connectors.errors import ConnectorError


class Lost(Exception):
    """Its text is of a library."""


class Sometimes(Connector[int]):
    """Its server answers unless `problem` is set."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.problem: Exception | None = None
        self.probed_at: list[float] = []

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[int]:
        if self.problem is not None:
            raise self.problem
        yield 1

    async def _ping(self, lent: int) -> None:
        pass

    async def probe(self) -> None:
        self.probed_at.append(time.monotonic())
        await super().probe()

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, Lost | OSError)

    async def _close(self) -> None:
        pass


def test_states_follow_requests_and_a_refused_one_changes_none() -> None:
    async def run() -> None:
        server = Sometimes()
        assert server.health.state is State.CONNECTING
        with pytest.raises(ValueError):
            async with server.connection():
                raise ValueError("secret")
        assert server.health.state is State.CONNECTING and server.health.last_error == "ValueError"
        async with server.connection() as lent:
            assert lent == 1
        assert server.health.state is State.CONNECTED
        with pytest.raises(ConnectorError):
            async with server.connection():
                raise ConnectorError("an answer of more than 5 bytes")
        assert server.health.state is State.CONNECTED and server.health.last_error == "an answer of more than 5 bytes"
        since = server.health.since
        with pytest.raises(TimeoutError):
            async with server.connection():
                await asyncio.sleep(60)
        assert server.health.state is State.DISCONNECTED and server.health.last_error == "no response in time"
        assert server.health.since > since
        server.problem = Lost("secret")
        with pytest.raises(Lost):
            await server.probe()
        assert server.health.last_error == "Lost"
        await server.close()
        with pytest.raises(Lost):
            await server.probe()
        assert server.health.state is State.STOPPED, "for good"

    asyncio.run(run())


def test_a_request_that_is_cancelled_says_nothing_about_the_server() -> None:
    async def run() -> None:
        server = Sometimes()

        async def ask() -> None:
            async with server.connection():
                await asyncio.sleep(60)

        task = asyncio.create_task(ask())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert server.health.state is State.CONNECTING and not server.health.last_error

    asyncio.run(run())


def test_the_back_off_doubles_up_to_its_bound_and_ends_with_an_answer() -> None:
    server = Sometimes()
    delays = []
    for _ in range(2000):
        server.health.lost(Lost())
        delays.append(server.health.retry_delay_s())
    longest = [min(common.RETRY_MAX_S, common.RETRY_MIN_S * 2**number) for number in range(12)]
    for delay, most in zip(delays, longest, strict=False):
        assert most * common.JITTER <= delay <= most
    assert all(common.RETRY_MAX_S * common.JITTER <= delay <= common.RETRY_MAX_S for delay in delays[12:])
    assert len(set(delays)) > 1000, "jitter"
    server.health.reached()
    server.health.lost(Lost())
    assert server.health.retry_delay_s() <= common.RETRY_MIN_S


def test_reconnect_probes_until_the_server_answers_and_ends_with_the_connector() -> None:
    async def run() -> None:
        server = Sometimes()
        server.problem = Lost()
        task = asyncio.create_task(server.reconnect())
        await asyncio.sleep(0.5)
        assert server.health.state is State.DISCONNECTED and not task.done()
        waits = [later - sooner for sooner, later in zip(server.probed_at, server.probed_at[1:], strict=False)]
        assert 2 <= len(waits) <= 5 and min(waits) >= common.RETRY_MIN_S * common.JITTER
        server.problem = None
        await asyncio.wait_for(task, 5)
        assert server.health.state is State.CONNECTED
        server.problem = Lost()
        task = asyncio.create_task(server.reconnect())
        await asyncio.sleep(0.05)
        await server.close()
        await asyncio.wait_for(task, 5)
        assert server.health.state is State.STOPPED

    asyncio.run(run())
