"""The newest change of each topic on a node of a cluster, deletions too: beside the retained messages, in their environment.

Stores of access control have the same beside their entries (access/stores.py): a topic is there the number of a table and a key.

    db "stamps"    digest of the topic, 16 bytes       -> id 16 bytes | state u8 | since_ms u64 | topic
    db "ages"      since_ms u64 | digest of the topic  -> nothing        topics without a message, oldest change first
    db "buckets"   bucket u16                          -> XOR of the sums of its topics, 8 bytes
    db "changes"   number u64                          -> digest         changes of this node, in the order of their commits
    db "about"     "transaction" -> number u64;   "built" -> database u8 | key: what the messages are stamped up to, nothing: all

Numbers are big endian, so that LMDB sorts them. The stamp of a change is the id of its message, of which the first half is a time
in µs: the greater one wins on every node. A topic is in the bucket of the first 12 bits of its digest; its sum is that of digest
and id.

Invariants: a topic of state LIVE has a message, one of another state has none; all other topics with a message lie behind "built".
A transaction that writes without this module (a broker without a cluster, an older one, a rescue of the file) leaves another number
behind than "transaction" has: everything here is then dropped, and made again from the messages.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple, Protocol

import lmdb

__all__ = [
    "BUCKETS",
    "CHANGES_KEPT",
    "ID_HIGH_MAX",
    "ROW_BYTES_MAX",
    "SUM",
    "TOMBSTONES_MAX",
    "TOMBSTONE_MS",
    "Change",
    "RetainedStamps",
    "StampWriter",
    "StampedTable",
    "TopicState",
    "bucket_of",
    "digest_of",
    "rows_within",
    "sum_of",
]

BUCKETS = 4096
DIGEST = 16
"""Bytes of the digest of a topic: clients choose topics, and two of one digest would share a stamp."""
SUM = 8
"""Bytes of the sum of a bucket: ids are the broker's, so no client can choose sums."""
CHANGES_KEPT = 100_000
"""Changes kept for the links: 10 s at 10,000 a second. A peer that is further behind compares buckets."""
TOMBSTONES_MAX = 500_000
"""Topics without a message that are kept, some 100 MB; of more, the oldest are forgotten first."""
ROW_BYTES_MAX = (2 << 20) - 1024
"""Largest row of a table that goes to other nodes, such as a message with all that belongs to it: it fits a frame."""
TOMBSTONE_MS = 24 * 3_600_000
"""How long a deletion is kept: a node that is away for longer may bring back what was deleted meanwhile."""
ID_HIGH_MAX = (1 << 63) - 1
"""Greatest time of an id, µs: nodes take no greater one from each other."""

_STAMP = Struct(">16sBQ")
_NUMBER = Struct(">Q")
_BUCKET = Struct(">H")
_TRANSACTION, _BUILT = b"transaction", b"built"


class TopicState(IntEnum):
    """What a node has of a topic."""

    LIVE = 0
    DELETED = 1
    """Deleted, or expired."""
    REFUSED = 2
    """A limit of this node refused the message; others have it."""


class Change(NamedTuple):
    """The newest change of a topic. since_ms: Unix ms of a deletion, expiry or refusal."""

    id: bytes
    state: TopicState
    since_ms: int
    topic: bytes


def digest_of(topic: bytes) -> bytes:
    """Returns the digest of a topic."""
    return blake2b(topic, digest_size=DIGEST).digest()


def rows_within(rows: Iterable[bytes | None], byte_limit: int, row_limit: int) -> tuple[list[bytes], int, int]:
    """Returns rows as far as `byte_limit` has room, but one; how many of `rows` are covered; and how many are above `row_limit`,
    which are left out. None is of a topic that other nodes do not get."""
    found: list[bytes] = []
    covered = size = too_large = 0
    for row in rows:
        if row is not None and found and size + len(row) > byte_limit:
            break
        covered += 1
        if row is not None and len(row) > row_limit:
            too_large += 1
        elif row is not None:
            found.append(row)
            size += len(row)
    return found, covered, too_large


def bucket_of(digest: bytes) -> int:
    """Returns the number of the bucket of a topic."""
    return (digest[0] << 8 | digest[1]) >> 4


def sum_of(digest: bytes, id: bytes) -> int:
    """Returns what a topic adds to the sum of its bucket."""
    return int.from_bytes(blake2b(digest + id, digest_size=SUM).digest(), "big")


