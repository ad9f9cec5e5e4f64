"""MySQL and MariaDB, by asyncmy."""

import asyncio
from contextlib import suppress
from typing import Any

import asyncmy
from asyncmy.cursors import DictCursor

from shardbroker.config.connectors import MysqlConnection
from shardbroker.connectors.connector import PooledConnector
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Mysql", "literal"]

LOST_CODES = {1040, 1043, 1044, 1045, 1049, 1053, 1129, 1130, 1203, 1226}
"""Errors of a server that rejects connections; those from 2000 on are of the library, which cannot reach a server."""


class Mysql(PooledConnector):
    """Lends connections whose cursors return rows as dicts. They are opened when they are needed."""

    def __init__(self, settings: MysqlConnection, key: str) -> None:
        super().__init__(settings.timeout)
        self._settings = settings
        self._address = address_of(settings, key)
        self._tls = tls_of(settings, key)

    async def _open(self) -> Any:
        return await asyncmy.create_pool(
            host=self._address[0],
            port=self._address[1],
            user=self._settings.username,
            password=self._settings.password,
            database=self._settings.database,
            ssl=self._tls,
            minsize=0,
            maxsize=self._settings.pool_size,
            connect_timeout=self._settings.timeout,
            charset="utf8mb4",
            autocommit=True,
            cursor_cls=DictCursor,
            pool_recycle=-1,
        )

    async def _ping(self, lent: Any) -> None:
        await lent.ping(reconnect=False)

    def _is_lost(self, error: Exception) -> bool:
        if isinstance(error, asyncmy.OperationalError):
            code = error.args[0] if error.args else 0
            return not isinstance(code, int) or code >= 2000 or code in LOST_CODES
        return isinstance(error, OSError)

    async def _close(self) -> None:
        await super()._close()
        if self._pool is not None:  # idle connections, which terminate() leaves open
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._pool.wait_closed()


def literal(value: str | None) -> str:
    """Returns a value as SQL.

    Text is written as hexadecimal digits: nothing in it can end the literal, whatever the server's modes and character sets.
    """
    return "NULL" if value is None else f"_utf8mb4 X'{value.encode(errors='surrogateescape').hex()}'"
