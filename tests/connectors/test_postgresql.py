"""The connector of PostgreSQL against the real server: requests that are cancelled or take too long."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from shardbroker.config.connectors import PostgresqlConnection
from shardbroker.connectors.postgresql import Postgresql
from tests.servers.postgresql import postgresql

ACTIVE = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid() AND state = 'active'"


def made(port: int, timeout: float) -> Postgresql:
    return Postgresql(PostgresqlConnection(server=f"127.0.0.1:{port}", username="mqtt", timeout=timeout, pool_size=1), "k")


async def value(connector: Postgresql, expression: str) -> Any:
    async with connector.connection() as lent:
        return await lent.fetchval(f"SELECT {expression}")


def test_a_request_that_is_cancelled_or_too_slow_ends_at_the_server_too() -> None:
    async def scenario() -> None:
        connector = made(server.port, 0.5)
        with pytest.raises(TimeoutError):
            await value(connector, "pg_sleep(60)::text || '1'")
        task = asyncio.create_task(value(connector, "pg_sleep(60)::text || '2'"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(50):
            if server.psql(ACTIVE) == "0\n":
                break
            await asyncio.sleep(0.1)
        assert server.psql(ACTIVE) == "0\n"
        assert await value(connector, "7") == 7
        await connector.close()

    with postgresql() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_requests_that_are_cancelled_at_any_moment_leave_usable_connections() -> None:
    async def several(connector: Postgresql) -> None:
        async with connector.connection() as lent, lent.transaction():
            for number in range(5):
                await lent.fetch("SELECT generate_series(1, $1::int)", 500 * number)

    async def scenario() -> None:
        connector = made(server.port, 5)
        for number in range(200):
            task = asyncio.create_task(several(connector))
            await asyncio.sleep(number % 20 * 0.0005)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert await value(connector, str(number)) == number
        await connector.close()

    with postgresql() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
