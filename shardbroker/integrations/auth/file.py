"""Users of a password file, and rules of a file."""

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from shardbroker.access.contract import IGNORE, Answer, AuthRequest, Client, SettingError
from shardbroker.access.files import PasswordLine, read_passwords, read_rules
from shardbroker.access.hashing import Scheme
from shardbroker.access.rules import RuleSet
from shardbroker.config.access import AclFile
from shardbroker.config.access import PasswordFile as PasswordFileSettings
from shardbroker.integrations.auth.services import Services
from shardbroker.integrations.auth.stored import Judge, Record

__all__ = ["authenticator", "authorizer"]


def authenticator(settings: PasswordFileSettings, services: Services) -> "PasswordFile":
    return PasswordFile(_path("auth.file.path", settings.path), Scheme.of(settings), services.threads)


def authorizer(settings: AclFile, services: Services) -> "FileRules":
    return FileRules(_path("acl.file.path", settings.path))


def _path(key: str, path: str) -> Path:
    if not path:
        raise SettingError(key, "a path, since a chain names file", path)
    return Path(path)


class PasswordFile:
    """The users of a password file. If the file cannot be read at a reload, the old users remain."""

    priority = 0

    def __init__(self, path: Path, scheme: Scheme, threads: Executor) -> None:
        self._path = path
        self._users: dict[str, PasswordLine] = read_passwords(path)
        self._judge = Judge(scheme, threads)

    def reload(self) -> None:
        """Reads the file again. Raises FileError."""
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


class FileRules:
    """The rules of acl.file, used here if a source before it is a back end."""

    priority = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rules = RuleSet(read_rules(path))

    def reload(self) -> None:
        """Reads the file again. Raises FileError."""
        self._rules = RuleSet(read_rules(self._path))

    async def authorize(self, client: Client, requests: Sequence[AuthRequest]) -> Sequence[bool | None]:
        mine = self._rules.for_client(client)
        return [mine.decide(request) for request in requests]

    async def close(self) -> None:
        pass
