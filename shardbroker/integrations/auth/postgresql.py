"""Users, rules and subscriptions in PostgreSQL. Placeholders are bound as parameters of a prepared statement."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardbroker.access.hashing import Scheme
from shardbroker.access.placeholders import Template
from shardbroker.config.access import PostgresqlAcl, PostgresqlAuth
from shardbroker.config.auto_subscribe import PostgresqlSubscriptions
from shardbroker.connectors.postgresql import Postgresql
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Record, StoredPasswords, StoredRules, Values

__all__ = ["authenticator", "authorizer", "subscriptions"]


def authenticator(settings: PostgresqlAuth, services: Services) -> StoredPasswords:
    return StoredPasswords(_Query(settings, "auth.postgresql"), Scheme.of(settings), services.threads)


def authorizer(settings: PostgresqlAcl, services: Services) -> StoredRules:
    return StoredRules(_Query(settings, "acl.postgresql"))


def subscriptions(settings: PostgresqlSubscriptions, services: Services) -> "_Query":
    return _Query(settings, "auto_subscribe.postgresql")


class _Query:
    """A query with placeholders."""

    def __init__(self, settings: PostgresqlAuth | PostgresqlAcl | PostgresqlSubscriptions, key: str) -> None:
        self._connector = Postgresql(settings, key)
        self._query, self._names = Template.parse(settings.query).bind(lambda number: f"${number}::text")
        self.close = self._connector.close

    async def find(self, values: Values) -> Record | None:
        rows = await self.find_rules(values)
        return Record.of(rows[0]) if rows else None

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        arguments = [values[name] for name in self._names]
        async with self._connector.connection() as connection:
            return [dict(row) for row in await connection.fetch(self._query, *arguments)]
