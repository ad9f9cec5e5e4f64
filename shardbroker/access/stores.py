"""The stores of `shardbroker ctl` in the data directory: users, rules, bans. LMDB lets all processes read at any time.

    access/users   passwords   "username:ada" -> {hash, superuser}
                   scram       "sha256:ada" -> {salt, stored_key, server_key, iterations, is_superuser}
    access/rules   rules       "username:ada", "clientid:c1", "all" -> [rule, ...]
                   banned      "clientid:c1", "username:ada", "peerhost_net:10.0.0.0/8", ... -> {until, by, reason, at}

Workers open only the rules: a compromised worker gives no access to hashes.

Each change is stamped (stores/retained_stamps.py), in its own transaction, so that link-0 of a node in a cluster can send it and
compare: whatever writes, with a cluster or without. The id of a change is the time of its node, raised above that of the change
before it, and 8 random bytes; the greater id wins on every node. An entry whose change is not known, from a store without stamps or
a restored one, has an id below all others: that of its ban's time, or one made of its value, which is the same on all nodes.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cbor2
import lmdb

from shardbroker.access.rules import Rule, RuleError, network_of, pattern_of, rule_of
from shardbroker.access.tables import (
    BAN_KINDS,
    HASH_MAX,
    RULES_BYTES_MAX,
    RULES_MAX,
    TEXT_MAX,
    UNTIL_MAX,
    BanKind,
    key_of,
    rules_key,
)
from shardbroker.stores.retained_stamps import ID_HIGH_MAX, Change, RetainedStamps, StampWriter, TopicState, digest_of

__all__ = [
    "BAN_KINDS", "AccessStore", "Ban", "RuleStore", "ScramUser", "StoreError", "StoreFullError", "StoreWriter", "User", "UserStore",
    "key_of", "raised_id",
]  # fmt: skip

MAP_BYTES = 1 << 30
"""Size limit of each of the two environments; address space, not memory."""
ENTRIES_LISTED = 10_000
"""Limit of one listing."""

STAMP_TABLES = 5
"""Databases of the stamps."""
PURGED = 1_000
"""Expired bans removed in one transaction."""
BANS = 1
"""Number of the table of bans in its store."""
KNOWN_VALUE = 1 << 63
"""Bit in the lower half of the id of an entry whose change is not known: it is above that of the account of a first start."""
SCANNED_KINDS = ("clientid_re", "username_re", "peerhost_net")
"""Bans that cannot be looked up by key: workers hold them in memory."""


class StoreError(Exception):
    """A store that cannot be opened or is full, or an invalid value."""


class StoreFullError(StoreError):
    """The map of a store has no room."""


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


def raised_id(above: bytes | None) -> bytes:
    """Returns the id of a change of this moment, greater than that of the change before it. Raises StoreError."""
    found = min(time.time_ns() // 1_000, ID_HIGH_MAX).to_bytes(8, "big") + os.urandom(8)
    if above is None or found > above:
        return found
    number = int.from_bytes(above, "big") + 1
    if number >> 64 > ID_HIGH_MAX:
        raise StoreError("another node has given this entry the latest time there is: it can no longer be changed")
    return number.to_bytes(16, "big")


def _place(table: int, key: bytes) -> bytes:
    return bytes([table]) + key


class StoreWriter:
    """Changes of one write transaction of a store; the tables are given by their numbers."""

    def __init__(self, store: "AccessStore", txn: Any) -> None:
        self._store, self.txn = store, txn
        self.stamps = StampWriter(store.stamps, txn)

    def find(self, table: int, key: bytes) -> tuple[bytes, Change | None, bytes | None]:
        """Returns the digest of an entry, its stamp, and the id of its newest change: without a stamp, that of its value."""
        digest = digest_of(_place(table, key))
        known = self._store.stamps.find(self.txn, digest)
        if known is not None:
            return digest, known, known.id
        value: Any = self.txn.get(key, db=self._store.table(table))
        return digest, None, None if value is None else self._store.first_id(table, value)

    def put(self, table: int, key: bytes, value: bytes) -> None:
        """Stores a change of this node."""
        digest, known, above = self.find(table, key)
        change = Change(raised_id(above), TopicState.LIVE, 0, _place(table, key))
        self.txn.put(key, value, db=self._store.table(table))
        self.stamps.put(digest, known, change, is_own=True)

    def delete(self, table: int, key: bytes) -> bool:
        """Deletes an entry of this node; returns whether there was one."""
        digest, known, above = self.find(table, key)
        if not self.txn.delete(key, db=self._store.table(table)):
            return False
        change = Change(raised_id(above), TopicState.DELETED, time.time_ns() // 1_000_000, _place(table, key))
        self.stamps.put(digest, known, change, is_own=True)
        return True

    def expire(self, table: int, key: bytes, now_ms: int) -> bool:
        """Deletes an entry if its time is over; returns whether it was. That is no change: every node does it by itself."""
        value: Any = self.txn.get(key, db=self._store.table(table))
        expires_ms = None if value is None else self._store.expires_ms(table, value)
        if expires_ms is None or expires_ms > now_ms:
            return False
        digest, known, above = self.find(table, key)
        assert above is not None, "it has a value"
        self.txn.delete(key, db=self._store.table(table))
        self.stamps.put(digest, known, Change(above, TopicState.DELETED, expires_ms, _place(table, key)))
        return True

    def take(self, table: int, key: bytes, change: Change, value: bytes) -> None:
        """Stores the change of another node, which is the greater one."""
        digest, known, _ = self.find(table, key)
        if change.state == TopicState.LIVE:
            self.txn.put(key, value, db=self._store.table(table))
        else:
            self.txn.delete(key, db=self._store.table(table))
        self.stamps.put(digest, known, change)

    def close(self) -> None:
        self.stamps.close()
        self._store.stamps.note(self.txn)


class AccessStore:
    """An LMDB environment with named tables of CBOR values, and the stamps of their changes."""

    tables: tuple[str, ...] = ()

    def __init__(self, directory: Path) -> None:
        self._env: Any = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            most = len(self.tables) + STAMP_TABLES
            self._env = lmdb.open(str(directory), map_size=MAP_BYTES, max_dbs=most, mode=0o600, max_readers=2048)
            self._env.reader_check()       # reader slots of processes that were killed
            are_current = RetainedStamps.are_current(self._env)
            self._tables = {name: self._env.open_db(name.encode()) for name in self.tables}
            self.stamps = RetainedStamps(self._env)
            if not are_current:
                with self._env.begin(write=True) as txn:
                    # Another process may have done it meanwhile.
                    if not self.stamps.are_noted(txn):
                        self.stamps.reset(txn)
                        self.stamps.note(txn)
        except (lmdb.Error, OSError) as error:
            raise StoreError(f"{directory}: {error}") from None

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def table(self, number: int) -> Any:
        return self._tables[self.tables[number]]

    def first_id(self, table: int, value: bytes) -> bytes:
        """Returns the id of an entry whose change is not known."""
        low = int.from_bytes(blake2b(value, digest_size=8).digest(), "big") | KNOWN_VALUE
        return bytes(8) + low.to_bytes(8, "big")

    def expires_ms(self, table: int, value: bytes) -> int | None:
        """Returns when an entry ends by itself, Unix ms; None: never."""
        return None

    def purge(self, now_ms: int) -> None:
        """Removes what has ended by itself. Raises StoreError."""

    @contextmanager
    def writing(self) -> Iterator[StoreWriter]:
        """Opens a write transaction. Raises StoreError; then nothing has changed."""
        assert self._env is not None, "closed"
        try:
            with self._env.begin(write=True) as txn:
                writer = StoreWriter(self, txn)
                yield writer
                writer.close()
        except lmdb.MapFullError:
            raise StoreFullError(f"full: {MAP_BYTES} bytes are allowed") from None
        except lmdb.Error as error:
            raise StoreError(str(error)) from None

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Opens a read transaction. Raises StoreError."""
        assert self._env is not None, "closed"
        try:
            with self._env.begin() as txn:
                yield txn
        except lmdb.Error as error:
            raise StoreError(str(error)) from None

    def _get(self, table: str, key: bytes) -> Any:
        with self.reading() as txn:
            found = txn.get(key, db=self._tables[table])
        return None if found is None else cbor2.loads(found)

    def _put(self, table: str, key: bytes, value: Any) -> None:
        with self.writing() as writer:
            writer.put(self.tables.index(table), key, cbor2.dumps(value))

    def _delete(self, table: str, key: bytes) -> bool:
        with self.writing() as writer:
            return writer.delete(self.tables.index(table), key)

    def _all(self, table: str, limit: int = ENTRIES_LISTED) -> Iterator[Any]:
        with self.reading() as txn, txn.cursor(self._tables[table]) as cursor:
            for number, (_, value) in enumerate(cursor):
                if number >= limit:
                    return
                yield cbor2.loads(value)

    def page(self, table: str, after: bytes, most: int, most_bytes: int) -> list[tuple[bytes, bytes]]:
        """Returns the keys and stored values behind a key, at most this many; `most_bytes` ends the page. Raises StoreError."""
        found: list[tuple[bytes, bytes]] = []
        size = 0
        with self.reading() as txn, txn.cursor(self._tables[table]) as cursor:
            more = cursor.set_range(after) if after else cursor.first()
            if more and after and cursor.key() == after:
                more = cursor.next()
            while more and len(found) < most and size < most_bytes:
                found.append((bytes(cursor.key()), bytes(cursor.value())))
                size += len(found[-1][1])
                more = cursor.next()
        return found

    def put_many(self, table: str, entries: list[tuple[bytes, bytes]]) -> None:
        """Stores keys and values that have been checked, as changes of this node: all or none. Raises StoreError."""
        number = self.tables.index(table)
        with self.writing() as writer:
            for key, value in entries:
                writer.put(number, key, value)

    def _count(self, table: str) -> int:
        with self.reading() as txn:
            return int(txn.stat(self._tables[table])["entries"])


