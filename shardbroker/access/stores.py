"""The stores of `shardbroker ctl` in the data directory: users, rules, bans. LMDB lets all processes read at any time.

    access/users   passwords   "username:ada" -> {hash, superuser}
                   scram       "sha256:ada" -> {salt, stored_key, server_key, iterations, is_superuser}
    access/rules   rules       "username:ada", "clientid:c1", "all" -> [rule, ...]
                   banned      "clientid:c1", "username:ada", "peerhost_net:10.0.0.0/8", ... -> {until, by, reason, at}

Workers open only the rules: a compromised worker gives no access to hashes.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import cbor2
import lmdb

from shardbroker.access.rules import Rule, RuleError, network_of, pattern_of, rule_of

__all__ = ["BAN_KINDS", "Ban", "RuleStore", "ScramUser", "StoreError", "User", "UserStore", "key_of"]

MAP_BYTES = 1 << 30
"""Size limit of each of the two environments; address space, not memory."""
KEY_MAX = 511
"""Size limit of an LMDB key, bytes. A longer name is stored under its digest, and the name is compared."""
RULES_MAX = 100
"""Rules per client, per user or for all, as in EMQX."""
ENTRIES_LISTED = 10_000
"""Limit of one listing."""

BanKind = Literal["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"]
BAN_KINDS: tuple[BanKind, ...] = ("clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net")
"""The kinds of bans, as in EMQX."""
SCANNED_KINDS = ("clientid_re", "username_re", "peerhost_net")
"""Bans that cannot be looked up by key: workers hold them in memory."""


class StoreError(Exception):
    """A store that cannot be opened or is full, or an invalid value."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of `auth.chain = ["builtin"]`."""

    name: str
    hash: str
    is_superuser: bool = False
    salt: str = ""


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user of `auth.chain = ["scram"]`: the fields that RFC 5802 stores in place of the password."""

    name: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    is_superuser: bool = False


@dataclass(frozen=True, slots=True)
class Ban:
    """A ban of clients. `until` in Unix seconds; None: permanent."""

    kind: BanKind
    value: str
    until: float | None = None
    by: str = ""
    reason: str = ""
    at: float = 0.0

    def expired(self, now: float) -> bool:
        return self.until is not None and self.until <= now


class _Store:
    """An LMDB environment with named tables of CBOR values."""

    tables: tuple[str, ...] = ()

    def __init__(self, directory: Path) -> None:
        self._env = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._env = lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=len(self.tables), mode=0o600, max_readers=2048)
            self._env.reader_check()       # reader slots of processes that were killed
            self._tables = {name: self._env.open_db(name.encode()) for name in self.tables}
        except (lmdb.Error, OSError) as error:
            raise StoreError(f"{directory}: {error}") from None

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    @contextmanager
    def _transaction(self, table: str, write: bool = False) -> Iterator[Any]:
        assert self._env is not None, "closed"
        try:
            with self._env.begin(self._tables[table], write=write) as transaction:
                yield transaction
        except lmdb.MapFullError:
            raise StoreError(f"full: {MAP_BYTES} bytes are allowed") from None
        except lmdb.Error as error:
            raise StoreError(str(error)) from None

    def _get(self, table: str, key: bytes) -> Any:
        with self._transaction(table) as transaction:
            found = transaction.get(key)
        return None if found is None else cbor2.loads(found)

    def _put(self, table: str, key: bytes, value: Any) -> None:
        with self._transaction(table, write=True) as transaction:
            transaction.put(key, cbor2.dumps(value))

    def _delete(self, table: str, key: bytes) -> bool:
        with self._transaction(table, write=True) as transaction:
            return bool(transaction.delete(key))

    def _all(self, table: str, limit: int = ENTRIES_LISTED) -> Iterator[Any]:
        with self._transaction(table) as transaction:
            for number, (_, value) in enumerate(transaction.cursor()):
                if number >= limit:
                    return
                yield cbor2.loads(value)

    def _count(self, table: str) -> int:
        with self._transaction(table) as transaction:
            return int(transaction.stat(self._tables[table])["entries"])


def key_of(kind: str, name: str) -> bytes:
    """Returns the key of a name, or its digest if the key is too long."""
    key = f"{kind}:{name}".encode()
    return key if len(key) <= KEY_MAX else f"{kind}#".encode() + hashlib.sha256(key).digest()


class UserStore(_Store):
    """The users, with the hashes of their passwords."""

    tables = ("passwords", "scram")

    def get(self, kind: str, name: str) -> User | None:
        """Returns a user, or None. kind: username or clientid."""
        found = self._get("passwords", key_of(kind, name))
        return None if found is None else User(name, found["hash"], found["superuser"], found.get("salt", ""))

    def put(self, kind: str, user: User) -> None:
        self._put(
            "passwords",
            key_of(kind, user.name),
            {"kind": kind, "name": user.name, "hash": user.hash, "superuser": user.is_superuser, "salt": user.salt},
        )

    def delete(self, kind: str, name: str) -> bool:
        return self._delete("passwords", key_of(kind, name))

    def all(self, kind: str) -> list[User]:
        found = (one for one in self._all("passwords") if one["kind"] == kind)
        return [User(one["name"], one["hash"], one["superuser"], one.get("salt", "")) for one in found]

    def scram(self, algorithm: str, name: str) -> ScramUser | None:
        found = self._get("scram", key_of(algorithm, name))
        return None if found is None else ScramUser(**found)

    def put_scram(self, algorithm: str, user: ScramUser) -> None:
        self._put("scram", key_of(algorithm, user.name), asdict(user))

    def delete_scram(self, algorithm: str, name: str) -> bool:
        return self._delete("scram", key_of(algorithm, name))

    def all_scram(self) -> list[ScramUser]:
        return [ScramUser(**one) for one in self._all("scram")]


class RuleStore(_Store):
    """Rules per client id, per user and for all, and bans."""

    tables = ("rules", "banned")

    def rules(self, client_id: str, username: str | None) -> list[Rule]:
        """Returns the rules that may apply to a client: of its id, of its user name, of all, in this order."""
        rules = []
        for key in (
            key_of("clientid", client_id),
            None if username is None else key_of("username", username),
            b"all",
        ):
            found = None if key is None else self._get("rules", key)
            for one in found["rules"] if found else ():
                rules.append(rule_of(one))
        return rules

    def listed(self) -> list[tuple[str, str, list[dict[str, Any]]]]:
        """Returns (kind, name, rules as tables) of all entries."""
        return [(one["kind"], one["name"], one["rules"]) for one in self._all("rules")]

    def put_rules(self, kind: str, name: str, rules: list[Mapping[str, Any]]) -> None:
        """Replaces the rules of an entry. Raises RuleError, StoreError."""
        if len(rules) > RULES_MAX:
            raise StoreError(f"rules: must be at most {RULES_MAX} for one {kind}, got {len(rules)}")
        plain = [json.loads(json.dumps(dict(rule))) for rule in rules]
        for one in plain:
            rule_of(one)
        self._put("rules", b"all" if kind == "all" else key_of(kind, name), {"kind": kind, "name": name, "rules": plain})

    def get_rules(self, kind: str, name: str) -> list[dict[str, Any]]:
        found = self._get("rules", b"all" if kind == "all" else key_of(kind, name))
        return list(found["rules"]) if found else []

    def delete_rules(self, kind: str, name: str) -> bool:
        return self._delete("rules", b"all" if kind == "all" else key_of(kind, name))

    def ban_many(self, bans: list[Ban]) -> None:
        """Adds all bans or none. Raises StoreError for a value that does not fit its kind."""
        try:
            for ban in bans:
                if ban.kind == "peerhost_net":
                    network_of(ban.value)
                elif ban.kind.endswith("_re"):
                    pattern_of(ban.value)
        except RuleError as error:
            raise StoreError(str(error)) from None
        with self._transaction("banned", write=True) as transaction:
            for ban in bans:
                transaction.put(key_of(ban.kind, ban.value), cbor2.dumps(asdict(ban)))

    def unban(self, kind: str, value: str) -> bool:
        return self._delete("banned", key_of(kind, value))

    def banned(self, kind: str, value: str) -> Ban | None:
        found = self._get("banned", key_of(kind, value))
        return None if found is None else Ban(**found)

    def bans(self, limit: int = ENTRIES_LISTED) -> list[Ban]:
        return [Ban(**one) for one in self._all("banned", limit)]

    def ban_count(self) -> int:
        return self._count("banned")

    def scanned_bans(self) -> list[Ban]:
        """Returns the bans that cannot be looked up by key."""
        found = []
        with self._transaction("banned") as transaction:
            cursor = transaction.cursor()
            for kind in SCANNED_KINDS:
                prefix = kind.encode()
                if not cursor.set_range(prefix):
                    continue
                for key, value in cursor:
                    if not key.startswith(prefix):
                        break
                    found.append(Ban(**cbor2.loads(value)))
        return found

    def purge_bans(self, now: float | None = None) -> int:
        """Removes expired bans; returns their number."""
        now = time.time() if now is None else now
        gone = [ban for ban in self.bans(MAP_BYTES) if ban.expired(now)]
        for ban in gone:
            self.unban(ban.kind, ban.value)
        return len(gone)
