"""The broker's own users and rules."""

from collections.abc import Sequence
from concurrent.futures import Executor

from shardbroker.access.contract import IGNORE, Answer, AuthRequest, Client
from shardbroker.access.hashing import Scheme
from shardbroker.access.rules import RuleSet
from shardbroker.access.stores import RuleStore, UserStore
from shardbroker.config.access import Builtin
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Judge, Record

__all__ = ["authenticator", "authorizer"]


def authenticator(settings: Builtin, services: Services) -> "BuiltinUsers":
    return BuiltinUsers(services.stores.users(), settings.user_id_type, services.threads)


def authorizer(settings: None, services: Services) -> "BuiltinRules":
    return BuiltinRules(services.stores.rules())


class BuiltinUsers:
    """An authenticator over the broker's own store of users."""

    priority = 0

    def __init__(self, store: UserStore, user_id_type: str, threads: Executor) -> None:
        self._store = store
        self._kind = user_id_type
        self._judge = Judge(Scheme(), threads)

    async def authenticate(self, client: Client) -> Answer:
        name = client.username if self._kind == "username" else client.client_id
        if name is None:
            return IGNORE
        user = self._store.get(self._kind, name)
        record = None if user is None else Record(user.hash, user.salt, user.is_superuser)
        return await self._judge.judge(client, record)

    async def close(self) -> None:
        pass  # the process closes the store


class BuiltinRules:
    """The rules of the broker's own store, used here if a source before it is a back end."""

    priority = 0

    def __init__(self, store: RuleStore) -> None:
        self._store = store

    async def authorize(self, client: Client, requests: Sequence[AuthRequest]) -> Sequence[bool | None]:
        mine = RuleSet(self._store.rules(client.client_id, client.username)).for_client(client)
        return [mine.decide(request) for request in requests]

    async def close(self) -> None:
        pass  # the process closes the store
