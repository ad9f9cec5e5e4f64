"""What link-0 needs of the accounts and API keys to have the same on all nodes of a cluster; the rows are those of access/rows.py.

Logins (tokens) stay at their node. They end there when the password of their account changes, or the account is deleted, at any
node. The account of a first start is taken only by a node that has no other accounts: a new node, which makes one before it is
linked, must not add an administrator to a cluster.
"""

import json
import re
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardbroker.access.account_stamps import (
    ACCOUNT,
    KEY,
    TABLES,
    fields_of,
    is_first_account,
    set_stamp,
    store_fields,
    trim,
)
from shardbroker.access.accounts import ACCOUNTS_FILE, Accounts
from shardbroker.access.rows import ROW_BYTES_MAX, Row, RowError, decode_row, encode_row, load_object, text_of
from shardbroker.access.tables import HASH_MAX
from shardbroker.stores.retained_stamps import BUCKETS, SUM, TOMBSTONE_MS, TopicState, bucket_of, digest_of, sum_of

__all__ = ["ReplicatedAccounts", "checked_fields"]

ROLES = ("administrator", "viewer")
NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
"""As in the verbs `admins` and `api-keys`."""
DESCRIPTION_MAX = 400
"""Characters of a description, as in the verbs."""
TIME_MAX = 2**53
"""Latest time of a key, Unix ms, as in the verbs."""
DIGEST_BYTES = 32
Entry = tuple[bytes, bytes, int]


