"""Retained messages of a node in a cluster: the store of one node, and what the other nodes need of it.

    worker, manager   update()    -> message and stamp in one transaction, number of the change -> rings link-0
    link-0            merge()     -> messages of other nodes that have the greater stamp
                      changes_behind(), rows(), sums(), entries()   what other nodes are to get, or to compare

A change of this node wins over what the store has: its id is raised by 1 µs above that, if it is not greater. So the ids of one
topic are a hybrid clock: a change that has seen another one has the greater id, whatever the clocks of their nodes show. A change
that a journal repeats after a restart is as old as it was, and counts only if it is still the greatest.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Publish, decode
from shardbroker.mqtt.spec import PropertyId
from shardbroker.mqtt.topics import check_topic_name
from shardbroker.stores.retained import (
    RetainedChange,
    RetainedDeletion,
    RetainedMessage,
    RetainedStore,
    RetainedStoreFull,
    decode_message,
    encode_message,
    is_expired,
    is_whole,
)
from shardbroker.stores.retained_stamps import (
    ID_HIGH_MAX,
    ROW_BYTES_MAX,
    TOMBSTONE_MS,
    Change,
    RetainedStamps,
    StampWriter,
    TopicState,
    digest_of,
    rows_within,
)

__all__ = [
    "BUILD_MESSAGES", "ROW_BYTES_MAX", "TOMBSTONE_MS", "ReplicatedStore", "checked_message", "deletion", "new_id", "retained_store",
]  # fmt: skip

REPEATED_MS = 1_000
"""Age from which a change of this node is one that the journal repeats: others are stored in the pass that takes them, or soon
after an answer of a hook."""
BUILD_MESSAGES = 500
"""Messages that are stamped in one transaction: some 10 ms, for which workers with retained messages wait."""
SWEPT = 1_000
"""Deletions forgotten in one transaction."""
SYS = b"$SYS/"
_ONE = (1).to_bytes(8, "little")
_NOT_STORED = frozenset((PropertyId.TOPIC_ALIAS, PropertyId.MESSAGE_EXPIRY_INTERVAL, PropertyId.SUBSCRIPTION_IDENTIFIER))
"""Properties of PUBLISH that no stored message has."""


def retained_store(topology: Any, *, bell: bool = True, **limits: int) -> RetainedStore:
    """Returns the store of a broker for one of its processes. bell: a change wakes link-0. Raises RetainedStoreRefused."""
    sync = topology.settings.durability.level == "machine"
    if not topology.links:
        return RetainedStore(topology.retained_dir, sync=sync, **limits)
    rung = topology.doorbells[topology.slot_of("link")] if bell else -1
    return ReplicatedStore(topology.retained_dir, sync=sync, bell=rung, **limits)


def deletion(topic: bytes) -> RetainedDeletion:
    """Returns a deletion of this moment that no client has asked for."""
    return RetainedDeletion(topic, new_id(), time.time_ns() // 1_000_000)


def new_id() -> bytes:
    """Returns the id of a change of this moment."""
    return (time.time_ns() // 1_000).to_bytes(8, "big") + os.urandom(8)


def _raised(id: bytes, above: bytes) -> bytes:
    """Returns the id, with a time that makes it greater than another one, as far as there is one that other nodes take."""
    if id > above:
        return id
    return min(int.from_bytes(above[:8], "big") + 1, ID_HIGH_MAX).to_bytes(8, "big") + id[8:]


class ReplicatedStore(RetainedStore):
    """The handle of one process. bell: eventfd of link-0, rung behind each transaction with changes of this node."""

    is_replicated = True
    _expired_at_once = 1_000

    def __init__(self, path: Path, *, bell: int = -1, **arguments: Any) -> None:
        self._bell = bell
        self._changed = False
        self.too_large = 0
        """Messages that rows() has left out for their size."""
        super().__init__(path, **arguments)

    def _begin_databases(self) -> None:
        self._are_current = RetainedStamps.are_current(self._env)

    def _end_databases(self) -> None:
        self.stamps = RetainedStamps(self._env)
        with self._env.begin(write=True) as txn:
            if not self._are_current:
                self.stamps.reset(txn)
            self.stamps.note(txn)

    # --- changes of this node ------------------------------------------------------------------------------------------

    def update(self, operations: Sequence[RetainedChange], worker: int = 0, mark: tuple[int, int] = (0, 0)) -> int:
        refused = super().update(operations, worker, mark)
        if self._changed:
            self._changed = False
            if self._bell >= 0:
                with suppress(BlockingIOError):  # full: link-0 is awake already
                    os.write(self._bell, _ONE)
        return refused

    def _apply(self, txn: lmdb.Transaction, operations: Sequence[RetainedChange]) -> int:
        refused = super()._apply(txn, [one for one in operations if _topic_of(one).startswith(SYS)])
        writer = StampWriter(self.stamps, txn)
        for operation in operations:
            topic = _topic_of(operation)
            if not topic.startswith(SYS):
                change = deletion(operation) if isinstance(operation, bytes) else operation
                refused += not self._apply_own(txn, writer, topic, change)
        writer.close()
        self.stamps.note(txn)
        return refused

    def _apply_own(
        self, txn: lmdb.Transaction, writer: StampWriter, topic: bytes, change: RetainedMessage | RetainedDeletion
    ) -> bool:
        """Returns whether the limits allow the change."""
        digest = digest_of(topic)
        db, key = self._place(topic)
        known, above = self._find(txn, digest, db, key)
        id = change.message_id
        if above is not None and id <= above:
            if change.created_ms - int.from_bytes(id[:8], "big") // 1_000 >= REPEATED_MS:
                return True
            id = _raised(id, above)
            if id <= above:
                return True
        if isinstance(change, RetainedMessage):
            value = encode_message(change._replace(message_id=id))
            if not self._may_store(txn, db, key, len(value)):
                return False
            txn.put(key, value, db=db)
            new = Change(id, TopicState.LIVE, 0, topic)
        else:
            txn.delete(key, db=db)
            new = Change(id, TopicState.DELETED, change.created_ms, topic)
        writer.put(digest, known, new, is_own=True)
        self._changed = True
        return True

    def _find(self, txn: lmdb.Transaction, digest: bytes, db: Any, key: bytes) -> tuple[Change | None, bytes | None]:
        """Returns the stamp of a topic, and the id of its newest change: that of its message if it is not stamped yet."""
        known = self.stamps.find(txn, digest)
        if known is not None:
            return known, known.id
        value: Any = txn.get(key, db=db)
        return None, None if value is None else decode_message(value).message_id

    def _note_expired(self, txn: lmdb.Transaction, value: bytes) -> None:
        message = decode_message(value)
        if not message.topic.startswith(SYS):
            writer, digest = StampWriter(self.stamps, txn), digest_of(message.topic)
            expired = Change(message.message_id, TopicState.DELETED, message.expires_ms, message.topic)
            writer.put(digest, self.stamps.find(txn, digest), expired)
            writer.close()
        self.stamps.note(txn)

    # --- messages of other nodes ---------------------------------------------------------------------------------------

    def check_row(self, row: bytes) -> RetainedMessage:
        """Returns the message of a row; one without a payload is a deletion. Raises ValueError."""
        if not is_whole(row):
            raise ValueError(f"retained message of {len(row)} bytes: must be whole")
        return checked_message(decode_message(row))

    def merge(self, rows: Sequence[bytes], now_ms: int, max_payload: int = 0) -> tuple[int, int]:
        """Takes messages of another node that are newer than what this one has, in one transaction.

        Returns how many were newer, and how many of these the limits refused. A refused one is deleted here, and not asked for
        again until the deletion is forgotten. Raises ValueError, RetainedStoreFull, RetainedStoreRefused.
        """
        messages = [self.check_row(row) for row in rows]
        newer = refused = 0
        with self._writing() as txn:
            writer = StampWriter(self.stamps, txn)
            for message, row in zip(messages, rows, strict=True):
                state = self._merge_one(txn, writer, message, row, now_ms, max_payload)
                newer += state is not None
                refused += state == TopicState.REFUSED
            writer.close()
            self.stamps.note(txn)
        return newer, refused

    def merge_each(self, rows: Sequence[bytes], now_ms: int, max_payload: int = 0) -> tuple[int, int]:
        """Does the same for rows that are too many for the map of the file: those that have no room are refused."""
        newer = refused = 0
        for row in rows:
            try:
                found = self.merge([row], now_ms, max_payload)
            except RetainedStoreFull:
                found = (1, 1)
            newer, refused = newer + found[0], refused + found[1]
        return newer, refused

    def _merge_one(
        self, txn: lmdb.Transaction, writer: StampWriter, message: RetainedMessage, row: bytes, now_ms: int, max_payload: int
    ) -> TopicState | None:
        digest = digest_of(message.topic)
        db, key = self._place(message.topic)
        known, above = self._find(txn, digest, db, key)
        if above is not None and message.message_id <= above:
            return None
        since_ms = 0
        if not message.payload:
            # A clock that is ahead must not keep a deletion for ever.
            state, since_ms = TopicState.DELETED, min(message.created_ms, now_ms)
        elif is_expired(row, now_ms):
            state, since_ms = TopicState.DELETED, message.expires_ms
        elif (max_payload and len(message.payload) > max_payload) or not self._may_store(txn, db, key, len(row)):
            state, since_ms = TopicState.REFUSED, now_ms
        else:
            state = TopicState.LIVE
        if state == TopicState.LIVE:
            txn.put(key, row, db=db)
        else:
            txn.delete(key, db=db)
        if state != TopicState.LIVE and since_ms <= now_ms - TOMBSTONE_MS:
            if known is not None:
                writer.forget(digest, known)
            return state if above is not None else None
        writer.put(digest, known, Change(message.message_id, state, since_ms, message.topic))
        return state

    # --- for other nodes -----------------------------------------------------------------------------------------------

    def rows(self, digests: Sequence[bytes], byte_limit: int) -> tuple[list[bytes], int]:
        """Returns what other nodes need of topics, as far as `byte_limit` has room, but one; and the number of topics covered."""
        with self._env.begin() as txn:
            rows = (self._row(txn, digest) for digest in digests)
            found, covered, too_large = rows_within(rows, byte_limit, ROW_BYTES_MAX)
        self.too_large += too_large
        return found, covered

    def _row(self, txn: lmdb.Transaction, digest: bytes) -> bytes | None:
        change = self.stamps.find(txn, digest)
        if change is None or change.state == TopicState.REFUSED:
            return None
        if change.state == TopicState.DELETED:
            return encode_message(RetainedMessage(change.topic, b"", 0, b"", change.id, change.since_ms, 0, b""))
        db, key = self._place(change.topic)
        value: Any = txn.get(key, db=db)
        return None if value is None else bytes(value)

    # --- upkeep --------------------------------------------------------------------------------------------------------

    @property
    def is_built(self) -> bool:
        """Returns whether all messages have their stamps."""
        with self._env.begin() as txn:
            return self.stamps.built(txn) is None

    def build(self) -> bool:
        """Stamps the next messages of a store that was written without stamps. Returns whether all have theirs."""
        with self._writing() as txn:
            place = self.stamps.built(txn)
            if place is None:
                return True
            number, key = place
            writer, left = StampWriter(self.stamps, txn), BUILD_MESSAGES
            with txn.cursor(self._dbs[number]) as cursor:
                more = cursor.set_range(key) if key else cursor.first()
                if more and key and cursor.key() == key:
                    more = cursor.next()
                while more and left:
                    self._stamp_message(txn, writer, cursor.value())
                    key, left = bytes(cursor.key()), left - 1
                    more = cursor.next()
            writer.close()
            if more:
                place = (number, key)
            else:
                place = (number + 1, b"") if number + 1 < len(self._dbs) else None
            self.stamps.set_built(txn, place)
            self.stamps.note(txn)
        return place is None

    def _stamp_message(self, txn: lmdb.Transaction, writer: StampWriter, value: bytes) -> None:
        message = decode_message(value)
        digest = digest_of(message.topic)
        if not message.topic.startswith(SYS) and self.stamps.find(txn, digest) is None:
            writer.put(digest, None, Change(message.message_id, TopicState.LIVE, 0, message.topic))

    def sweep(self, now_ms: int) -> int:
        """Forgets old deletions, a bounded number of them. Returns how many. Raises RetainedStoreRefused."""
        if not self.stamps.has_old(now_ms - TOMBSTONE_MS):
            return 0
        with self._writing() as txn:
            writer = StampWriter(self.stamps, txn)
            found = writer.forget_old(now_ms - TOMBSTONE_MS, SWEPT)
            writer.close()
            self.stamps.note(txn)
        return found


def checked_message(message: RetainedMessage) -> RetainedMessage:
    """Returns a message that this node may store. Raises ValueError."""
    try:
        check_topic_name(message.topic, 0)
        if message.properties:
            _check_properties(message.properties)
    except MqttError as error:
        raise ValueError(f"retained message: {error}") from None
    if message.topic.startswith(SYS) or message.qos > 2 or int.from_bytes(message.message_id[:8], "big") > ID_HIGH_MAX:
        raise ValueError("retained message: must be none of $SYS/, with a QoS and a time that exist")
    return message


def _topic_of(change: RetainedChange) -> bytes:
    return change if isinstance(change, bytes) else change.topic


def _check_properties(properties: bytes) -> None:
    """Raises MqttError unless these are properties of a stored PUBLISH."""
    body = b"\0\1t" + _varint(len(properties)) + properties
    found = decode(b"\x30" + _varint(len(body)) + body)
    if found is None or not isinstance(found[0], Publish) or _NOT_STORED & set(found[0].properties or ()):
        raise MqttError(0x82, "properties: must be those of a stored message")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
