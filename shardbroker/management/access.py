"""Administration of users, rules and bans, for `shardbroker ctl users|acl|banned` and for the manager.

Every change is one LMDB transaction in the data directory, followed by a notification of the running broker. That needs no socket:
the generation in the shared counters increases, and workers and integrations check it within some ten milliseconds
(`Counters.access_changed`).
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from shardbroker.access.auth_client import file_rules, publish_rules, rules_dir, users_dir
from shardbroker.access.contract import AuthRequest, Client
from shardbroker.access.files import FileError
from shardbroker.access.hashing import hash_password
from shardbroker.access.rows import value_of
from shardbroker.access.rules import RuleError, RuleSet
from shardbroker.access.scram import scram_user
from shardbroker.access.stores import AccessStore, Ban, RuleStore, StoreError, User, UserStore
from shardbroker.access.tables import BAN_KINDS, NAME_MAX, RULE_KINDS, USER_KINDS
from shm.counters import Counters
from shm.runtime import find_runtime_dir
from shm.topology import COUNTERS

__all__ = ["AccessAdmin", "AccessError"]


class AccessError(Exception):
    """The request cannot be carried out: the text has the reason, and what is allowed."""


class AccessAdmin:
    """Opens the stores of one data directory. `counters`: of the running broker, if this is one of its processes."""

    def __init__(self, settings: Any, data_dir: Path, counters: Counters | None = None) -> None:
        self._settings = settings
        self._data_dir = data_dir.resolve()
        self._counters = counters
        self._users: UserStore | None = None
        self._rules: RuleStore | None = None

    def close(self) -> None:
        for store in (self._users, self._rules):
            if store is not None:
                store.close()

    def __enter__(self) -> "AccessAdmin":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- users ------------------------------------------------------------------------------------------------------------------

    def users(self, kind: str = "username") -> list[dict[str, Any]]:
        """Returns names and flags; hashes are never returned."""
        _one_of("kind", kind, USER_KINDS)
        return [{"name": user.name, "superuser": user.is_superuser} for user in self._user_store.all(kind)]

    def scram_users(self) -> list[dict[str, Any]]:
        """Returns names and flags of users that authenticate by SCRAM."""
        return [
            {"name": user.name, "superuser": user.is_superuser, "iterations": user.iterations}
            for user in self._user_store.all_scram()
        ]

    def add_user(self, name: str, password: str, *, kind: str = "username", superuser: bool = False, scram: bool = False) -> None:
        """Adds a user, or replaces the password of an existing one."""
        _one_of("kind", kind, USER_KINDS)
        _name(name)
        if not password:
            raise AccessError("password: must be text that is not empty")
        with _told():
            if scram:
                section = self._settings.auth.scram
                user = scram_user(name, password, section.algorithm, section.iteration_count, superuser)
                self._user_store.put_scram(section.algorithm, user)
            else:
                self._user_store.put(kind, User(name, hash_password(password.encode()), superuser))
        self._changed()

    def add_hashed_user(self, name: str, stored: str, *, kind: str = "username", salt: str = "", superuser: bool = False) -> None:
        """Adds a user with an existing hash: argon2 or bcrypt text, which name their algorithm."""
        _one_of("kind", kind, USER_KINDS)
        _name(name)
        if not stored.startswith(("$argon2", "$2a$", "$2b$", "$2y$")):
            raise AccessError("hash: must be text that begins with $argon2, $2a$, $2b$ or $2y$")
        with _told():
            self._user_store.put(kind, User(name, stored, superuser, salt))
        self._changed()

    def delete_user(self, name: str, *, kind: str = "username", scram: bool = False) -> bool:
        """Deletes a user; returns whether the user existed. Open connections stay; `ban` ends them."""
        _one_of("kind", kind, USER_KINDS)
        store = self._user_store
        with _told():
            found = store.delete_scram(self._settings.auth.scram.algorithm, name) if scram else store.delete(kind, name)
        self._changed()
        return found

    # --- rules ------------------------------------------------------------------------------------------------------------------

    def rules(self) -> list[dict[str, Any]]:
        """Returns the rules of users, of clients and of all."""
        return [{"kind": kind, "name": name, "rules": rules} for kind, name, rules in self._rule_store.listed()]

    def set_rules(self, kind: str, name: str, rules: list[Mapping[str, Any]]) -> None:
        """Replaces the rules of a name; an empty list removes them. A rule: permission, action, topic, qos, retain."""
        _one_of("kind", kind, RULE_KINDS)
        if kind != "all":
            _name(name)
        try:
            if rules:
                self._rule_store.put_rules(kind, name, rules)
            else:
                self._rule_store.delete_rules(kind, name)
        except (RuleError, StoreError) as error:
            raise AccessError(str(error)) from None
        self._changed(rules=True)

    def add_rule(self, kind: str, name: str, rule: Mapping[str, Any]) -> None:
        """Adds a rule after the existing ones."""
        _one_of("kind", kind, RULE_KINDS)
        self.set_rules(kind, name, [*self._rule_store.get_rules(kind, name), rule])

    def test_rules(self, client: Client, request: AuthRequest) -> list[tuple[str, bool | None]]:
        """Returns the decision of each source on a request, in order: None where it has no rule. It ends with the source that
        decides, or with the first one outside of the broker. Raises AccessError."""
        said: list[tuple[str, bool | None]] = []
        for name in self._settings.acl.sources:
            try:
                if name == "file":
                    runtime_dir = find_runtime_dir(self._instance)
                    rules = (file_rules(runtime_dir) if runtime_dir is not None else None) or RuleSet()
                elif name == "builtin":
                    rules = RuleSet(self._rule_store.rules(client.client_id, client.username))
                else:
                    return [*said, (name, None)]
                answer = rules.for_client(client).decide(request)
            except (FileError, StoreError, RuleError) as error:
                raise AccessError(f"{name}: {error}") from None
            said.append((name, answer))
            if answer is not None:
                break
        return said

    # --- bans -------------------------------------------------------------------------------------------------------------------

    def bans(self) -> list[Ban]:
        """Returns the bans in force."""
        now = time.time()
        return [ban for ban in self._rule_store.bans() if not ban.expired(now)]

    def ban(self, kind: str, value: str, *, seconds: float | None = None, by: str = "", reason: str = "") -> None:
        """Adds a ban: matching clients are disconnected, and refused until it expires."""
        self.ban_many(kind, [value], seconds=seconds, by=by, reason=reason)

    def ban_many(self, kind: str, values: Iterable[str], *, seconds: float | None = None, by: str = "", reason: str = "") -> None:
        """Adds several bans like ban(), with one notification of the broker."""
        _one_of("kind", kind, BAN_KINDS)
        now = time.time()
        until = None if seconds is None else now + seconds
        with _told():
            self._rule_store.purge_bans(now)
            self._rule_store.ban_many([Ban(kind, value, until, by, reason, now) for value in values])  # type: ignore[arg-type]
        self._changed()

    def unban(self, kind: str, value: str) -> bool:
        """Removes a ban; returns whether it existed."""
        _one_of("kind", kind, BAN_KINDS)
        with _told():
            found = self._rule_store.unban(kind, value)
        self._changed()
        return found

    # --- whole entries ----------------------------------------------------------------------------------------------------------

    def entries(self, table: str, after: bytes, most: int, most_bytes: int) -> list[tuple[bytes, bytes]]:
        """Returns keys and values of a table behind a key, with hashes: as nodes send them to each other."""
        with _told():
            found = self._store_of(table).page(table, after, most, most_bytes)
            return [(key, value_of(table, key, stored)) for key, stored in found]

    def put_entries(self, table: str, entries: list[tuple[bytes, bytes]]) -> None:
        """Stores keys and values of stored_entry() in place of those with the same keys: all, or none."""
        with _told():
            self._store_of(table).put_many(table, entries)
        self._changed(rules=True)

    def _store_of(self, table: str) -> AccessStore:
        return self._user_store if table in UserStore.tables else self._rule_store

    # --- reload -----------------------------------------------------------------------------------------------------------------

    def reload(self) -> bool:
        """Reads the files of rules and passwords again; returns whether a running broker was notified. Raises AccessError for a bad
        file."""
        runtime_dir = find_runtime_dir(self._instance)
        if runtime_dir is not None:
            try:
                publish_rules(self._settings, runtime_dir)
            except FileError as error:
                raise AccessError(str(error)) from None
        return self._changed(rules=True)

    def _changed(self, rules: bool = False) -> bool:
        counters = self._counters
        if counters is None:
            runtime_dir = find_runtime_dir(self._instance)
            if runtime_dir is None:
                return False  # no broker runs there
            try:
                counters = Counters.attach(str(runtime_dir / COUNTERS))
            except (OSError, ValueError):
                return False
        counters.access_changed(rules)
        return True

    @property
    def _instance(self) -> str:
        return sha256(str(self._data_dir).encode()).hexdigest()[:12]

    @property
    def _user_store(self) -> UserStore:
        if self._users is None:
            with _told():
                self._users = UserStore(users_dir(self._data_dir))
        return self._users

    @property
    def _rule_store(self) -> RuleStore:
        if self._rules is None:
            with _told():
                self._rules = RuleStore(rules_dir(self._data_dir))
        return self._rules


@contextmanager
def _told() -> Iterator[None]:
    """Converts errors of a store to AccessError."""
    try:
        yield
    except StoreError as error:
        raise AccessError(str(error)) from None


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise AccessError(f"{what}: must be one of {', '.join(allowed)}, got {value!r}")


def _name(name: str) -> None:
    if not name or len(name.encode(errors="surrogateescape")) > NAME_MAX or "\0" in name:
        raise AccessError(f"name: must be text of 1 to {NAME_MAX} bytes without NUL")