class UserStore(AccessStore):
    """The users, with the hashes of their passwords."""

    tables = ("passwords", "scram")

    def get(self, kind: str, name: str) -> User | None:
        """Returns a user, or None. kind: username or clientid."""
        found = self._get("passwords", key_of(kind, name))
        return None if found is None else User(name, found["hash"], found["superuser"], found.get("salt", ""))

    def put(self, kind: str, user: User) -> None:
        """Stores a user. Raises StoreError."""
        if len(user.hash.encode()) > HASH_MAX or len(user.salt.encode()) > HASH_MAX:
            raise StoreError(f"hash and salt: must have at most {HASH_MAX} bytes each")
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


class RuleStore(AccessStore):
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
        text = json.dumps([dict(rule) for rule in rules])
        if len(text) > RULES_BYTES_MAX:
            raise StoreError(f"rules: must have at most {RULES_BYTES_MAX} bytes for one {kind}, got {len(text)}")
        plain = json.loads(text)
        for one in plain:
            rule_of(one)
        self._put("rules", rules_key(kind, name), {"kind": kind, "name": name, "rules": plain})

    def get_rules(self, kind: str, name: str) -> list[dict[str, Any]]:
        found = self._get("rules", rules_key(kind, name))
        return list(found["rules"]) if found else []

    def delete_rules(self, kind: str, name: str) -> bool:
        return self._delete("rules", rules_key(kind, name))

    def ban_many(self, bans: list[Ban]) -> None:
        """Adds all bans or none. Raises StoreError for a value that does not fit its kind."""
        try:
            for ban in bans:
                if any(len(text.encode(errors="replace")) > TEXT_MAX for text in (ban.value, ban.by, ban.reason)):
                    raise StoreError(f"value, by and reason of a ban: must have at most {TEXT_MAX} bytes each")
                if ban.until is not None and not 0 <= ban.until <= UNTIL_MAX:
                    raise StoreError(f"end of a ban: must be Unix s of at most {UNTIL_MAX:g}, got {ban.until:g}")
                if ban.kind == "peerhost_net":
                    network_of(ban.value)
                elif ban.kind.endswith("_re"):
                    pattern_of(ban.value)
        except RuleError as error:
            raise StoreError(str(error)) from None
        with self.writing() as writer:
            for ban in bans:
                writer.put(BANS, key_of(ban.kind, ban.value), cbor2.dumps(asdict(ban)))

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
        with self.reading() as txn, txn.cursor(self._tables["banned"]) as cursor:
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
        expired = [key_of(ban.kind, ban.value) for ban in self.bans(MAP_BYTES) if ban.expired(now)]
        gone = 0
        for at in range(0, len(expired), PURGED):
            with self.writing() as writer:  # which looks again: a ban may have been replaced meanwhile
                gone += sum([writer.expire(BANS, key, int(now * 1000)) for key in expired[at : at + PURGED]])
        return gone

    def purge(self, now_ms: int) -> None:
        self.purge_bans(now_ms / 1000)

    def first_id(self, table: int, value: bytes) -> bytes:
        found = super().first_id(table, value)
        if table != BANS:
            return found
        # A later ban wins: most are from a time that is known.
        return min(max(0, int(cbor2.loads(value)["at"] * 1_000_000)), ID_HIGH_MAX).to_bytes(8, "big") + found[8:]

    def expires_ms(self, table: int, value: bytes) -> int | None:
        until = cbor2.loads(value)["until"] if table == BANS else None
        return None if until is None or until > UNTIL_MAX else int(until * 1000)
