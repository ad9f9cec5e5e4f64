"""Users, rules and subscriptions in Redis. Commands are split before placeholders are filled, so a value is always one argument."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardbroker.access.contract import BackendError, SettingError
from shardbroker.access.hashing import Scheme
from shardbroker.access.placeholders import Template
from shardbroker.config.access import RedisAcl, RedisAuth
from shardbroker.config.auto_subscribe import RedisSubscriptions
from shardbroker.connectors.redis import Redis
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Record, StoredPasswords, StoredRules, Values

__all__ = ["authenticator", "authorizer", "subscriptions"]


def authenticator(settings: RedisAuth, services: Services) -> StoredPasswords:
    return StoredPasswords(_Command(settings, "auth.redis", ("HGET", "HMGET")), Scheme.of(settings), services.threads)


def authorizer(settings: RedisAcl, services: Services) -> StoredRules:
    return StoredRules(_Command(settings, "acl.redis", ("HGETALL",)))


def subscriptions(settings: RedisSubscriptions, services: Services) -> "_Subscriptions":
    return _Subscriptions(settings, "auto_subscribe.redis", ("HGETALL",))


class _Command:
    """A command with placeholders. `verbs`: the allowed commands."""

    def __init__(self, settings: RedisAuth | RedisAcl | RedisSubscriptions, key: str, verbs: Sequence[str]) -> None:
        self._words = Template.parse(settings.cmd).words()
        plain = [word for word in settings.cmd.split() if "${" not in word]
        verb = plain[0].upper() if plain else ""
        if verb not in verbs or len(self._words) < (2 if verb == "HGETALL" else 3):
            what = "a key" if verb == "HGETALL" else "a key and fields"
            raise SettingError(f"{key}.cmd", f"{' or '.join(verbs)} with {what}", settings.cmd)
        self._fields = settings.cmd.split()[2:]
        self._connector = Redis(settings, key)
        self.close = self._connector.close

    async def find(self, values: Values) -> Record | None:
        answer = await self._call(values)
        if answer is None:
            return None
        found = [answer] if isinstance(answer, str) else answer
        if not isinstance(found, list) or len(found) != len(self._fields):
            raise BackendError("response must have one value for each field of the command")
        return Record.of(dict(zip(self._fields, found, strict=True)))

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        return [_rule(topic, text) for topic, text in (await self._hash(values)).items()]

    async def _hash(self, values: Values) -> Mapping[str, str]:
        answer = await self._call(values)
        if answer is None:
            return {}
        if not isinstance(answer, dict):
            raise BackendError("response is not a hash of topics")
        return answer

    async def _call(self, values: Values) -> Any:
        words = [word(values) for word in self._words]
        if any(word is None for word in words):
            return None  # without a value for a placeholder there is no key
        async with self._connector.connection() as client:
            return await client.execute_command(*words)


class _Subscriptions(_Command):
    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        return [{"topic": topic, "qos": qos} for topic, qos in (await self._hash(values)).items()]


def _rule(topic: str, text: str) -> dict[str, Any]:
    """Returns a rule that allows a topic: `publish`, `subscribe`, `all`, or JSON with action, qos, retain."""
    rule: dict[str, Any] = {"permission": "allow", "topic": topic}
    if not text.startswith("{"):
        return rule | {"action": text}
    try:
        details = json.loads(text)
    except ValueError:
        raise BackendError("rule is not JSON") from None
    return rule | {key: details[key] for key in ("action", "qos", "retain") if key in details}
