"""Users and rules in PostgreSQL. Placeholders are bound as parameters of a prepared statement."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from shardbroker.access.placeholders import Template
from shardbroker.integrations.connecting import address_of, tls_of
from shardbroker.integrations.stored import Record, Values

__all__ = ["Postgresql"]


class Postgresql:
    """One query over a pool of connections that are opened when they are needed."""

    def __init__(self, section: Any, name: str) -> None:
        self._section = section
        self._address = address_of(section, name)
        self._query, self._names = Template.parse(section.query).bind(lambda number: f"${number}::text")
        self._pool: Any = None

    async def find(self, values: Values) -> Record | None:
        rows = await self._rows(values)
        return Record.of(rows[0]) if rows else None

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        return await self._rows(values)

    async def _rows(self, values: Values) -> list[dict[str, Any]]:
        arguments = [values[name] for name in self._names]
        async with asyncio.timeout(self._section.timeout):
            if self._pool is None:
                self._pool = asyncpg.create_pool(
                    host=self._address[0],
                    port=self._address[1],
                    user=self._section.username,
                    password=self._section.password or None,
                    database=self._section.database,
                    ssl=tls_of(self._section) or False,
                    min_size=0,
                    max_size=self._section.pool_size,
                    timeout=self._section.timeout,
                    command_timeout=self._section.timeout,
                )
            if not self._pool._initialized:
                await self._pool
            return [dict(row) for row in await self._pool.fetch(self._query, *arguments)]

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
