"""The accounts of the REST API: accounts of people, keys of programs, tokens of logins. One SQLite file in the data directory.

The manager changes it for `ctl` and REST. The process of the REST API looks up names, keys and tokens, and records logins; link-0
of a node in a cluster stores what other nodes have changed, and sends what this one has (account_stamps.py). All may have it open:
each change is one transaction. Passwords are stored as argon2id, which is slow to guess. Secrets of keys and tokens are 256 random
bits, which cannot be guessed, so a plain SHA-256 of them is stored: checking it at each request costs little.
"""

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any, Literal

from shardbroker.access.account_stamps import (
    ACCOUNT,
    TABLES,
    VERSION,
    fields_of,
    first_account_id,
    migrate,
    set_stamp,
    store_fields,
    trim,
)
from shardbroker.stores.retained_stamps import TopicState

__all__ = ["ACCOUNTS_FILE", "ADMINISTRATOR", "AccountError", "Accounts", "Role", "open_sqlite"]

ACCOUNTS_FILE = "accounts.sqlite3"
"""Name of the file in the data directory."""
FIRST_NAME = "admin"
"""Name of the account that the first start creates."""
ADMINISTRATOR: "Role" = "administrator"
BUSY_S = 5.0
"""Limit of the wait for a change by the other process, seconds."""
TOKENS_MAX = 1000
"""Logins of one account at a time; a further one ends the oldest."""

Role = Literal["administrator", "viewer"]

_TABLES = """
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, hash TEXT, role TEXT, description TEXT);
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY, key TEXT UNIQUE, digest BLOB, role TEXT, description TEXT,
    enable INTEGER, created_at INTEGER, expires_at INTEGER
);
CREATE TABLE IF NOT EXISTS tokens (digest BLOB PRIMARY KEY, name TEXT, expires_at REAL);
"""


