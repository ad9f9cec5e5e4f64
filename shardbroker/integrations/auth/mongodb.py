"""Users, rules and subscriptions in MongoDB. Values are compared as text: a client cannot inject an operator into a filter."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardbroker.access.hashing import Scheme
from shardbroker.access.placeholders import Template
from shardbroker.config.access import MongodbAcl, MongodbAuth
from shardbroker.config.auto_subscribe import MongodbSubscriptions
from shardbroker.connectors.mongodb import Mongodb
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Record, StoredPasswords, StoredRules, Values

__all__ = ["authenticator", "authorizer", "subscriptions"]

DOCUMENTS_MAX = 1000
"""Limit of the documents with rules or subscriptions that are read per client."""


def authenticator(settings: MongodbAuth, services: Services) -> StoredPasswords:
    return StoredPasswords(_Users(settings, "auth.mongodb"), Scheme.of(settings), services.threads)


def authorizer(settings: MongodbAcl, services: Services) -> StoredRules:
    return StoredRules(_Documents(settings, "acl.mongodb"))


def subscriptions(settings: MongodbSubscriptions, services: Services) -> "_Documents":
    return _Documents(settings, "auto_subscribe.mongodb")


class _Filter:
    """One filter on one collection."""

    def __init__(self, settings: MongodbAuth | MongodbAcl | MongodbSubscriptions, key: str) -> None:
        self._filter = {field: Template.parse(text) for field, text in settings.filter.items()}
        self._connector = Mongodb(settings, key)
        self._collection = self._connector.database[settings.collection]
        self.close = self._connector.close

    def _wanted(self, values: Values) -> dict[str, str] | None:
        wanted = {field: template.fill(values) for field, template in self._filter.items()}
        return None if None in wanted.values() else {field: text for field, text in wanted.items() if text is not None}


class _Users(_Filter):
    def __init__(self, settings: MongodbAuth, key: str) -> None:
        super().__init__(settings, key)
        self._columns = {
            "password_hash": settings.password_hash_field,
            "salt": settings.salt_field,
            "is_superuser": settings.is_superuser_field,
        }

    async def find(self, values: Values) -> Record | None:
        wanted = self._wanted(values)
        if wanted is None:
            return None
        async with self._connector.connection():
            found = await self._collection.find_one(wanted)
        return None if found is None else Record.of({column: found.get(field) for column, field in self._columns.items()})


class _Documents(_Filter):
    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        wanted = self._wanted(values)
        if wanted is None:
            return []
        async with self._connector.connection():
            return await self._collection.find(wanted, {"_id": False}, limit=DOCUMENTS_MAX).to_list(DOCUMENTS_MAX)
