"""Users and rules in MongoDB. Values are compared as text: a client cannot put an operator into a filter."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import AsyncMongoClient

from shardbroker.access.placeholders import Template
from shardbroker.integrations.connecting import address_of
from shardbroker.integrations.stored import Record, Values

__all__ = ["Mongodb"]

RULES_MAX = 1000
"""Documents with rules that are read of one client."""


class Mongodb:
    """One filter on one collection."""

    def __init__(self, section: Any, name: str) -> None:
        self._section = section
        host, port = address_of(section, name)
        self._filter = {field: Template.parse(text) for field, text in section.filter.items()}
        options: dict[str, Any] = {}
        if section.username:
            options |= {"username": section.username, "password": section.password}
        if section.tls:
            options |= {"tls": True} | ({"tlsCAFile": section.tls_ca} if section.tls_ca else {})
        milliseconds = max(1, int(section.timeout * 1000))
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            host,
            port,
            maxPoolSize=section.pool_size,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,
            socketTimeoutMS=milliseconds,
            **options,
        )
        self._collection = self._client[section.database][section.collection]

    async def find(self, values: Values) -> Record | None:
        wanted = self._wanted(values)
        if wanted is None:
            return None
        async with asyncio.timeout(self._section.timeout):
            found = await self._collection.find_one(wanted)
        if found is None:
            return None
        return Record.of(
            {
                "password_hash": found.get(self._section.password_hash_field),
                "salt": found.get(self._section.salt_field),
                "is_superuser": found.get(self._section.is_superuser_field),
            }
        )

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        wanted = self._wanted(values)
        if wanted is None:
            return []
        async with asyncio.timeout(self._section.timeout):
            return await self._collection.find(wanted, {"_id": False}, limit=RULES_MAX).to_list(RULES_MAX)

    def _wanted(self, values: Values) -> dict[str, str] | None:
        wanted = {field: template.fill(values) for field, template in self._filter.items()}
        return None if None in wanted.values() else {field: text for field, text in wanted.items() if text is not None}

    async def close(self) -> None:
        await self._client.close()
