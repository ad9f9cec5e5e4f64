"""Authenticators and authorizers over back ends that only look up password hashes or rules: the decision is made here."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from shardbroker.access.contract import IGNORE, Answer, AuthRequest, BackendError, Client, allow, deny
from shardbroker.access.hashing import Scheme, is_quick, verify, verify_unknown_user
from shardbroker.access.placeholders import values_of
from shardbroker.access.rules import RuleError, RuleSet, rule_of

__all__ = ["Judge", "Record", "StoredPasswords", "StoredRules", "Values", "truth"]

Values = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a user in a back end."""

    password_hash: str
    salt: str = ""
    is_superuser: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Record | None":
        """Returns the record in a row by column; None if it has no hash. Raises BackendError for an invalid row."""
        stored = row.get("password_hash")
        if stored is None:
            return None
        return cls(_text(stored), _text(row.get("salt") or ""), truth(row.get("is_superuser")))


class PasswordBackend(Protocol):
    """A back end that looks up users."""

    async def find(self, values: Values) -> Record | None: ...

    async def close(self) -> None: ...


class RuleBackend(Protocol):
    """A back end that looks up a client's rules, as tables (see `rules.rule_of`)."""

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]: ...

    async def close(self) -> None: ...


class StoredPasswords:
    """An authenticator over a back end with hashes."""

    priority = 0

    def __init__(self, backend: PasswordBackend, scheme: Scheme, threads: Executor) -> None:
        self._backend = backend
        self._judge = Judge(scheme, threads)
        self.close = backend.close

    async def authenticate(self, client: Client) -> Answer:
        return await self._judge.judge(client, await self._backend.find(values_of(client)))


class Judge:
    """Compares a password with a stored hash. An unknown user takes as long as a known one."""

    def __init__(self, scheme: Scheme, threads: Executor) -> None:
        self._scheme = scheme
        self._threads = threads

    async def judge(self, client: Client, record: Record | None, another: Record | None = None) -> Answer:
        """Returns the answer for a client. `another`: a record whose hash costs as much, for a user without a record."""
        password = client.password or b""
        if record is None:
            if another is None:
                await self._run(partial(verify_unknown_user, self._scheme, password), is_quick(self._scheme, "", "", password))
            else:
                await self._verify(another, password)
            return IGNORE
        known = await self._verify(record, password)
        return allow(is_superuser=record.is_superuser) if known and client.password is not None else deny()

    async def _verify(self, record: Record, password: bytes) -> bool:
        compared = self._scheme, record.password_hash, record.salt, password
        return bool(await self._run(partial(verify, *compared), is_quick(*compared)))

    async def _run(self, work: Callable[[], Any], here: bool) -> Any:
        """here: without a thread, on the event loop."""
        return work() if here else await asyncio.get_running_loop().run_in_executor(self._threads, work)


class StoredRules:
    """An authorizer over a back end with rules."""

    priority = 0

    def __init__(self, backend: RuleBackend) -> None:
        self._backend = backend
        self.close = backend.close

    async def authorize(self, client: Client, requests: Sequence[AuthRequest]) -> Sequence[bool | None]:
        try:
            rules = RuleSet(rule_of(row) for row in await self._backend.find_rules(values_of(client)))
        except RuleError as error:
            raise BackendError(f"rule is not valid: {error}") from None
        mine = rules.for_client(client)
        return [mine.decide(request) for request in requests]


def truth(value: object) -> bool:
    """Returns a flag as databases represent it: true, 1, "1", "true", "TRUE"; all else is False."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value is True or value == 1 or (isinstance(value, str) and value.lower() in ("1", "true", "t"))


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BackendError("a stored hash or salt is not text") from None
    if not isinstance(value, str):
        raise BackendError(f"a stored hash or salt is a {type(value).__name__}")
    return value
