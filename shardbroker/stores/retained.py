"""Retained messages: one LMDB environment on disk that every worker reads and writes.

    db "topics"   topic, levels joined by NUL          -> message
    db "long"     prefix of whole levels | FF digest   -> message        topics longer than an LMDB key
    db "marks"    worker u16                           -> mark u64 u64   with syncs only: which of its journal's changes are in it

    message: expires_ms u64 | created_ms u64 | id 16 bytes | qos u8 | sizes u32: topic, client id, properties, payload
             | CRC-32 u32 of all but itself | topic | client id | properties | payload             little endian

NUL sorts before all other bytes, so the keys are ordered level by level. A wildcard filter can thus seek past a level that cannot
match, to the next one that can. A scan holds no transaction between calls: its cursor is the last key that it visited.

Without syncs the file survives the kill of any process (page cache), but not always a crash of the machine. So each process checks
it when opening it, one at a time under a lock beside the directory. An unreadable file is renamed, and an empty one replaces it.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import lmdb

from shardbroker.mqtt.topics import matches
from shardbroker.stores.files import sync_path
from shm.keys import DIGEST, KEY_MAX, LONG_MARK, levels_key_of

__all__ = [
    "Cursor",
    "Mark",
    "RetainedChange",
    "RetainedDeletion",
    "RetainedMessage",
    "RetainedStore",
    "RetainedStoreFull",
    "RetainedStoreRefused",
    "decode_message",
    "encode_message",
    "is_expired",
    "is_whole",
    "read_whole",
]

MAP_BYTES = 64 << 30
"""Virtual size of the map; the file takes as much as the messages take."""
SYS = b"$SYS\0"
"""Prefix of the keys of the broker's own messages: some dozens, to which no limit applies."""
VISITS = 1000
"""Keys visited in one call of scan(): about 4 ms, which block the worker's loop."""
BYTES_A_VISIT = 65536
"""Bytes of values that take as long to copy as one key takes to visit."""
SWEEP_VISITS = 10_000
"""Messages visited in one call of clear_expired(): about 10 ms of reading, without a lock."""
READERS = 1024
DATABASES = 8
"""Most databases of the environment: those above, and those of a node in a cluster (retained_stamps.py)."""

_DAMAGED = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError, lmdb.IncompatibleError)
_NAMED_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
_HEADER = struct.Struct("<QQ16sBIIIII")
_SUM_END = _HEADER.size
"""The checksum is the last field of the header."""
_MARK_KEY, _MARK = struct.Struct("<H"), struct.Struct("<QQ")


class RetainedMessage(NamedTuple):
    """A retained message: times in Unix ms (expires_ms 0: never), message id 16 bytes, properties as encoded in PUBLISH."""

    topic: bytes
    payload: bytes
    qos: int
    properties: bytes
    message_id: bytes
    created_ms: int
    expires_ms: int
    client_id: bytes


class RetainedDeletion(NamedTuple):
    """The deletion of the message of a topic, on a node of a cluster: it has an id, as a message has."""

    topic: bytes
    message_id: bytes
    created_ms: int


RetainedChange = RetainedMessage | RetainedDeletion | bytes
"""A message, or its deletion. A bare topic is a deletion, too."""

Cursor = tuple[int, bytes]
"""The position at which a scan continues: number of the database, last key visited."""


Mark = tuple[int, int]
"""Incarnation of a worker's journal, number of its last change that is in the store."""


class RetainedStoreFull(Exception):
    """The map is full; nothing of the transaction was stored."""


