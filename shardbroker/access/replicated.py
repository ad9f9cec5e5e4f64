"""What link-0 needs of a store of users, or of rules and bans, to have the same on all nodes of a cluster.

    merge()                         rows of other nodes that have the greater id
    rows(), and those of `stamps`   what other nodes are to get, or to compare

The writers of the store (access/stores.py) stamp each change by themselves. A row that is refused is left out and counted: this
node keeps what it has, and takes the row with a later comparison, once it can.
"""

import time
from collections.abc import Sequence
from typing import Any

from shardbroker.access.rows import ROW_BYTES_MAX, Row, RowError, check_value, decode_row, encode_row, value_of
from shardbroker.access.stores import AccessStore, StoreFullError, StoreWriter
from shardbroker.stores.retained_stamps import TOMBSTONE_MS, Change, StampedTable, StampWriter, TopicState, rows_within

__all__ = ["ReplicatedAccess"]

BUILD_ENTRIES = 500
"""Entries that are stamped in one transaction, some 10 ms."""
PURGE_MS = 600_000
"""Interval of looks for bans that have ended: all bans are read."""
SWEPT = 1_000
"""Deletions forgotten in one transaction."""


class ReplicatedAccess(StampedTable):
    """The table of one store for the core of replication."""

    def __init__(self, store: AccessStore) -> None:
        super().__init__(store)
        self.store = store
        self.refused = 0
        """Rows of other nodes that were refused."""
        self.refusal = ""
        """Why the last one was."""
        self.too_large = 0
        """Entries that rows() has left out for their size."""
        self._purged_ms = 0
        self.changed: set[str] = set()
        """Names of the tables in which merge() has stored something."""

    # --- of the core -------------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        with self.store.reading() as txn:
            return self.store.stamps.built(txn) is None

    def rows(self, digests: Sequence[bytes], byte_limit: int) -> tuple[list[bytes], int]:
        """Returns what other nodes need of entries, as far as `byte_limit` has room, but one; and the number of digests covered."""
        with self.store.reading() as txn:
            rows = (self._row(txn, digest) for digest in digests)
            found, covered, too_large = rows_within(rows, byte_limit, ROW_BYTES_MAX)
        self.too_large += too_large
        return found, covered

    def _row(self, txn: Any, digest: bytes) -> bytes | None:
        change = self.store.stamps.find(txn, digest)
        if change is None:
            return None
        table, key, value = change.topic[0], change.topic[1:], b""
        if change.state == TopicState.LIVE:
            stored = txn.get(key, db=self.store.table(table))
            if stored is None:
                return None
            value = value_of(self.store.tables[table], key, stored)
        return encode_row(Row(change.id, change.state, change.since_ms, table, key, value))

    def merge(self, rows: Sequence[bytes]) -> None:
        """Stores rows that win, in one transaction. Raises StoreError."""
        now_ms = time.time_ns() // 1_000_000
        checked = [found for row in rows if (found := self._checked(row)) is not None]
        try:
            self._merge(checked, now_ms)
        except StoreFullError:
            for row in checked:
                try:
                    self._merge([row], now_ms)
                except StoreFullError as error:
                    self._refuse(str(error))

    def _checked(self, data: bytes) -> Row | None:
        """Returns a row with its value as it is stored, or None for one that is refused."""
        try:
            row = decode_row(data, len(self.store.tables))
            if row.state == TopicState.LIVE:
                return row._replace(value=check_value(self.store.tables[row.table], row.key, row.value))
        except RowError as error:
            self._refuse(str(error))
            return None
        return row

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        self.refusal = reason

    def _merge(self, rows: Sequence[Row], now_ms: int) -> None:
        changed = set()
        with self.store.writing() as writer:
            for row in rows:
                if self._merge_one(writer, row, now_ms):
                    changed.add(self.store.tables[row.table])
        self.changed |= changed

    def _merge_one(self, writer: StoreWriter, row: Row, now_ms: int) -> bool:
        """Returns whether the row was newer than what this node has."""
        digest, known, above = writer.find(row.table, row.key)
        if above is not None and row.id <= above:
            return False
        state, since_ms = row.state, min(row.since_ms, now_ms)  # a clock that is ahead must not keep a deletion for ever
        if state == TopicState.LIVE:
            since_ms = 0
            expires_ms = self.store.expires_ms(row.table, row.value)
            if expires_ms is not None and expires_ms <= now_ms:
                state, since_ms = TopicState.DELETED, expires_ms
        if state == TopicState.DELETED and since_ms <= now_ms - TOMBSTONE_MS:
            if above is None:
                return False
            writer.txn.delete(row.key, db=self.store.table(row.table))
            if known is not None:
                writer.stamps.forget(digest, known)
            return True
        writer.take(row.table, row.key, Change(row.id, state, since_ms, bytes([row.table]) + row.key), row.value)
        return True

    # --- upkeep ------------------------------------------------------------------------------------------------------------

    def build(self) -> bool:
        """Stamps the next entries of a store that was written without stamps. Returns whether all have theirs."""
        stamps = self.store.stamps
        with self.store.writing() as writer:
            place = stamps.built(writer.txn)
            if place is None:
                return True
            table, key = place
            left = BUILD_ENTRIES
            with writer.txn.cursor(self.store.table(table)) as cursor:
                more = cursor.set_range(key) if key else cursor.first()
                if more and key and cursor.key() == key:
                    more = cursor.next()
                while more and left:
                    key, left = bytes(cursor.key()), left - 1
                    digest, known, above = writer.find(table, key)
                    if known is None and above is not None:
                        writer.stamps.put(digest, None, Change(above, TopicState.LIVE, 0, bytes([table]) + key))
                    more = cursor.next()
            if more:
                place = (table, key)
            else:
                place = (table + 1, b"") if table + 1 < len(self.store.tables) else None
            stamps.set_built(writer.txn, place)
        return place is None

    def sweep(self, now_ms: int) -> int:
        """Forgets old deletions, a bounded number of them. Returns how many. Raises StoreError.

        Removes bans that have ended too, each ten minutes: before other nodes have forgotten them, which would be sent them again.
        """
        if now_ms - self._purged_ms >= PURGE_MS:
            self._purged_ms = now_ms
            self.store.purge(now_ms)
        if not self.store.stamps.has_old(now_ms - TOMBSTONE_MS):
            return 0
        with self.store.writing() as writer:
            stamps: StampWriter = writer.stamps
            return stamps.forget_old(now_ms - TOMBSTONE_MS, SWEPT)

    def close(self) -> None:
        self.store.close()
