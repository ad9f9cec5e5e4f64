"""MySQL and MariaDB, by asyncmy."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncmy
from asyncmy.cursors import DictCursor

from shardbroker.config.connectors import MysqlConnection
from shardbroker.connectors.connector import PooledConnector
from shardbroker.connectors.server import address_of, tls_of

__all__ = ["Mysql", "literal"]

LOST_CODES = {1040, 1043, 1044, 1045, 1049, 1053, 1129, 1130, 1203, 1226, 1251, 1698, 1862, 1927, 3118, 3159, 4031, 4151}
"""Errors of a server that rejects or ends connections: too many, login, locked account, TLS required, shutdown, killed, idle."""
CLIENT_CODES = range(2000, 3000)
"""Errors of the library, which cannot reach a server. All other codes are of servers."""

NAMES = "SET NAMES utf8mb4"
"""At the start of a connection: a server may ignore the character set of the handshake."""
STRICT = "sql_mode = IF(@@sql_mode LIKE '%STRICT%', @@sql_mode, CONCAT_WS(',', NULLIF(@@sql_mode, ''), 'STRICT_TRANS_TABLES'))"
"""Without it a server cuts texts, and writes ? for bytes that are not UTF-8. It is in the default of MySQL and MariaDB."""


class Mysql(PooledConnector):
    """Lends connections whose cursors return rows as dicts. They are opened when they are needed."""

    def __init__(self, settings: MysqlConnection, key: str, *, is_strict: bool = False) -> None:
        """is_strict: the server rejects a value that does not fit, rather than change it."""
        super().__init__(settings.timeout)
        self._init_command = f"{NAMES}, {STRICT}" if is_strict else NAMES
        self._settings = settings
        self._address = address_of(settings, key)
        self._tls = tls_of(settings, key)
        self._lent: weakref.WeakSet[Any] = weakref.WeakSet()

    async def _open(self) -> Any:
        return await asyncmy.create_pool(
            host=self._address[0],
            port=self._address[1],
            user=self._settings.username,
            password=self._settings.password.encode(),  # text would be sent as Latin-1
            database=self._settings.database,
            ssl=self._tls,
            minsize=0,
            maxsize=self._settings.pool_size,
            connect_timeout=self._settings.timeout,
            charset="utf8mb4",
            init_command=self._init_command,
            autocommit=True,
            cursor_cls=DictCursor,
            pool_recycle=-1,
        )

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Any]:
        """Closes a connection whose request did not end with an answer: the pool would lend it with the rest of that answer."""
        async with super()._lend() as connection:
            self._lent.add(connection)
            try:
                yield connection
            except BaseException as error:
                code = _code_of(error)
                if code is None or code in CLIENT_CODES:
                    connection.close()
                raise

    async def _ping(self, lent: Any) -> None:
        await lent.ping(reconnect=False)

    def _is_lost(self, error: Exception) -> bool:
        if isinstance(error, asyncmy.MySQLError):
            code = _code_of(error)
            return code is None or code in CLIENT_CODES or code in LOST_CODES
        return isinstance(error, OSError)

    async def _close(self) -> None:
        await super()._close()
        if self._pool is not None:  # idle connections, which terminate() leaves open
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await self._pool.wait_closed()
            for connection in self._lent:  # those that wait_closed() did not reach
                connection.close()


def _code_of(error: BaseException) -> int | None:
    """Returns the number of an error of the library or a server, or None."""
    code = error.args[0] if isinstance(error, asyncmy.MySQLError) and error.args else None
    return code if isinstance(code, int) and code > 0 else None


def literal(value: str | None) -> str:
    """Returns a value as SQL.

    Text is written as hexadecimal digits: nothing in it can end the literal, whatever the server's modes and character sets.
    """
    return "NULL" if value is None else f"_utf8mb4 X'{value.encode(errors='surrogateescape').hex()}'"
