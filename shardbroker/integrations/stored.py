"""Back ends that keep a password's hash, or rules: they look up, and the judgement is made here."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shardbroker.access.contract import IGNORE, Answer, BackendError, Client, Question, allow, deny
from shardbroker.access.files import PasswordLine, read_passwords, read_rules
from shardbroker.access.hashing import Scheme, verify, verify_nobody
from shardbroker.access.placeholders import values_of
from shardbroker.access.rules import RuleError, RuleSet, rule_of
from shardbroker.access.stores import RuleStore, UserStore

__all__ = ["BuiltinRules", "BuiltinUsers", "FileRules", "PasswordFile", "Record", "StoredPasswords", "StoredRules", "truth"]

Values = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Record:
    """What a back end has about a user."""

    password_hash: str
    salt: str = ""
    is_superuser: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Record | None":
        """From a row by column; None if it holds no hash. Raises BackendError for what cannot be a row of users."""
        stored = row.get("password_hash")
        if stored is None:
            return None
        return cls(_text(stored), _text(row.get("salt") or ""), truth(row.get("is_superuser")))


class PasswordBackend(Protocol):
    """Looks up users."""

    async def find(self, values: Values) -> Record | None: ...

    async def close(self) -> None: ...


class RuleBackend(Protocol):
    """Looks up rules of a client, as tables (see `rules.rule_of`)."""

    async def find_rules(self, values: Values) -> Sequence[Mapping[str, Any]]: ...

    async def close(self) -> None: ...


class StoredPasswords:
    """An authenticator over a back end that has hashes."""

    priority = 0

    def __init__(self, backend: PasswordBackend, scheme: Scheme, threads: Executor) -> None:
        self._backend = backend
        self._judge = Judge(scheme, threads)

    async def authenticate(self, client: Client) -> Answer:
        return await self._judge.judge(client, await self._backend.find(values_of(client)))

    async def close(self) -> None:
        await self._backend.close()


class Judge:
    """Compares a password with what is stored. An unknown user costs what a known one does."""

    def __init__(self, scheme: Scheme, threads: Executor) -> None:
        self._scheme = scheme
        self._threads = threads

    async def judge(self, client: Client, record: Record | None, another: Record | None = None) -> Answer:
        """`another`: one whose hash costs what that of this user would, if there is no such user."""
        password = client.password or b""
        if record is None:
            if another is None:
                await self._run(lambda: verify_nobody(self._scheme, password))
            else:
                await self._run(lambda: verify(self._scheme, another.password_hash, another.salt, password))
            return IGNORE
        known = await self._run(lambda: verify(self._scheme, record.password_hash, record.salt, password))
        return allow(is_superuser=record.is_superuser) if known and client.password is not None else deny()

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class BuiltinUsers:
    """Users of the broker's own store."""

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
        pass  # the store is somebody else's


class PasswordFile:
    """Users of a file; a file that cannot be read at a reload leaves those that were there."""

    priority = 0

    def __init__(self, path: Path, scheme: Scheme, threads: Executor) -> None:
        self._path = path
        self._users: dict[str, PasswordLine] = read_passwords(path)
        self._judge = Judge(scheme, threads)

    def reload(self) -> None:
        """Raises FileError."""
        self._users = read_passwords(self._path)

    async def authenticate(self, client: Client) -> Answer:
        if client.username is None:
            return IGNORE
        user = self._users.get(client.username)
        if user is None:
            another = next(iter(self._users.values()), None)
            return await self._judge.judge(client, None, None if another is None else Record(another.hash, another.salt))
        return await self._judge.judge(client, Record(user.hash, user.salt, user.is_superuser))

    async def close(self) -> None:
        pass


class StoredRules:
    """An authorizer over a back end that has rules."""

    priority = 0

    def __init__(self, backend: RuleBackend) -> None:
        self._backend = backend

    async def authorize(self, client: Client, questions: Sequence[Question]) -> Sequence[bool | None]:
        try:
            rules = RuleSet(rule_of(row) for row in await self._backend.find_rules(values_of(client)))
        except RuleError as error:
            raise BackendError(f"a rule cannot be understood: {error}") from None
        mine = rules.for_client(client)
        return [mine.decide(question) for question in questions]

    async def close(self) -> None:
        await self._backend.close()


class FileRules:
    """The rules of acl.file, where a source before it is a back end."""

    priority = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rules = RuleSet(read_rules(path))

    def reload(self) -> None:
        """Raises FileError."""
        self._rules = RuleSet(read_rules(self._path))

    async def authorize(self, client: Client, questions: Sequence[Question]) -> Sequence[bool | None]:
        mine = self._rules.for_client(client)
        return [mine.decide(question) for question in questions]

    async def close(self) -> None:
        pass


class BuiltinRules:
    """The rules of the broker's own store, where a source before it is a back end."""

    priority = 0

    def __init__(self, store: RuleStore) -> None:
        self._store = store

    async def authorize(self, client: Client, questions: Sequence[Question]) -> Sequence[bool | None]:
        mine = RuleSet(self._store.rules(client.client_id, client.username)).for_client(client)
        return [mine.decide(question) for question in questions]

    async def close(self) -> None:
        pass  # the store is somebody else's


def truth(value: object) -> bool:
    """A flag as databases have it: true, 1, "1", "true", "TRUE"; nothing and everything else is no."""
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