class RetainedStamps:
    """The databases in an environment; changes are made by a StampWriter, in the transaction that changes the messages."""

    def __init__(self, env: lmdb.Environment) -> None:
        self.env = env
        self.stamps: Any = env.open_db(b"stamps")
        self.ages: Any = env.open_db(b"ages")
        self.buckets: Any = env.open_db(b"buckets")
        self.changes: Any = env.open_db(b"changes")
        self.about: Any = env.open_db(b"about")

    @staticmethod
    def are_current(env: lmdb.Environment) -> bool:
        """Returns whether each change of the messages was made with its stamp. To be called before databases are created."""
        try:
            about: Any = env.open_db(b"about", create=False)
        except lmdb.NotFoundError:
            return False
        with env.begin() as txn:
            noted: Any = txn.get(_TRANSACTION, db=about)
            return noted is not None and _NUMBER.unpack(noted)[0] == txn.id()

    def are_noted(self, txn: lmdb.Transaction) -> bool:
        """Returns the same in a write transaction that has changed nothing yet."""
        noted: Any = txn.get(_TRANSACTION, db=self.about)
        return noted is not None and _NUMBER.unpack(noted)[0] == txn.id() - 1

    def note(self, txn: lmdb.Transaction) -> None:
        """Notes that a write transaction keeps the invariants; to be called in each one."""
        txn.put(_TRANSACTION, _NUMBER.pack(txn.id()), db=self.about)

    def reset(self, txn: lmdb.Transaction) -> None:
        """Drops everything; the stamps of the messages have to be built again."""
        for db in (self.stamps, self.ages, self.buckets, self.changes):
            txn.drop(db, delete=False)
        txn.put(_BUILT, b"\0", db=self.about)

    def built(self, txn: lmdb.Transaction) -> tuple[int, bytes] | None:
        """Returns the database and the last key of the messages that are stamped; None: all are."""
        place: Any = txn.get(_BUILT, db=self.about)
        return None if not place else (place[0], bytes(place[1:]))

    def set_built(self, txn: lmdb.Transaction, place: tuple[int, bytes] | None) -> None:
        txn.put(_BUILT, b"" if place is None else bytes([place[0]]) + place[1], db=self.about)

    def head(self) -> int:
        """Returns the number of the newest change of this node; 0 if there is none."""
        with self.env.begin() as txn, txn.cursor(self.changes) as cursor:
            return _NUMBER.unpack(cursor.key())[0] if cursor.last() else 0

    def changes_behind(self, number: int, most: int) -> tuple[int, list[bytes]] | None:
        """Returns at most `most` topics that have changed since a number, and the number of the last; None: some are not kept."""
        found: list[bytes] = []
        with self.env.begin() as txn, txn.cursor(self.changes) as cursor:
            if not cursor.last() or _NUMBER.unpack(cursor.key())[0] <= number:
                return number, found
            if not cursor.set_key(_NUMBER.pack(number + 1)):
                return None
            for digest in cursor.iternext(keys=False):
                found.append(bytes(digest))
                if len(found) >= most:
                    break
        return number + len(found), found

    def sums(self) -> bytes:
        """Returns the sums of all buckets, one after the other."""
        found = bytearray(BUCKETS * SUM)
        with self.env.begin() as txn, txn.cursor(self.buckets) as cursor:
            for key, value in cursor:
                at = _BUCKET.unpack(key)[0] * SUM
                found[at : at + SUM] = value
        return bytes(found)

    def entries(self, first: bytes, last: bytes, most: int) -> list[tuple[bytes, bytes, int]]:
        """Returns at most `most` topics with digests from `first` to `last`, in their order: digest, id, state."""
        found: list[tuple[bytes, bytes, int]] = []
        with self.env.begin(buffers=True) as txn, txn.cursor(self.stamps) as cursor:
            if cursor.set_range(first):
                for key, value in cursor:
                    digest = bytes(key)
                    if digest > last or len(found) >= most:
                        break
                    found.append((digest, bytes(value[:16]), value[16]))
        return found

    def has_old(self, before_ms: int) -> bool:
        """Returns whether there are deletions from before a time, or too many."""
        with self.env.begin() as txn, txn.cursor(self.ages) as cursor:
            if int(txn.stat(self.ages)["entries"]) > TOMBSTONES_MAX:
                return True
            return bool(cursor.first()) and _NUMBER.unpack_from(cursor.key())[0] <= before_ms

    def find(self, txn: lmdb.Transaction, digest: bytes) -> Change | None:
        value: Any = txn.get(digest, db=self.stamps)
        if value is None:
            return None
        id, state, since_ms = _STAMP.unpack_from(value)
        return Change(id, TopicState(state), since_ms, bytes(value[_STAMP.size :]))