class RetainedStoreRefused(Exception):
    """The disk refuses writes: it is full, read-only or broken. Nothing of the batch was stored; `number` is an errno."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class RetainedStore:
    """The handle of one process. A damaged file is set aside (`set_aside` is its new path), and an empty one replaces it.

    Raises RetainedStoreRefused if the store cannot be opened.
    sync: a change is on the disk when update() returns. All processes must use the same value.
    max_messages and max_bytes (whole pages that the messages take in the file) limit the store; 0: no limit.
    """

    is_replicated = False
    """Whether deletions need an id: other nodes have the messages too."""
    _expired_at_once = SWEEP_VISITS
    """Expired messages deleted in one transaction, which keeps other writers waiting."""

    def __init__(
        self, path: Path, *, map_bytes: int = MAP_BYTES, max_messages: int = 0, max_bytes: int = 0, sync: bool = False
    ) -> None:
        self._path = path
        self._map_bytes = map_bytes
        self.set_aside: Path | None = None
        self.max_messages = max_messages
        """This limit and the next may be changed at any time."""
        self.max_bytes = max_bytes
        self._swept: Cursor | None = None
        self._sync = sync
        with _opening(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._open(path, map_bytes)
            except lmdb.Error as error:
                if not isinstance(error, _DAMAGED):
                    raise RetainedStoreRefused(f"retained store {path}: {error}", self._errno_of(error)) from error
                self.set_aside = path.with_name(f"{path.name}.bad-{time.time_ns() // 1_000_000}")
                os.rename(path, self.set_aside)
                path.mkdir(mode=0o700)
                self._open(path, map_bytes)

    def _open(self, path: Path, map_bytes: int) -> None:
        self._env = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=DATABASES, max_readers=READERS, sync=self._sync, metasync=self._sync, mode=0o600
        )
        try:
            self._env.reader_check()
            was_short = self._lengthen(path / "data.mdb")
            self._begin_databases()
            self._dbs: tuple[Any, Any] = (self._env.open_db(b"topics"), self._env.open_db(b"long"))
            self._marks = self._env.open_db(b"marks") if self._sync else None
            if was_short:
                self.verify()
            self._end_databases()
            if self._sync:
                self._sync_all(path)
        except BaseException:
            self._env.close()
            raise

    def _begin_databases(self) -> None:
        """Looks at the environment before a database is created."""

    def _end_databases(self) -> None:
        """Opens further databases."""

    def _sync_all(self, path: Path) -> None:
        """Syncs changes that were made without syncs, and the names of the files."""
        self._env.sync(True)
        for directory in (path, path.parent, path.parent.parent):
            sync_path(directory)

    def _lengthen(self, file: Path) -> bool:
        """Extends the file to the size that its newest root requires; returns whether it was shorter.

        Free pages at the end may never have been written, so a short file is not necessarily damaged. But a read beyond its end
        would raise SIGBUS, whereas a page of zeros is an error that can be caught.
        """
        with self._env.begin(write=True):  # keeps other processes from extending it meanwhile
            needed = (int(self._env.info()["last_pgno"]) + 1) * int(self._env.stat()["psize"])
            if file.stat().st_size >= needed:
                return False
            os.truncate(file, needed)
            return True

    def verify(self) -> None:
        """Reads all messages. Raises lmdb.Error."""
        with self._env.begin() as txn:
            for db in self._dbs:
                count, entries = 0, txn.stat(db)["entries"]
                with txn.cursor(db) as cursor:
                    for key, value in cursor.iternext():
                        count += 1
                        if not self._is_sound(db, key, value):
                            raise lmdb.CorruptedError(f"retained message {key!r} is damaged")
                        if count > entries:
                            break  # a damaged page may lead to an endless loop
                if count != entries:
                    raise lmdb.CorruptedError(f"there are {count} retained messages, and should be {entries}")

    def whole_messages(self, backwards: bool) -> Iterator[RetainedMessage]:
        """Yields the messages of a damaged store that can be read, up to the first error of each database."""
        with self._env.begin() as txn:
            for db in self._dbs:
                entries = txn.stat(db)["entries"]
                with suppress(lmdb.Error), txn.cursor(db) as cursor:
                    for number, (key, value) in enumerate(cursor.iterprev() if backwards else cursor.iternext()):
                        if number > entries:
                            break
                        if self._is_sound(db, key, value):
                            yield decode_message(value)

    def copy_to(self, descriptor: int) -> None:
        """Copies all used pages; LMDB checks their number against that of the free ones. Raises lmdb.Error."""
        self._env.copyfd(descriptor, compact=True)

    def _is_sound(self, db: Any, key: bytes, value: bytes) -> bool:
        return is_whole(value) and self._place(decode_message(value).topic) == (db, key)

    def __enter__(self) -> "RetainedStore":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the store; every other method is an error from then on."""
        self._env.close()

    def update(self, operations: Sequence[RetainedChange], worker: int = 0, mark: Mark = (0, 0)) -> int:
        """Applies operations in order, in one transaction if it has room, with a mark of this worker.

        A message replaces the one of its topic; a bare topic deletes it. Returns the number of messages that max_messages,
        max_bytes or a full map refused. All that the map has room for, deletions above all, is done. Raises RetainedStoreRefused.
        """
        try:
            return self._update(operations, worker, mark)
        except RetainedStoreFull:
            refused = self._update_in_parts(operations)
        try:
            self._update((), worker, mark)
        except RetainedStoreFull as error:
            raise RetainedStoreRefused(str(error), errno.ENOSPC) from None
        return refused

    def _update_in_parts(self, operations: Sequence[RetainedChange]) -> int:
        """Applies operations that are too many for one transaction, by halves, until each single one is stored or refused."""
        if len(operations) == 1:
            if not isinstance(operations[0], RetainedMessage):  # an error makes the caller retry: a deletion must not be lost
                raise RetainedStoreRefused(f"retained store {self._path} has no room in its map to delete in", errno.ENOSPC)
            return 1
        refused, half = 0, len(operations) // 2
        for part in (operations[:half], operations[half:]):
            try:
                refused += self._update(part)
            except RetainedStoreFull:
                refused += self._update_in_parts(part)
        return refused

    def _update(self, operations: Sequence[RetainedChange], worker: int = 0, mark: Mark = (0, 0)) -> int:
        """Applies all operations or none. Raises RetainedStoreFull, RetainedStoreRefused."""
        with self._writing() as txn:
            refused = self._apply(txn, operations)
            if mark[1]:
                txn.put(_MARK_KEY.pack(worker), _MARK.pack(*mark), db=self._marks)
        return refused

    def _apply(self, txn: lmdb.Transaction, operations: Sequence[RetainedChange]) -> int:
        """Applies changes; returns the number of messages that the limits refused."""
        refused = 0
        for operation in operations:
            if not isinstance(operation, RetainedMessage):
                db, key = self._place(operation if isinstance(operation, bytes) else operation.topic)
                txn.delete(key, db=db)
                continue
            db, key = self._place(operation.topic)
            value = encode_message(operation)
            if self._may_store(txn, db, key, len(value)):
                txn.put(key, value, db=db)
            else:
                refused += 1
        return refused

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        """Opens a write transaction. Raises RetainedStoreFull, RetainedStoreRefused."""
        try:
            with self._env.begin(write=True) as txn:
                yield txn
        except lmdb.MapFullError as error:
            raise RetainedStoreFull(f"retained store {self._path} has no room in its map: {error}") from error
        except lmdb.Error as error:
            self._reopen_if_broken()
            raise RetainedStoreRefused(f"retained store {self._path}: {error}", self._errno_of(error)) from error

    def _reopen_if_broken(self) -> None:
        """Opens the environment again if it is unusable: a failed write of its first pages breaks it, though the file is sound.

        With syncs another thread may read it. The environment is kept then, and writes are refused until the process restarts.
        """
        if self._sync:
            return
        try:
            self._env.begin().abort()
        except lmdb.PanicError:
            self._env.close()
            self._open(self._path, self._map_bytes)

    def _errno_of(self, error: Exception) -> int:
        """Returns the errno of a failed write: LMDB reports EIO when a full disk took only part of the data."""
        with suppress(OSError):
            if os.statvfs(self._path).f_bavail == 0:
                return errno.ENOSPC
        return next((number for number in _NAMED_ERRNOS if os.strerror(number) in str(error)), errno.EIO)

    def mark(self, worker: int) -> Mark:
        """Returns the last mark of this worker, or (0, 0). With syncs only."""
        with self._env.begin(db=self._marks) as txn:
            value = txn.get(_MARK_KEY.pack(worker))
        return (0, 0) if value is None else _MARK.unpack(value)

    def _may_store(self, txn: lmdb.Transaction, db: Any, key: bytes, size: int) -> bool:
        """Returns whether the limits allow a message. One no larger than the message that it replaces is always allowed."""
        if key.startswith(SYS):
            return True
        entries = self._entries(txn)
        too_many = 0 < self.max_messages <= entries and self.max_messages <= entries - self._sys_entries(txn)
        too_large = self.max_bytes and self._bytes(txn) + size > self.max_bytes
        if not too_many and not too_large:
            return True
        old = txn.get(key, db=db)
        return old is not None and (not too_large or size <= len(old))

    def get(self, topic: bytes) -> RetainedMessage | None:
        """Returns the message of a topic, expired or not, or None."""
        db, key = self._place(topic)
        with self._env.begin() as txn:
            value = txn.get(key, db=db)
            return None if value is None else decode_message(value)

    def count(self) -> int:
        """Returns the number of clients' messages, with expired ones until they are cleared, without the broker's own (`$SYS/`)."""
        with self._env.begin() as txn:
            return self._entries(txn) - self._sys_entries(txn)

    def holds_only_sys(self) -> bool:
        """Returns whether there are no messages but those below $SYS/: then most subscriptions need no scan."""
        with self._env.begin() as txn:
            if any(txn.stat(db)["entries"] for db in self._dbs[1:]):
                return False
            with txn.cursor(self._dbs[0]) as cursor:
                # Keys are sorted: if the first and the last are below $SYS/, so are all between them.
                return not cursor.first() or (
                    bytes(cursor.key()).startswith(SYS) and cursor.last() and bytes(cursor.key()).startswith(SYS)
                )

    def scan(
        self, filter: bytes, after: Cursor | None, limit: int, byte_limit: int, now_ms: int
    ) -> tuple[list[RetainedMessage], Cursor | None]:
        """Returns the next messages that match: at most `limit`, and no more once they have `byte_limit` bytes.

        The cursor is `after` for the next call, or None at the end. A call visits VISITS keys at most, so it may find nothing
        before the end. Messages that are added or removed between calls may be missing; all others are found once.
        """
        found: list[RetainedMessage] = []
        number, start = after if after is not None else (0, None)
        if limit <= 0:
            return found, (number, start or b"")
        if b"+" not in filter and b"#" not in filter:
            message = self.get(filter)
            if message is not None and not 0 < message.expires_ms <= now_ms:
                found.append(message)
            return found, None
        visits = VISITS
        levels = filter.split(b"/")
        with self._env.begin() as txn:
            while number < len(self._dbs):
                with txn.cursor(self._dbs[number]) as cursor:
                    more = _seek_first(cursor, levels) if start is None else _seek_behind(cursor, start)
                    while more:
                        key = bytes(cursor.key())
                        match, target = _judge(levels, key) if number == 0 else _judge_long(levels, filter, cursor)
                        # A visited value is copied: always for a long topic, which is needed to match, else if it matches.
                        visits -= 1 + (len(cursor.value()) // BYTES_A_VISIT if match or number else 0)
                        if match and not is_expired(cursor.value(), now_ms):
                            found.append(decode_message(cursor.value()))
                            limit -= 1
                            byte_limit -= len(cursor.value())
                        if limit <= 0 or byte_limit <= 0 or visits <= 0:
                            return found, (number, key)
                        # A target is cut to the size of a key, and may then not be ahead of the cursor.
                        if target == b"":
                            more = False
                        else:
                            more = cursor.next() if target is None or target <= key else cursor.set_range(target)
                number, start = number + 1, None
        return found, None

    def clear_expired(self, now_ms: int, limit: int) -> int:
        """Deletes up to `limit` expired messages and returns their number. To be called periodically.

        One call visits SWEEP_VISITS messages at most; the next one continues there, and after the end from the start.
        Raises RetainedStoreRefused.
        """
        expired, self._swept = self._find_expired(now_ms, limit)
        removed = 0
        for start in range(0, len(expired), self._expired_at_once):
            with self._writing() as txn:
                for number, key in expired[start : start + self._expired_at_once]:
                    value = txn.get(key, db=self._dbs[number])
                    # The message may have been replaced since it was found.
                    if value is not None and is_expired(value, now_ms) and txn.delete(key, db=self._dbs[number]):
                        self._note_expired(txn, value)
                        removed += 1
        return removed

    def _note_expired(self, txn: lmdb.Transaction, value: bytes) -> None:
        """Takes a message that has been deleted since it has expired."""

    def _find_expired(self, now_ms: int, limit: int) -> tuple[list[Cursor], Cursor | None]:
        found: list[Cursor] = []
        number, start = self._swept or (0, None)
        visits = SWEEP_VISITS
        with self._env.begin(buffers=True) as txn:
            while number < len(self._dbs):
                with txn.cursor(self._dbs[number]) as cursor:
                    more = cursor.first() if start is None else _seek_behind(cursor, start)
                    while more:
                        key = bytes(cursor.key())
                        if is_expired(cursor.value(), now_ms):
                            found.append((number, key))
                        visits -= 1
                        if visits <= 0 or len(found) >= limit:
                            return found, (number, key)
                        more = cursor.next()
                number, start = number + 1, None
        return found, None

    def _sys_entries(self, txn: lmdb.Transaction) -> int:
        with txn.cursor(self._dbs[0]) as cursor:
            keys = cursor.iternext(keys=True, values=False) if cursor.set_range(SYS) else ()
            return sum(1 for _ in takewhile(lambda key: bytes(key).startswith(SYS), keys))

    def _entries(self, txn: lmdb.Transaction) -> int:
        return sum(int(txn.stat(db)["entries"]) for db in self._dbs)

    def _bytes(self, txn: lmdb.Transaction) -> int:
        stats = [txn.stat(db) for db in self._dbs]
        return sum((one["branch_pages"] + one["leaf_pages"] + one["overflow_pages"]) * one["psize"] for one in stats)

    def _place(self, topic: bytes) -> tuple[Any, bytes]:
        """Returns the database and the key of a topic."""
        key = topic.replace(b"/", b"\0")
        if len(key) <= KEY_MAX:
            return self._dbs[0], key
        return self._dbs[1], levels_key_of(key, topic)


def read_whole(path: Path, map_bytes: int) -> RetainedStore:
    """Opens a store that may be damaged, without changing it. Raises lmdb.Error."""
    store = RetainedStore.__new__(RetainedStore)
    store._sync = False
    store._open(path, map_bytes)
    return store


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Lets one process in at a time, so that a damaged file is set aside once. The lock ends with the process that holds it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _seek_first(cursor: Any, levels: list[bytes]) -> bool:
    """Moves to the first key that may match."""
    literal = []
    for level in levels:
        if level in (b"+", b"#"):
            break
        literal.append(level)
    target = b"\0".join(literal)[:KEY_MAX]
    return bool(cursor.set_range(target) if target else cursor.first())


def _seek_behind(cursor: Any, after: bytes) -> bool:
    """Moves to the first key after `after`, whether `after` still exists or not."""
    found = bool(cursor.set_range(after) if after else cursor.first())
    return bool(cursor.next()) if found and cursor.key() == after else found


def _judge_long(levels: list[bytes], filter: bytes, cursor: Any) -> tuple[bool, bytes | None]:
    """Does the same for a long topic. It seeks only past the last first level: long topics are few."""
    key = bytes(cursor.key())
    if levels[0] not in (b"+", b"#") and not key.startswith(LONG_MARK) and key.partition(b"\0")[0] > levels[0]:
        # Topics whose first level alone is too long for a key are the last, all after the mark.
        return False, LONG_MARK if len(levels[0]) > KEY_MAX - DIGEST - 2 else b""
    return matches(filter, decode_message(cursor.value()).topic), None


def _judge(levels: list[bytes], key: bytes) -> tuple[bool, bytes | None]:
    """Returns whether a key matches, and where to seek next: None is the next key, b"" is the end."""
    words = key.split(b"\0")
    if key.startswith(b"$") and levels[0] in (b"+", b"#"):
        return False, b"%"  # "%" follows "$": skips the broker's own topics [MQTT-4.7.2-1]
    last_plus = -1
    for i, level in enumerate(levels):
        if level == b"#":
            return True, None
        if i == len(words):
            return False, None
        if level == b"+":
            last_plus = i
        elif words[i] < level:
            return False, b"\0".join([*words[:i], level])[:KEY_MAX]
        elif words[i] > level:
            if last_plus < 0:
                return False, b""
            return False, b"\0".join(words[: last_plus + 1]) + b"\1"
    if len(words) > len(levels):
        return False, b"\0".join(words[: len(levels)]) + b"\1"
    return True, None


def is_expired(value: Any, now_ms: int) -> bool:
    """Returns whether the message of a value has expired."""
    expires_ms: int = _HEADER.unpack_from(value)[0]
    return 0 < expires_ms <= now_ms


def is_whole(value: bytes) -> bool:
    """Returns whether a value has the size that its header announces, and the right checksum."""
    if len(value) < _HEADER.size:
        return False
    *_, a, b, c, d, checksum = _HEADER.unpack_from(value)
    size: int = _HEADER.size + a + b + c + d
    return len(value) == size and crc32(value[_SUM_END:], crc32(value[: _SUM_END - 4])) == int(checksum)


def encode_message(message: RetainedMessage) -> bytes:
    """Returns a message as the store has it."""
    texts = (message.topic, message.client_id, message.properties, message.payload)
    header = _HEADER.pack(message.expires_ms, message.created_ms, message.message_id, message.qos, *map(len, texts), 0)[:-4]
    body = b"".join(texts)
    return b"".join((header, crc32(body, crc32(header)).to_bytes(4, "little"), body))


def decode_message(value: bytes) -> RetainedMessage:
    """Returns the message of a value that is whole."""
    expires_ms, created_ms, message_id, qos, a, b, c, d, _ = _HEADER.unpack_from(value)
    start = _HEADER.size
    return RetainedMessage(
        topic=value[start : start + a],
        client_id=value[start + a : start + a + b],
        properties=value[start + a + b : start + a + b + c],
        payload=value[start + a + b + c : start + a + b + c + d],
        qos=qos,
        message_id=message_id,
        created_ms=created_ms,
        expires_ms=expires_ms,
    )
