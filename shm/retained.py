"""Retained messages: one LMDB environment on disk that every worker reads and writes.

    db "topics"   topic, levels joined by NUL          -> message
    db "long"     prefix of whole levels | FF digest   -> message        topics longer than an LMDB key

    message: expires_ms u64 | created_ms u64 | id 16 bytes | qos u8 | sizes u32: topic, client id, properties, payload
             | topic | client id | properties | payload                                       little endian

NUL sorts before everything else, so the keys are ordered level by level, and a wildcard filter seeks: past a level that cannot
match, to the next one that can. A scan holds no transaction between calls: its cursor is the last key it looked at.
"""

import os
import struct
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from shm.routes import matches

__all__ = ["RetainedMessage", "RetainedStore"]

KEY_MAX = 511
DIGEST = 16
LONG_MARK = b"\xff"
MAP_BYTES = 64 << 30
"""Virtual size; the file takes what the messages take."""
VISITS = 4096
"""Keys looked at in one call of scan(): bounds how long a worker's loop is kept."""
READERS = 1024

_HEADER = struct.Struct("<QQ16sBIIII")


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


Cursor = tuple[int, bytes]
"""Where a scan goes on: number of the database, last key looked at."""


class RetainedStore:
    """One process's handle. A damaged file is set aside (`set_aside` names it) and an empty one takes its place."""

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES, max_messages: int = 0) -> None:
        self.set_aside: Path | None = None
        self._max_messages = max_messages
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._open(path, map_bytes)
        except lmdb.Error as error:
            if not isinstance(error, lmdb.InvalidError | lmdb.CorruptedError | lmdb.VersionMismatchError):
                raise
            self.set_aside = path.with_name(f"{path.name}.bad-{time.time_ns() // 1_000_000}")
            os.rename(path, self.set_aside)
            path.mkdir(mode=0o700)
            self._open(path, map_bytes)

    def _open(self, path: Path, map_bytes: int) -> None:
        self._env: Any = lmdb.open(
            str(path), map_size=map_bytes, max_dbs=2, max_readers=READERS, sync=False, metasync=False, mode=0o600
        )
        self._env.reader_check()
        self._dbs = (self._env.open_db(b"topics"), self._env.open_db(b"long"))

    def close(self) -> None:
        self._env.close()

    def update(self, operations: list["RetainedMessage | bytes"]) -> int:
        """In order and in one transaction: a message replaces its topic's, a bare topic deletes it.

        Returns how many messages were refused because max_messages are there.
        """
        refused = 0
        with self._env.begin(write=True) as txn:
            for operation in operations:
                if isinstance(operation, bytes):
                    db, key = self._place(operation)
                    txn.delete(key, db=db)
                    continue
                db, key = self._place(operation.topic)
                if self._max_messages and self._entries(txn) >= self._max_messages and txn.get(key, db=db) is None:
                    refused += 1
                    continue
                txn.put(key, _encode(operation), db=db)
        return refused

    def get(self, topic: bytes) -> RetainedMessage | None:
        """The message of a topic, expired or not; None if there is none."""
        db, key = self._place(topic)
        with self._env.begin() as txn:
            value = txn.get(key, db=db)
            return None if value is None else _decode(value)

    def count(self) -> int:
        """Messages in the store, expired ones included until they are cleared."""
        with self._env.begin() as txn:
            return self._entries(txn)

    def scan(
        self, filter: bytes, after: Cursor | None, limit: int, byte_limit: int, now_ms: int
    ) -> tuple[list[RetainedMessage], Cursor | None]:
        """The next messages that match: at most `limit`, and no more once they hold `byte_limit` bytes.

        The cursor is what `after` is to be next time, or None at the end.
        """
        found: list[RetainedMessage] = []
        number, start = after if after is not None else (0, None)
        room = byte_limit
        visits = VISITS
        levels = filter.split(b"/")
        with self._env.begin() as txn:
            while number < len(self._dbs):
                with txn.cursor(self._dbs[number]) as cursor:
                    more = self._seek_first(cursor, levels, start)
                    while more:
                        key = cursor.key()
                        visits -= 1
                        match, target = _judge(levels, key) if number == 0 else self._judge_long(filter, cursor)
                        if match:
                            message = _decode(cursor.value())
                            if not message.expires_ms or message.expires_ms > now_ms:
                                found.append(message)
                                room -= len(message.payload) + len(message.topic)
                        if len(found) >= limit or room <= 0 or visits <= 0:
                            return found, (number, key)
                        if target is None:
                            more = cursor.next()
                        else:
                            more = target != b"" and cursor.set_range(target)
                number, start = number + 1, None
        return found, None

    @staticmethod
    def _seek_first(cursor: Any, levels: list[bytes], after: bytes | None) -> bool:
        if after is not None:
            found = cursor.set_range(after)
            return bool(cursor.next()) if found and cursor.key() == after else bool(found)
        literal = []
        for level in levels:
            if level in (b"+", b"#"):
                break
            literal.append(level)
        return bool(cursor.set_range(b"\0".join(literal)[:KEY_MAX]) if literal and literal[0] else cursor.first())

    @staticmethod
    def _judge_long(filter: bytes, cursor: Any) -> tuple[bool, bytes | None]:
        return matches(filter, _decode(cursor.value()).topic), None

    def clear_expired(self, now_ms: int, limit: int) -> int:
        """Deletes up to `limit` expired messages; returns how many."""
        removed = 0
        with self._env.begin(write=True) as txn:
            for db in self._dbs:
                with txn.cursor(db) as cursor:
                    more = cursor.first()
                    while more and removed < limit:
                        expires_ms = _HEADER.unpack_from(cursor.value())[0]
                        if expires_ms and expires_ms <= now_ms:
                            removed += 1
                            more = cursor.delete()
                        else:
                            more = cursor.next()
        return removed

    def _entries(self, txn: Any) -> int:
        return sum(txn.stat(db)["entries"] for db in self._dbs)

    def _place(self, topic: bytes) -> tuple[Any, bytes]:
        key = topic.replace(b"/", b"\0")
        if len(key) <= KEY_MAX:
            return self._dbs[0], key
        cut = key.rfind(b"\0", 0, KEY_MAX - DIGEST - 1)
        return self._dbs[1], key[: cut + 1] + LONG_MARK + blake2b(topic, digest_size=DIGEST).digest()


def _judge(levels: list[bytes], key: bytes) -> tuple[bool, bytes | None]:
    """Whether a key matches, and where to seek next: None is the next key, b"" is the end."""
    words = key.split(b"\0")
    if key.startswith(b"$") and levels[0] in (b"+", b"#"):
        return False, b"%"  # "%" follows "$": the broker's own topics are passed over at once [MQTT-4.7.2-1]
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


def _encode(message: RetainedMessage) -> bytes:
    return b"".join(
        (
            _HEADER.pack(
                message.expires_ms,
                message.created_ms,
                message.message_id,
                message.qos,
                len(message.topic),
                len(message.client_id),
                len(message.properties),
                len(message.payload),
            ),
            message.topic,
            message.client_id,
            message.properties,
            message.payload,
        )
    )


def _decode(value: bytes) -> RetainedMessage:
    expires_ms, created_ms, message_id, qos, a, b, c, d = _HEADER.unpack_from(value)
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
