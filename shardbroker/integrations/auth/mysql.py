"""Users, rules and subscriptions in MySQL or MariaDB. Placeholders become literals that no value can leave."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardbroker.access.hashing import Scheme
from shardbroker.access.placeholders import Template
from shardbroker.config.access import MysqlAcl, MysqlAuth
from shardbroker.config.auto_subscribe import MysqlSubscriptions
from shardbroker.connectors.mysql import Mysql, literal
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Record, StoredPasswords, StoredRules, Values

__all__ = ["authenticator", "authorizer", "subscriptions"]


def authenticator(settings: MysqlAuth, services: Services) -> StoredPasswords:
    return StoredPasswords(_Query(settings, "auth.mysql"), Scheme.of(settings), services.threads)


def authorizer(settings: MysqlAcl, services: Services) -> StoredRules:
    return StoredRules(_Query(settings, "acl.mysql"))


def subscriptions(settings: MysqlSubscriptions, services: Services) -> "_Query":
    return _Query(settings, "auto_subscribe.mysql")


class _Query:
    """A query with placeholders."""

    def __init__(self, settings: MysqlAuth | MysqlAcl | MysqlSubscriptions, key: str) -> None:
        self._connector = Mysql(settings, key)
        self._query, self._names = Template.parse(settings.query).bind(_marker)
        self.close = self._connector.close

    async def find(self, values: Values) -> Record | None:
        rows = await self.find_rules(values)
        return Record.of(rows[0]) if rows else None

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        query = self._query
        for number, name in enumerate(self._names, 1):
            query = query.replace(_marker(number), literal(values[name]))
        async with self._connector.connection() as connection, connection.cursor() as cursor:
            await cursor.execute(query)
            return list(await cursor.fetchall())


def _marker(number: int) -> str:
    return f"\1{number}\1"  # characters that no configuration contains
