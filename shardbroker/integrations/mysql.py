"""Users and rules in MySQL or MariaDB.

No asyncio driver of these knows prepared statements on both, so values travel as hexadecimal literals (`_utf8mb4 X'...'`): nothing
in them can end a literal, whatever the server's modes and character sets are.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiomysql

from shardbroker.access.placeholders import Template
from shardbroker.integrations.connecting import address_of, tls_of
from shardbroker.integrations.stored import Record, Values

__all__ = ["Mysql"]


class Mysql:
    """One query over a pool of connections that are opened when they are needed."""

    def __init__(self, section: Any, name: str) -> None:
        self._section = section
        self._address = address_of(section, name)
        self._query, self._names = Template.parse(section.query).bind(_marker)
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def find(self, values: Values) -> Record | None:
        rows = await self._rows(values)
        return Record.of(rows[0]) if rows else None

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        return await self._rows(values)

    async def _rows(self, values: Values) -> list[dict[str, Any]]:
        query = self._query
        for number, name in enumerate(self._names, 1):
            query = query.replace(_marker(number), _literal(values[name]))
        async with asyncio.timeout(self._section.timeout):
            async with self._opening:
                if self._pool is None:
                    self._pool = await self._open()
            async with self._pool.acquire() as connection, connection.cursor(aiomysql.DictCursor) as cursor:
                await cursor.execute(query)
                return list(await cursor.fetchall())

    async def _open(self) -> Any:
        return await aiomysql.create_pool(
            host=self._address[0],
            port=self._address[1],
            user=self._section.username,
            password=self._section.password,
            db=self._section.database,
            ssl=tls_of(self._section),
            minsize=0,
            maxsize=self._section.pool_size,
            connect_timeout=self._section.timeout,
            charset="utf8mb4",
            autocommit=True,
        )

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()


def _marker(number: int) -> str:
    return f"\1{number}\1"  # no text of a configuration has these


def _literal(value: str | None) -> str:
    return "NULL" if value is None else f"_utf8mb4 X'{value.encode(errors='surrogateescape').hex()}'"
