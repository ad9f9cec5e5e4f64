"""The queryable audit log: the last changes by `ctl` and REST, in an SQLite file in the data directory."""

import json
import sqlite3
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from shardbroker.access.accounts import open_sqlite
from shardbroker.control import ControlError

__all__ = ["AUTHOR", "Audit"]

AUTHOR: ContextVar[str] = ContextVar("AUTHOR", default="")
"""The author of the verb that is being carried out: for what it records and for its calls of other nodes."""
AUDIT_FILE = "audit.sqlite3"
"""File in the data directory."""
KEPT = 100_000
"""Entries kept; older ones are removed."""
TRIM_EVERY = 1000
"""Entries between two removals of older ones."""
FREQUENT = ("publish",)
"""Verbs that are only logged: programs use them frequently, and each entry is a write to the disk."""
_TABLE = """
CREATE TABLE IF NOT EXISTS audit (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER, "by" TEXT, verb TEXT, code TEXT, params TEXT);
"""


class Audit:
    """Opened at the first entry or query. Entries that it cannot store are in the log nevertheless."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / AUDIT_FILE
        self._db: sqlite3.Connection | None = None

    def add(self, by: str, verb: str, params: dict[str, Any], code: str) -> str:
        """Stores one entry; returns the error, or an empty text."""
        if verb in FREQUENT:
            return ""
        try:
            db = self._opened()
            row = (time.time_ns() // 1_000_000, by, verb, code, json.dumps(params, default=str, ensure_ascii=False))
            number = db.execute('INSERT INTO audit (at, "by", verb, code, params) VALUES (?, ?, ?, ?, ?)', row).lastrowid or 0
            if number % TRIM_EVERY == 0:
                db.execute("DELETE FROM audit WHERE id <= ?", (number - KEPT,))
        except (sqlite3.Error, OSError, UnicodeError) as error:
            return f"{self._path}: {error}"
        return ""

    def newest(self, before: int | None, limit: int, since_ms: int, until_ms: int, by: str | None) -> list[dict[str, Any]]:
        """Returns entries below number `before`, newest first. Raises ControlError."""
        query = (
            'SELECT id, at, "by", verb, code, params FROM audit WHERE id < ? AND at BETWEEN ? AND ? AND "by" = ifnull(?, "by") '
            "ORDER BY id DESC LIMIT ?"
        )
        try:
            rows = self._opened().execute(query, (before or 1 << 62, since_ms, until_ms, by, limit)).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise ControlError("NOT_AVAILABLE", f"{self._path}: {error}") from None
        names = ("id", "at", "by", "verb", "code", "params")
        return [{**dict(zip(names, row, strict=True)), "params": json.loads(row[-1])} for row in rows]

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = open_sqlite(self._path, _TABLE)
            self._db.execute("PRAGMA synchronous = NORMAL")  # the last entries before a power cut are in the log
        return self._db
