"""PostgreSQL, by asyncpg."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import asyncpg

from shardbroker.config.connectors import PostgresqlConnection
from shardbroker.connectors.connector import PooledConnector
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Outline", "Postgresql", "outline_of"]

CLOSE_S = 1.0
"""Longest wait for the end of a cancelled request; then its connection is closed at once."""
LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CannotConnectNowError,
)


class Postgresql(PooledConnector):
    """Lends connections of asyncpg, which are opened when they are needed."""

    def __init__(self, settings: PostgresqlConnection, key: str) -> None:
        super().__init__(settings.timeout)
        self._settings = settings
        self._address = address_of(settings, key)
        self._tls = tls_of(settings, key)

    async def _open(self) -> Any:
        return await asyncpg.create_pool(
            host=self._address[0],
            port=self._address[1],
            user=self._settings.username,
            password=self._settings.password or None,
            database=self._settings.database,
            ssl=self._tls or False,
            min_size=0,
            max_size=self._settings.pool_size,
            timeout=self._settings.timeout,
            command_timeout=self._settings.timeout,
            reset=_keep,
        )

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        """Closes a connection whose request did not end with an answer, which the server is asked to cancel.

        The pool would do so too, but has lent connections that still had an answer to read.
        """
        async with super()._lend() as connection:
            try:
                yield connection
            except asyncpg.PostgresError:
                raise
            except BaseException:
                with suppress(Exception):
                    await connection.close(timeout=min(CLOSE_S, self._timeout_s))
                raise

    async def _ping(self, lent: Any) -> None:
        await lent.execute("SELECT 1")

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, LOST)


async def _keep(connection: Any) -> None:
    """In place of statements that reset locks, cursors and parameters, a round trip: no request leaves any."""


class Outline(NamedTuple):
    """What a server knows about a statement without running it."""

    parameters: int
    columns: tuple[tuple[str, str], ...]
    """Name and type of each."""


async def outline_of(connection: Any, statement: str) -> Outline | None:
    """Returns the outline of a statement, or None if the server refuses it."""
    try:
        prepared = await connection.prepare(statement)
    except asyncpg.PostgresError:
        return None
    return Outline(len(prepared.get_parameters()), tuple((one.name, one.type.name) for one in prepared.get_attributes()))