class ReplicatedAccounts:
    """The table of accounts and keys for the core of replication.

    The file is opened at the first call, and again when it was replaced: the process of the REST API sets a damaged one aside.
    Every method of the core may raise AccountError.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._accounts: Accounts | None = None
        self._inode = 0
        self.refused = 0
        """Rows of other nodes that were refused."""
        self.refusal = ""
        """Why the last one was."""
        self.too_large = 0

    def close(self) -> None:
        if self._accounts is not None:
            self._accounts.close()
            self._accounts = None

    def _opened(self) -> Accounts:
        path = self._data_dir / ACCOUNTS_FILE
        try:
            inode = path.stat().st_ino
        except OSError:
            inode = 0
        if self._accounts is None or inode != self._inode:
            self.close()
            self._accounts = Accounts(self._data_dir)
            self._inode = path.stat().st_ino
        return self._accounts

    # --- of the core -------------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        return True

    def head(self) -> int:
        with self._opened().reading() as db:
            found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
        return 0 if found is None else int(found[0])

    def changes_behind(self, number: int, most: int) -> tuple[int, list[bytes]] | None:
        with self._opened().reading() as db:
            first, last = db.execute("SELECT min(number), max(number) FROM changes").fetchone()
            if last is None or last <= number:
                return number, []
            if first > number + 1:
                return None
            query = "SELECT number, kind, name FROM changes WHERE number > ? ORDER BY number LIMIT ?"
            found = db.execute(query, (number, most)).fetchall()
        return found[-1][0], [_digest(kind, name) for _, kind, name in found]

    def _entries(self) -> list[Entry]:
        """Returns all entries, in the order of their digests. They are few: each has been made by hand, or by a program."""
        with self._opened().reading() as db:
            found = db.execute("SELECT kind, name, high, low, state FROM stamps").fetchall()
        return sorted((_digest(kind, name), _id(high, low), state) for kind, name, high, low, state in found)

    def sums(self) -> bytes:
        sums = [0] * BUCKETS
        for digest, id, _ in self._entries():
            sums[bucket_of(digest)] ^= sum_of(digest, id)
        return b"".join(one.to_bytes(SUM, "big") for one in sums)

    def entries(self, first: bytes, last: bytes, most: int) -> list[Entry]:
        return [one for one in self._entries() if first <= one[0] <= last][:most]

    def rows(self, digests: Sequence[bytes], byte_limit: int) -> tuple[list[bytes], int]:
        """Returns what other nodes need of entries, and the number of digests covered: all of them, since the rows are small."""
        found = []
        wanted = {*digests}
        with self._opened().reading() as db:
            for kind, name, high, low, state, since_ms in db.execute("SELECT * FROM stamps").fetchall():
                if _digest(kind, name) not in wanted:
                    continue
                fields = fields_of(db, kind, name) if state == TopicState.LIVE else None
                value = b"" if fields is None else json.dumps(fields, ensure_ascii=False).encode(errors="replace")
                if (state == TopicState.LIVE) == bool(value):
                    row = encode_row(Row(_id(high, low), TopicState(state), since_ms, kind, name.encode(), value))
                    if len(row) <= ROW_BYTES_MAX:
                        found.append(row)
                    else:
                        self.too_large += 1
        return found, len(digests)

    def merge(self, rows: Sequence[bytes]) -> None:
        now_ms = time.time_ns() // 1_000_000
        checked = [found for row in rows if (found := self._checked(row)) is not None]
        with self._opened().changing() as db:
            db.execute("UPDATE merging SET is_on = 1")
            for row, fields in checked:
                try:
                    _merge_one(db, row, fields, now_ms)
                except sqlite3.IntegrityError as error:
                    self._refuse(str(error))
            db.execute("UPDATE merging SET is_on = 0")

    def _checked(self, data: bytes) -> tuple[Row, dict[str, Any]] | None:
        try:
            row = decode_row(data, len(TABLES))
            name = _checked_name(row.key.decode("ascii", errors="replace"))
            return row, checked_fields(row.table, name, row.value) if row.state == TopicState.LIVE else {}
        except RowError as error:
            self._refuse(str(error))
            return None

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        self.refusal = reason

    # --- upkeep ------------------------------------------------------------------------------------------------------------

    def build(self) -> bool:
        return True

    def sweep(self, now_ms: int) -> int:
        """Forgets old deletions. Returns 0: nothing is left to do."""
        with self._opened().changing() as db:
            trim(db, now_ms)
        return 0


def _digest(kind: int, name: str) -> bytes:
    return digest_of(bytes([kind]) + name.encode(errors="replace"))


def _id(high: int, low: bytes) -> bytes:
    return high.to_bytes(8, "big") + low


def _merge_one(db: sqlite3.Connection, row: Row, fields: dict[str, Any], now_ms: int) -> None:
    kind, name = row.table, row.key.decode()
    known = db.execute("SELECT high, low FROM stamps WHERE kind = ? AND name = ?", (kind, name)).fetchone()
    if known is not None and row.id <= _id(*known):
        return
    if kind == ACCOUNT and known is None and is_first_account(row.id) and _has_other_accounts(db):
        return
    since_ms = min(row.since_ms, now_ms)
    if row.state == TopicState.LIVE:
        since_ms = 0
        store_fields(db, kind, name, fields)
    else:
        db.execute(f"DELETE FROM {TABLES[kind][0]} WHERE name = ?", (name,))
        if kind == ACCOUNT:
            db.execute("DELETE FROM tokens WHERE name = ?", (name,))
        if since_ms <= now_ms - TOMBSTONE_MS:
            db.execute("DELETE FROM stamps WHERE kind = ? AND name = ?", (kind, name))
            return
    set_stamp(db, kind, name, row.id, row.state, since_ms)


def _has_other_accounts(db: sqlite3.Connection) -> bool:
    """Returns whether there are accounts that no first start has made."""
    found = db.execute("SELECT high, low FROM stamps WHERE kind = ? AND state = ?", (ACCOUNT, int(TopicState.LIVE))).fetchall()
    return any(not is_first_account(_id(high, low)) for high, low in found)


# --- rows of other nodes --------------------------------------------------------------------------------------------------


def _common(found: dict[str, Any]) -> None:
    if found["role"] not in ROLES:
        raise RowError(f"role: must be one of {', '.join(ROLES)}")
    if len(text_of("description", found["description"], 4 * DESCRIPTION_MAX)) > DESCRIPTION_MAX:
        raise RowError(f"description: must have at most {DESCRIPTION_MAX} characters")


def _account(value: bytes) -> dict[str, Any]:
    found = load_object(value, TABLES[ACCOUNT][1])
    _common(found)
    if not text_of("hash", found["hash"], HASH_MAX, 1).startswith("$argon2"):
        raise RowError("hash: must begin with $argon2")
    return found


def _key(value: bytes) -> dict[str, Any]:
    found = load_object(value, TABLES[KEY][1])
    _common(found)
    if not re.fullmatch("[0-9a-f]{16}", text_of("key", found["key"], 16)):
        raise RowError("key: must be 16 digits of lower-case hex")
    if not re.fullmatch(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}", text_of("digest", found["digest"], 2 * DIGEST_BYTES)):
        raise RowError(f"digest: must be {DIGEST_BYTES} bytes in lower-case hex")
    if not isinstance(found["enable"], bool):
        raise RowError("enable: must be true or false")
    for name in ("created_at", "expires_at"):
        time_ms = found[name]
        if time_ms is None and name == "expires_at":
            continue
        if not isinstance(time_ms, int) or isinstance(time_ms, bool) or not 0 <= time_ms <= TIME_MAX:
            raise RowError(f"{name}: must be Unix ms")
    return found


_CHECKS = {ACCOUNT: _account, KEY: _key}


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise RowError("name: must be 1 to 64 letters, digits, _ . @ -")
    return name


def checked_fields(kind: int, name: str, value: bytes) -> dict[str, Any]:
    """Returns the fields of an account or key, which are sent as JSON. Raises RowError."""
    _checked_name(name)
    return _CHECKS[kind](value)
