"""Redis, by redis-py."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import redis.asyncio
import redis.exceptions
from redis.asyncio.connection import BlockingConnectionPool, Connection, SSLConnection

from shardbroker.config.connectors import RedisConnection
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Redis"]

LOST = (OSError, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)


class Redis(Connector[Any]):
    """Lends the client, which takes a connection of the pool for each command. Answers are text."""

    def __init__(self, settings: RedisConnection, key: str) -> None:
        super().__init__(settings.timeout)
        host, port = address_of(settings, key)
        tls_of(settings, key)  # the library makes a context of its own
        tls: dict[str, Any] = {"ssl_ca_certs": settings.tls_ca or None} if settings.tls else {}
        pool = BlockingConnectionPool(
            max_connections=settings.pool_size,
            timeout=settings.timeout,
            connection_class=SSLConnection if settings.tls else Connection,
            host=host,
            port=port,
            db=settings.database,
            username=settings.username or None,
            password=settings.password or None,
            socket_timeout=settings.timeout,
            socket_connect_timeout=settings.timeout,
            decode_responses=True,
            **tls,
        )
        self._client = redis.asyncio.Redis.from_pool(pool)

    def _lend(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext(self._client)

    async def _ping(self, lent: Any) -> None:
        await lent.ping()

    def _is_lost(self, error: Exception) -> bool:
        return isinstance(error, LOST)

    async def _close(self) -> None:
        await self._client.aclose()