class AccountError(Exception):
    """A failed operation on accounts: a code of `shardbroker.control.errors`, and the reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def open_sqlite(path: Path, tables: str) -> sqlite3.Connection:
    """Opens a database that only the user of the broker may access. Raises sqlite3.Error and OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(tables)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class Accounts:
    """The accounts of one data directory. A context manager. Every method may raise AccountError."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / ACCOUNTS_FILE
        with _account_errors(path):
            self._db = open_sqlite(path, _TABLES)
            version = self._migrated()
        self._path = path
        if version > VERSION:
            self._db.close()
            text = f"version of the file: must be at most {VERSION}, got {version}: a newer version of shardbroker has made it"
            raise AccountError("NOT_AVAILABLE", f"{path}: {text}")

    def _migrated(self) -> int:
        """Returns the version of the file; one without a version is given the present one."""
        try:
            return migrate(self._db)
        except sqlite3.Error:
            self._db.close()
            raise

    @classmethod
    def opened(cls, data_dir: Path) -> "tuple[Accounts, str]":
        """Opens the accounts; returns them and a warning.

        A damaged file is set aside, since it would make all logins impossible.
        """
        try:
            return cls(data_dir), ""
        except AccountError as error:
            if not isinstance(error.__cause__, sqlite3.DatabaseError) or isinstance(error.__cause__, sqlite3.OperationalError):
                raise
            path = data_dir / ACCOUNTS_FILE
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns() // 10**9}")
            path.rename(aside)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return cls(data_dir), f"{path}: damaged, set aside as {aside.name}: all accounts and keys of the REST API are lost"

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "Accounts":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- people -----------------------------------------------------------------------------------------------------------------

    def first(self, hash_password: Any) -> str | None:
        """Creates the first account if there is no account; returns its password, which is not stored, or None."""
        password = secrets.token_urlsafe(15)
        hashed = hash_password(password.encode())
        with self.changing() as db:
            if db.execute("SELECT 1 FROM accounts").fetchone():
                return None
            row = (FIRST_NAME, hashed, ADMINISTRATOR, "made at the first start")
            db.execute("INSERT INTO accounts VALUES (?, ?, ?, ?)", row)
            set_stamp(db, ACCOUNT, FIRST_NAME, first_account_id(), TopicState.LIVE, 0)
        return password

    def accounts(self) -> list[dict[str, Any]]:
        """Returns all accounts, without hashes."""
        with _account_errors(self._path):
            rows = self._db.execute("SELECT name, role, description FROM accounts ORDER BY name").fetchall()
        return [{"name": name, "role": role, "description": text} for name, role, text in rows]

    def account(self, name: str) -> tuple[str, Role] | None:
        """Returns hash and role of an account, or None."""
        with _account_errors(self._path):
            return self._db.execute("SELECT hash, role FROM accounts WHERE name = ?", (name,)).fetchone()  # type: ignore[no-any-return]

    def add(self, name: str, hashed: str, role: Role, description: str) -> None:
        with self.changing() as db:
            try:
                db.execute("INSERT INTO accounts VALUES (?, ?, ?, ?)", (name, hashed, role, description))
            except sqlite3.IntegrityError as error:
                _check_exists(error)
                raise AccountError("ALREADY_EXISTS", f"account {name!r} already exists") from None

    def update(self, name: str, role: Role | None, description: str | None) -> None:
        with self.changing() as db:
            values = (role, description, name)
            done = db.execute(
                "UPDATE accounts SET role = ifnull(?, role), description = ifnull(?, description) WHERE name = ?", values
            )
            _check_found(done.rowcount, "account", name)
            _check_administrator_left(db)

    def set_password(self, name: str, hashed: str) -> None:
        """Sets a password and ends the account's logins."""
        with self.changing() as db:
            _check_found(db.execute("UPDATE accounts SET hash = ? WHERE name = ?", (hashed, name)).rowcount, "account", name)
            db.execute("DELETE FROM tokens WHERE name = ?", (name,))

    def delete(self, name: str) -> None:
        with self.changing() as db:
            _check_found(db.execute("DELETE FROM accounts WHERE name = ?", (name,)).rowcount, "account", name)
            db.execute("DELETE FROM tokens WHERE name = ?", (name,))
            _check_administrator_left(db)
            trim(db, time.time_ns() // 1_000_000)

    # --- tokens -----------------------------------------------------------------------------------------------------------------

    def log_in(self, name: str, life_s: float) -> str:
        """Returns a new token for an account whose password has been verified."""
        token = secrets.token_urlsafe(32)
        now = time.time()
        with self.changing() as db:
            db.execute("DELETE FROM tokens WHERE expires_at < ?", (now - life_s,))
            kept = "SELECT digest FROM tokens WHERE name = ? ORDER BY expires_at DESC LIMIT ?"
            db.execute(f"DELETE FROM tokens WHERE name = ? AND digest NOT IN ({kept})", (name, name, TOKENS_MAX - 1))
            db.execute("INSERT INTO tokens VALUES (?, ?, ?)", (_digest(token), name, now + life_s))
        return token

    def log_out(self, token: str) -> None:
        with self.changing() as db:
            db.execute("DELETE FROM tokens WHERE digest = ?", (_digest(token),))

    def of_token(self, token: str) -> tuple[str, Role]:
        """Returns name and role of a token's account. Raises AccountError BAD_TOKEN or TOKEN_TIME_OUT."""
        query = "SELECT name, role, expires_at FROM tokens JOIN accounts USING (name) WHERE digest = ?"
        with _account_errors(self._path):
            row = self._db.execute(query, (_digest(token),)).fetchone()
        if row is None:
            raise AccountError("BAD_TOKEN", "token is unknown; log in again")
        if row[2] < time.time():
            raise AccountError("TOKEN_TIME_OUT", "token has expired; log in again")
        return row[0], row[1]

    # --- keys -------------------------------------------------------------------------------------------------------------------

    def api_keys(self) -> list[dict[str, Any]]:
        """Returns all keys, without secrets; times in Unix ms."""
        columns = ("name", "api_key", "role", "description", "enable", "created_at", "expired_at")
        query = "SELECT name, key, role, description, enable, created_at, expires_at FROM keys ORDER BY name"
        with _account_errors(self._path):
            rows = self._db.execute(query).fetchall()
        now = time.time_ns() // 1_000_000
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        return [row | {"enable": bool(row["enable"]), "expired": (row["expired_at"] or now) < now} for row in found]

    def add_key(self, name: str, role: Role, description: str, expires_ms: int | None) -> tuple[str, str]:
        """Adds a key; returns it and its secret, which is not stored."""
        key, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        row = (name, key, _digest(secret), role, description, 1, time.time_ns() // 1_000_000, expires_ms)
        with self.changing() as db:
            try:
                db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                _check_exists(error)
                raise AccountError("ALREADY_EXISTS", f"key {name!r} already exists") from None
        return key, secret

    def update_key(
        self, name: str, role: Role | None, description: str | None, enable: bool | None, expires_ms: int | None
    ) -> None:
        """Changes a key; values that are None are kept. `expires_ms` 0: never."""
        with self.changing() as db:
            done = db.execute(
                "UPDATE keys SET role = ifnull(?, role), description = ifnull(?, description), enable = ifnull(?, enable), "
                "expires_at = CASE WHEN ? IS NULL THEN expires_at WHEN ? = 0 THEN NULL ELSE ? END WHERE name = ?",
                (role, description, enable, expires_ms, expires_ms, expires_ms, name),
            )
            _check_found(done.rowcount, "key", name)

    def delete_key(self, name: str) -> None:
        with self.changing() as db:
            _check_found(db.execute("DELETE FROM keys WHERE name = ?", (name,)).rowcount, "key", name)
            trim(db, time.time_ns() // 1_000_000)

    def of_key(self, key: str, secret: str) -> tuple[str, Role]:
        """Returns name and role of a key. Raises AccountError BAD_API_KEY_OR_SECRET, without giving the cause."""
        with _account_errors(self._path):
            row = self._db.execute("SELECT name, role, digest, enable, expires_at FROM keys WHERE key = ?", (key,)).fetchone()
        right = compare_digest(row[2] if row else bytes(32), _digest(secret))
        if row is None or not right or not row[3] or (row[4] is not None and row[4] < time.time_ns() // 1_000_000):
            raise AccountError(
                "BAD_API_KEY_OR_SECRET", "API key is unknown, disabled or expired, or its secret is wrong"
            )
        return row[0], row[1]

    # --- whole rows -------------------------------------------------------------------------------------------------------------

    def exported(self, kind: int) -> list[dict[str, Any]]:
        """Returns all accounts or keys with the hashes of their passwords or secrets, by name."""
        with self.reading() as db:
            names = [name for (name,) in db.execute(f"SELECT name FROM {TABLES[kind][0]} ORDER BY name").fetchall()]
            return [{"name": name, **(fields_of(db, kind, name) or {})} for name in names]

    def put(self, kind: int, name: str, fields: dict[str, Any]) -> None:
        """Stores an account or key whose fields have been checked, in place of the one of its name."""
        with self.changing() as db:
            try:
                store_fields(db, kind, name, fields)
            except sqlite3.IntegrityError as error:
                _check_exists(error)
                raise AccountError("ALREADY_EXISTS", "its key is that of another name") from None
            _check_administrator_left(db)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction that changes nothing."""
        with _account_errors(self._path):
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("ROLLBACK")

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction for one change."""
        with _account_errors(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


@contextmanager
def _account_errors(path: Path) -> Iterator[None]:
    """Raises errors of the file as AccountError."""
    try:
        yield
    except sqlite3.Error as error:
        raise AccountError("NOT_AVAILABLE", f"{path}: {error}") from error
    except OSError as error:
        raise AccountError("NOT_AVAILABLE", f"{path}: {error.strerror}") from error


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogateescape")).digest()


def _check_exists(error: sqlite3.IntegrityError) -> None:
    """Raises the error again if a trigger has refused the row."""
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        raise error


def _check_found(count: int, what: str, name: str) -> None:
    if not count:
        raise AccountError("NOT_FOUND", f"no {what} {name!r}")


def _check_administrator_left(db: sqlite3.Connection) -> None:
    if not db.execute("SELECT 1 FROM accounts WHERE role = ?", (ADMINISTRATOR,)).fetchone():
        raise AccountError("NOT_AVAILABLE", "the last administrator cannot be removed; add another one first")
