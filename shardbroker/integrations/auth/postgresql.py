"""Users, rules and subscriptions in PostgreSQL. Placeholders are bound as parameters of a prepared statement."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardbroker.access.contract import BackendError
from shardbroker.access.hashing import Scheme
from shardbroker.access.placeholders import Template
from shardbroker.config.access import PostgresqlAcl, PostgresqlAuth
from shardbroker.config.auto_subscribe import PostgresqlSubscriptions
from shardbroker.connectors.gathering import Gathering, NotTogetherError
from shardbroker.connectors.postgresql import Postgresql, outline_of
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Record, StoredPasswords, StoredRules, Values

__all__ = ["authenticator", "authorizer", "subscriptions"]

CLIENTS = "shardbroker_clients"
"""Name of the table of parameters in a statement for several clients, and the start of all names there."""
PLACE = f"{CLIENTS}_place"
_PARAMETER = re.compile(r"\$\d")
"""A parameter in the text of a query itself, which would be an array in a statement for several clients."""

Rows = Sequence[Mapping[str, Any]]


def authenticator(settings: PostgresqlAuth, services: Services) -> StoredPasswords:
    return StoredPasswords(_Query(settings, "auth.postgresql"), Scheme.of(settings), services.threads)


def authorizer(settings: PostgresqlAcl, services: Services) -> StoredRules:
    return StoredRules(_Query(settings, "acl.postgresql"))


def subscriptions(settings: PostgresqlSubscriptions, services: Services) -> "_Query":
    return _Query(settings, "auto_subscribe.postgresql")


class _Query:
    """A query with placeholders. Clients that arrive close together are looked up by one statement, where the query allows that."""

    def __init__(self, settings: PostgresqlAuth | PostgresqlAcl | PostgresqlSubscriptions, key: str) -> None:
        connector = Postgresql(settings, key)
        template = Template.parse(settings.query)
        self._query, self._names = template.bind(lambda number: f"${number}::text")
        self._together = _together(template)
        self._is_checked = False
        self._gathering: Gathering[list[str | None], Rows] = Gathering(
            connector, self._one, self._several, connections=settings.pool_size, timeout_s=settings.timeout
        )
        self.close = connector.close

    async def find(self, values: Values) -> Record | None:
        rows = await self.find_rules(values)
        return Record.of(rows[0]) if rows else None

    async def find_rules(self, values: Values) -> Rows:
        return await self._gathering.answer([values[name] for name in self._names])

    async def _one(self, connection: Any, arguments: list[str | None]) -> Rows:
        return [dict(row) for row in await connection.fetch(self._query, *arguments)]

    async def _several(self, connection: Any, arguments: Sequence[list[str | None]]) -> Sequence[Rows]:
        if not self._is_checked:
            await self._check(connection)
        found: list[list[Mapping[str, Any]]] = [[] for _ in arguments]
        for row in await connection.fetch(self._together, *([*column] for column in zip(*arguments, strict=True))):
            columns = dict(row)
            found[columns.pop(PLACE) - 1].append(columns)
        return found

    async def _check(self, connection: Any) -> None:
        """Raises NotTogetherError unless the statement for several clients has the parameters and the columns of the query."""
        if not self._together:
            raise NotTogetherError
        one = await outline_of(connection, self._query)
        if one is None:
            raise BackendError("the server refuses the query")  # perhaps not for ever: its table may be made later
        several = await outline_of(connection, self._together)
        if several != one._replace(columns=((PLACE, "int8"), *one.columns)):
            raise NotTogetherError
        self._is_checked = True


def _together(template: Template) -> str:
    """Returns the statement that runs a query once for each element of its parameters, which are arrays, or an empty text.

    The query becomes a subquery of its own: OFFSET keeps the planner from merging it with the join, so that it is planned as it
    is for one client. The arrays are behind SELECT so that plans do not depend on their length, and are kept.
    """
    query, names = template.bind(lambda number: f"{CLIENTS}.{CLIENTS}_{number}")
    if not names or any(_PARAMETER.search(part) for part in template.parts[::2]):
        return ""
    numbers = range(1, len(names) + 1)
    arrays = ", ".join(f"(SELECT ${number}::text[])" for number in numbers)
    columns = ", ".join(f"{CLIENTS}_{number}" for number in numbers)
    return (
        f"SELECT {CLIENTS}.{PLACE}, {CLIENTS}_rows.* FROM unnest({arrays}) WITH ORDINALITY AS {CLIENTS} ({columns}, {PLACE}), "
        f"LATERAL (SELECT * FROM (\n{query.rstrip().removesuffix(';')}\n) AS {CLIENTS}_query OFFSET 0) AS {CLIENTS}_rows"
    )
