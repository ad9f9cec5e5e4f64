"""From settings to back ends. Libraries are loaded for those that are used alone; what is missing is said by name."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from importlib import import_module
from pathlib import Path
from typing import Any

from shardbroker.access.contract import Authenticator, Authorizer, BackendError, SettingError
from shardbroker.access.files import FileError
from shardbroker.access.hashing import Scheme
from shardbroker.access.placeholders import PlaceholderError
from shardbroker.access.stores import RuleStore, StoreError, UserStore
from shardbroker.config.access import AUTHENTICATORS as KNOWN_AUTHENTICATORS
from shardbroker.config.access import SOURCES as KNOWN_SOURCES
from shardbroker.integrations import modules
from shardbroker.integrations.certificate import Certificates
from shardbroker.integrations.stored import (
    BuiltinRules,
    BuiltinUsers,
    FileRules,
    Judge,
    PasswordFile,
    StoredPasswords,
    StoredRules,
)  # fmt: skip

__all__ = ["build_authenticators", "build_sources"]

EXTRAS = {
    "argon2": "auth", "bcrypt": "auth", "aiohttp": "auth", "jwt": "auth", "asyncpg": "postgresql", "aiomysql": "mysql",
    "redis": "redis", "pymongo": "mongodb", "bonsai": "ldap",
}  # fmt: skip
"""Library -> extra of the package that installs it."""


def build_authenticators(
    settings: Any, names: Sequence[str], users: UserStore | None, threads: Executor
) -> tuple[dict[str, Authenticator], dict[str, Authenticator]]:
    """(all that chains name, those of them that are modules). Raises BackendError."""
    auth = settings.auth
    installed = modules.load_modules(modules.AUTHENTICATORS, names, KNOWN_AUTHENTICATORS, auth.module_settings)

    def stored(backend: Any, section: Any) -> StoredPasswords:
        return StoredPasswords(backend, Scheme.of(section), threads)

    makers: dict[str, Callable[[], Authenticator]] = {
        "builtin": lambda: BuiltinUsers(_given(users), auth.builtin.user_id_type, threads),
        "file": lambda: PasswordFile(_file("auth.file.path", auth.file.path), Scheme.of(auth.file), threads),
        "http": lambda: _library("http").HttpAuthenticator(_library("http").HttpService(auth.http, "auth.http")),
        "jwt": lambda: _library("tokens").Tokens(auth.jwt),
        "redis": lambda: stored(_library("redis_backend").Redis(auth.redis, "auth.redis", ("HGET", "HMGET")), auth.redis),
        "postgresql": lambda: stored(_library("postgresql").Postgresql(auth.postgresql, "auth.postgresql"), auth.postgresql),
        "mysql": lambda: stored(_library("mysql").Mysql(auth.mysql, "auth.mysql"), auth.mysql),
        "mongodb": lambda: stored(_library("mongodb").Mongodb(auth.mongodb, "auth.mongodb"), auth.mongodb),
        "ldap": lambda: _library("ldap").Ldap(auth.ldap, "auth.ldap", Judge(Scheme.of(auth.ldap), threads)),
        "certificate": lambda: Certificates(auth.certificate.identity),
    }
    return {name: _made(name, makers[name]) for name in names if name in makers} | installed, installed


def build_sources(settings: Any, names: Sequence[str], rules: Callable[[], RuleStore]) -> list[tuple[str, Authorizer]]:
    """Those of acl.sources that workers do not evaluate, in order, modules included. Raises BackendError."""
    acl = settings.acl
    installed = modules.load_modules(modules.AUTHORIZERS, names, KNOWN_SOURCES, acl.module_settings)
    makers: dict[str, Callable[[], Authorizer]] = {
        "file": lambda: FileRules(_file("acl.file.path", acl.file.path)),
        "builtin": lambda: BuiltinRules(rules()),
        "http": lambda: _library("http").HttpAuthorizer(_library("http").HttpService(acl.http, "acl.http")),
        "redis": lambda: StoredRules(_library("redis_backend").Redis(acl.redis, "acl.redis", ("HGETALL",))),
        "postgresql": lambda: StoredRules(_library("postgresql").Postgresql(acl.postgresql, "acl.postgresql")),
        "mysql": lambda: StoredRules(_library("mysql").Mysql(acl.mysql, "acl.mysql")),
        "mongodb": lambda: StoredRules(_library("mongodb").Mongodb(acl.mongodb, "acl.mongodb")),
    }
    return [
        (name, installed[name] if name in installed else _made(name, makers[name])) for name in modules.expand(names, installed)
    ]


def _given(users: UserStore | None) -> UserStore:
    assert users is not None, "a chain names builtin, so there is a store"
    return users


def _file(key: str, path: str) -> Path:
    if not path:
        raise SettingError(key, "a path, since a chain names file", path)
    return Path(path)


def _made(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        extra = f"; pip install shardbroker[{EXTRAS[library]}]" if library in EXTRAS else ""
        raise BackendError(f"{name} needs the library {library or error}{extra}") from None
    except (FileError, StoreError, PlaceholderError) as error:
        raise BackendError(f"{name}: {error}") from None
    except BackendError:
        raise
    except Exception as error:  # of a library: no setting may end the process
        raise BackendError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


def _library(name: str) -> Any:
    """A module of this package that loads somebody else's library."""
    return import_module(f"shardbroker.integrations.{name}")
