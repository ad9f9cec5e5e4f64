"""MongoDB, by pymongo."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConnectionFailure, OperationFailure

from shardbroker.config.connectors import MongodbConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Mongodb"]

AUTHENTICATION_FAILED = 18
"""Error code of a server that rejects an account."""

Database = AsyncDatabase[dict[str, Any]]


class Mongodb(Connector[Database]):
    """Lends `database`, whose client takes a connection of the pool for each command."""

    def __init__(self, settings: MongodbConnection, key: str) -> None:
        super().__init__(settings.timeout)
        host, port = address_of(settings, key)
        tls_of(settings, key)  # the library makes a context of its own
        options: dict[str, Any] = {}
        if settings.username:
            options |= {"username": settings.username, "password": settings.password}
        if settings.tls:
            options |= {"tls": True} | ({"tlsCAFile": settings.tls_ca} if settings.tls_ca else {})
        milliseconds = max(1, int(settings.timeout * 1000))
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            host,
            port,
            maxPoolSize=settings.pool_size,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            socketTimeoutMS=milliseconds,
            **options,
        )
        self.database = self._client[settings.database]

    def _lend(self) -> AbstractAsyncContextManager[Database]:
        return nullcontext(self.database)

    async def _ping(self, lent: Database) -> None:
        await lent.command("ping")

    def _is_lost(self, error: Exception) -> bool:
        if isinstance(error, OperationFailure):
            return error.code == AUTHENTICATION_FAILED
        return isinstance(error, OSError | ConnectionFailure)

    async def _close(self) -> None:
        await self._client.close()
