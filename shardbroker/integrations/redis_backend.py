"""Users and rules in Redis. The command is split before placeholders are filled, so a value is always one argument."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.connection import BlockingConnectionPool, Connection, SSLConnection

from shardbroker.access.contract import BackendError, SettingError
from shardbroker.access.placeholders import Template
from shardbroker.integrations.connecting import address_of
from shardbroker.integrations.stored import Record, Values

__all__ = ["Redis"]


class Redis:
    """One command over a pool of connections. `verbs`: what the command may be."""

    def __init__(self, section: Any, name: str, verbs: Sequence[str]) -> None:
        self._section = section
        self._words = Template.parse(section.cmd).words()
        plain = [word for word in section.cmd.split() if "${" not in word]
        verb = plain[0].upper() if plain else ""
        if verb not in verbs or len(self._words) < (2 if verb == "HGETALL" else 3):
            what = "a key" if verb == "HGETALL" else "a key and fields"
            raise SettingError(f"{name}.cmd", f"{' or '.join(verbs)} with {what}", section.cmd)
        self._fields = section.cmd.split()[2:]
        host, port = address_of(section, name)
        tls: dict[str, Any] = {"ssl_ca_certs": section.tls_ca or None} if section.tls else {}
        pool = BlockingConnectionPool(
            max_connections=section.pool_size,
            timeout=section.timeout,
            connection_class=SSLConnection if section.tls else Connection,
            host=host,
            port=port,
            db=section.database,
            username=section.username or None,
            password=section.password or None,
            socket_timeout=section.timeout,
            socket_connect_timeout=section.timeout,
            decode_responses=True,
            **tls,
        )
        self._client = redis.asyncio.Redis(connection_pool=pool)

    async def find(self, values: Values) -> Record | None:
        answer = await self._ask(values)
        if answer is None:
            return None
        found = [answer] if isinstance(answer, str) else answer
        if not isinstance(found, list) or len(found) != len(self._fields):
            raise BackendError("its answer has not as many values as the command has fields")
        return Record.of(dict(zip(self._fields, found, strict=True)))

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]:
        answer = await self._ask(values)
        if answer is None:
            return []
        if not isinstance(answer, dict):
            raise BackendError("its answer is no hash of topics")
        return [_rule(topic, text) for topic, text in answer.items()]

    async def _ask(self, values: Values) -> Any:
        words = [word(values) for word in self._words]
        if any(word is None for word in words):
            return None  # this client has no value for a placeholder, so there can be no key
        async with asyncio.timeout(self._section.timeout):
            return await self._client.execute_command(*words)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        await self._client.aclose()


def _rule(topic: str, text: str) -> dict[str, Any]:
    """A topic that is allowed: `publish`, `subscribe`, `all`, or JSON with action, qos, retain."""
    rule: dict[str, Any] = {"permission": "allow", "topic": topic}
    if not text.startswith("{"):
        return rule | {"action": text}
    try:
        details = json.loads(text)
    except ValueError:
        raise BackendError("a rule is no JSON") from None
    return rule | {key: details[key] for key in ("action", "qos", "retain") if key in details}