class StampWriter:
    """Changes of one write transaction; `close` completes them."""

    def __init__(self, stamps: RetainedStamps, txn: lmdb.Transaction) -> None:
        self._stamps, self._txn = stamps, txn
        self._sums: dict[int, int] = {}
        self._changed: list[bytes] = []
        self._added = 0

    def put(self, digest: bytes, old: Change | None, new: Change, *, is_own: bool = False) -> None:
        """Stores the newest change of a topic. is_own: the links have to send it."""
        stamps, txn = self._stamps, self._txn
        if old is not None:
            self._remove(digest, old)
        txn.put(digest, _STAMP.pack(new.id, new.state, new.since_ms) + new.topic, db=stamps.stamps)
        if new.state != TopicState.LIVE:
            txn.put(_NUMBER.pack(new.since_ms) + digest, b"", db=stamps.ages)
            self._added += 1
        self._turn(digest, new.id)
        if is_own:
            self._changed.append(digest)

    def forget(self, digest: bytes, old: Change) -> None:
        """Removes what is known of a topic without a message."""
        self._remove(digest, old)
        self._txn.delete(digest, db=self._stamps.stamps)

    def forget_old(self, before_ms: int, most: int) -> int:
        """Forgets at most `most` topics without a message for so long, and those above TOMBSTONES_MAX. Returns their number."""
        stamps, txn = self._stamps, self._txn
        excess = int(txn.stat(stamps.ages)["entries"]) - TOMBSTONES_MAX
        old: list[bytes] = []
        for key in self._oldest():
            if len(old) >= most or (len(old) >= excess and _NUMBER.unpack_from(key)[0] > before_ms):
                break
            old.append(key)
        for key in old:
            digest = key[_NUMBER.size :]
            change = stamps.find(txn, digest)
            txn.delete(key, db=stamps.ages)
            if change is not None:
                self.forget(digest, change)
        return len(old)

    def _oldest(self) -> Iterator[bytes]:
        with self._txn.cursor(self._stamps.ages) as cursor:
            keys: Iterable[Any] = cursor.iternext(values=False)
            for key in keys:
                yield bytes(key)

    def _remove(self, digest: bytes, old: Change) -> None:
        self._turn(digest, old.id)
        if old.state != TopicState.LIVE:
            self._txn.delete(_NUMBER.pack(old.since_ms) + digest, db=self._stamps.ages)

    def _turn(self, digest: bytes, id: bytes) -> None:
        bucket = bucket_of(digest)
        self._sums[bucket] = self._sums.get(bucket, 0) ^ sum_of(digest, id)

    def close(self) -> None:
        """Stores the sums, and the numbers of the changes."""
        stamps, txn = self._stamps, self._txn
        if self._added:
            self.forget_old(0, 2 * self._added)
        for bucket, change in self._sums.items():
            key = _BUCKET.pack(bucket)
            before: Any = txn.get(key, db=stamps.buckets)
            after = change ^ (0 if before is None else int.from_bytes(before, "big"))
            txn.put(key, after.to_bytes(SUM, "big"), db=stamps.buckets)
        if self._changed:
            with txn.cursor(stamps.changes) as cursor:
                last = _NUMBER.unpack(cursor.key())[0] if cursor.last() else 0
                for number, digest in enumerate(self._changed, last + 1):
                    cursor.put(_NUMBER.pack(number), digest, append=True)
                excess = int(txn.stat(stamps.changes)["entries"]) - CHANGES_KEPT
                if excess > 0 and cursor.first():
                    for _ in range(excess):
                        cursor.delete()


class _Stamped(Protocol):
    @property
    def stamps(self) -> RetainedStamps:
        """Returns the stamps of a store."""


class StampedTable:
    """What the core of replication reads of the stamps alone."""

    def __init__(self, store: _Stamped) -> None:
        self._stamps = store.stamps

    def head(self) -> int:
        return self._stamps.head()

    def changes_behind(self, number: int, most: int) -> tuple[int, list[bytes]] | None:
        return self._stamps.changes_behind(number, most)

    def sums(self) -> bytes:
        return self._stamps.sums()

    def entries(self, first: bytes, last: bytes, most: int) -> list[tuple[bytes, bytes, int]]:
        return self._stamps.entries(first, last, most)
