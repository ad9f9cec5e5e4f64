"""The newest change of each account and API key, deletions too, for the other nodes of a cluster: beside them, in their file.

    stamps    kind, name -> high, low: the id (time in µs, 8 random bytes) | state | since_ms of a deletion
    changes   number -> kind, name       changes of this node, in the order of their commits
    merging   is_on                      1 within a transaction that stores changes of other nodes

Triggers stamp each change, whatever writes: an earlier version too, which knows nothing of stamps. The greater id wins on every
node (access/stores.py). The account of a first start has an id below all others, and the earlier of two such accounts the greater.
"""

import json
import sqlite3
import time
from hashlib import blake2b
from typing import Any

from shardbroker.stores.retained_stamps import ID_HIGH_MAX, TOMBSTONE_MS, TopicState

__all__ = [
    "ACCOUNT", "KEY", "TABLES", "VERSION", "fields_of", "first_account_id", "is_first_account", "migrate", "set_stamp", "split_id",
    "store_fields", "trim",
]  # fmt: skip

VERSION = 1
"""Of the file (`user_version`); 0: from before the stamps."""
ACCOUNT, KEY = 0, 1
"""Kinds of rows."""
TABLES = {ACCOUNT: ("accounts", ("hash", "role", "description")),
          KEY: ("keys", ("key", "digest", "role", "description", "enable", "created_at", "expires_at"))}  # fmt: skip
"""Table and columns of each kind, without the name."""
CHANGES_KEPT = 10_000
"""Changes kept for the links. A peer that is further behind compares buckets."""
TOMBSTONES_MAX = 10_000
"""Deletions that are kept; of more, the oldest are forgotten first."""
KNOWN_VALUE = 1 << 63
"""Bit in the lower half of the id of a row whose change is not known, which is above that of the account of a first start."""

_SCHEMA = """
CREATE TABLE stamps (
    kind INTEGER, name TEXT, high INTEGER, low BLOB, state INTEGER, since_ms INTEGER, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER, name TEXT);
CREATE TABLE merging (is_on INTEGER);
INSERT INTO merging VALUES (0);
"""
_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_TRIGGER = """
CREATE TRIGGER stamp_{table}_{event} AFTER {when} ON {table} WHEN (SELECT is_on FROM merging) = 0
BEGIN
    SELECT RAISE(ABORT, 'another node has given it the latest time there is: it can no longer be changed')
        FROM stamps WHERE kind = {kind} AND name = {row}.name AND high >= {most};
    INSERT INTO stamps VALUES ({kind}, {row}.name, 1000 * {now}, randomblob(8), {state}, {since})
        ON CONFLICT (kind, name) DO UPDATE SET high = max(excluded.high, high + 1), low = excluded.low, state = excluded.state,
        since_ms = excluded.since_ms;
    INSERT INTO changes (kind, name) VALUES ({kind}, {row}.name);
    DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - {kept};
END;
"""


def _statements() -> str:
    found = _SCHEMA
    for kind, (table, columns) in TABLES.items():
        live = {"row": "NEW", "state": int(TopicState.LIVE), "since": "0"}
        gone = {"row": "OLD", "state": int(TopicState.DELETED), "since": _NOW_MS}
        for event, when, more in (
            ("insert", "INSERT", live), ("update", f"UPDATE OF {', '.join(columns)}", live), ("delete", "DELETE", gone),
        ):  # fmt: skip
            of_all = {"table": table, "kind": kind, "now": _NOW_MS, "most": ID_HIGH_MAX, "kept": CHANGES_KEPT}
            found += _TRIGGER.format(event=event, when=when, **of_all, **more)
    return found


def migrate(db: sqlite3.Connection) -> int:
    """Gives a file from before the stamps its stamps. Returns the version of the file; above VERSION, nothing was changed."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version:
        return version
    db.execute("BEGIN IMMEDIATE")
    try:
        if not db.execute("PRAGMA user_version").fetchone()[0]:  # another process may have done it meanwhile
            for statement in _split(_statements()):
                db.execute(statement)
            for kind, (table, _) in TABLES.items():
                for (name,) in db.execute(f"SELECT name FROM {table}").fetchall():
                    fields = fields_of(db, kind, name) or {}
                    set_stamp(db, kind, name, _unknown_id(fields), TopicState.LIVE, 0)
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return VERSION


def _split(text: str) -> list[str]:
    found, statement = [], ""
    for line in text.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            found.append(statement)
            statement = ""
    return found


def fields_of(db: sqlite3.Connection, kind: int, name: str) -> dict[str, Any] | None:
    """Returns what other nodes need of an account or key."""
    table, columns = TABLES[kind]
    row = db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    found = dict(zip(columns, row, strict=True))
    if kind == KEY:
        found |= {"digest": bytes(found["digest"]).hex(), "enable": bool(found["enable"])}
    return found


def store_fields(db: sqlite3.Connection, kind: int, name: str, fields: dict[str, Any]) -> None:
    """Stores an account or key, whose fields have been checked. Another password ends the logins of an account."""
    table, columns = TABLES[kind]
    before = fields_of(db, kind, name)
    if kind == ACCOUNT and before is not None and before["hash"] != fields["hash"]:
        db.execute("DELETE FROM tokens WHERE name = ?", (name,))
    if kind == KEY:
        fields = {**fields, "digest": bytes.fromhex(fields["digest"]), "enable": int(fields["enable"])}
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns)
    marks = ", ".join("?" * (len(columns) + 1))
    statement = f"INSERT INTO {table} (name, {', '.join(columns)}) VALUES ({marks}) ON CONFLICT (name) DO UPDATE SET {sets}"
    db.execute(statement, (name, *(fields[column] for column in columns)))


def set_stamp(db: sqlite3.Connection, kind: int, name: str, id: bytes, state: TopicState, since_ms: int) -> None:
    high, low = split_id(id)
    db.execute("INSERT OR REPLACE INTO stamps VALUES (?, ?, ?, ?, ?, ?)", (kind, name, high, low, int(state), since_ms))


def split_id(id: bytes) -> tuple[int, bytes]:
    return int.from_bytes(id[:8], "big"), id[8:]


def _unknown_id(fields: dict[str, Any]) -> bytes:
    """Returns the id of a row whose change is not known: the same on all nodes that have the same row; the later key wins."""
    low = int.from_bytes(blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).digest(), "big") | KNOWN_VALUE
    high = min(max(0, int(fields.get("created_at") or 0)) * 1000, ID_HIGH_MAX)
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")


def first_account_id() -> bytes:
    """Returns the id of the account that a first start has made at this moment."""
    return bytes(8) + (KNOWN_VALUE - 1 - time.time_ns() // 1_000).to_bytes(8, "big")


def is_first_account(id: bytes) -> bool:
    """Returns whether an account is that of a first start, and has not been changed."""
    return not any(id[:8]) and id[8] < 0x80


def trim(db: sqlite3.Connection, now_ms: int) -> int:
    """Forgets old deletions, and the oldest of too many. Returns how many."""
    done = db.execute("DELETE FROM stamps WHERE state = ? AND since_ms <= ?", (int(TopicState.DELETED), now_ms - TOMBSTONE_MS))
    excess = db.execute(
        "DELETE FROM stamps WHERE (kind, name) IN "
        "(SELECT kind, name FROM stamps WHERE state = ? ORDER BY since_ms DESC LIMIT -1 OFFSET ?)",
        (int(TopicState.DELETED), TOMBSTONES_MAX),
    )
    return done.rowcount + excess.rowcount
