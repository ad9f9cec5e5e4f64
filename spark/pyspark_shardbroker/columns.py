"""Table `journal`: its columns, version 1, and how each is made of decoded records. Documented in docs/spark.md.

A column is made only if it is wanted. New columns may come in a later version; those that are here keep name, type and meaning.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_shardbroker.decode import Records, as_text
from pyspark_shardbroker.properties import decode_properties
from pyspark_shardbroker.records import KINDS, PACKETS, REASONS
from pyspark_shardbroker.slow_cbor import BYTES, UINT

__all__ = ["JOURNAL", "JOURNAL_VERSION", "Context", "build"]

JOURNAL_VERSION = 1
_TIME = pa.timestamp("us", tz="UTC")
_HEX = np.array([int.from_bytes(f"{byte:02x}".encode(), "little") for byte in range(256)], "<u2")
_PAIRS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())]))
_PEER, _USERNAME, _KEEPALIVE, _LISTENER, _RECEIVE_MAXIMUM = 1, 2, 3, 4, 5


@dataclass
class Context:
    """What a record itself does not say."""

    worker: int
    node: int
    names: Mapping[int, bytes]
    """Client ids of sessions."""


Maker = Callable[[Records, Context], pa.Array]


def _constant(value: int, type: pa.DataType) -> pa.Array:
    return pa.array([value], type)


def _time(records: Records, _: Context) -> pa.Array:
    return pa.array(records.time_us, pa.int64()).cast(_TIME)


def _type(records: Records, _: Context) -> pa.Array:
    names = pa.array([KINDS.get(number, f"kind_{number}") for number in range(24)], pa.string())
    return names.take(pa.array(records.kinds))


def _ids(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """Message ids as rows of 16 bytes, and which records have one."""
    found: tuple[np.ndarray, np.ndarray] = records.once("ids", _find_ids)
    return found


def _find_ids(records: Records) -> tuple[np.ndarray, np.ndarray]:
    head, value, start = records.field("id")
    valid = (head == BYTES) & (value == 16)
    at = np.where(valid, start, 0)
    rows = np.ndarray((max(len(records.data) - 15, 0), 16), np.uint8, records.data.data, 0, (1, 1))
    return np.ascontiguousarray(rows[at]), valid


def _message_id(records: Records, _: Context) -> pa.Array:
    rows, valid = _ids(records)
    offsets = np.arange(0, 16 * len(rows) + 1, 16, dtype=np.int32)
    return _masked(pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)]), valid)


def _message_id_text(records: Records, _: Context) -> pa.Array:
    rows, valid = _ids(records)
    offsets = np.arange(0, 32 * len(rows) + 1, 32, dtype=np.int32)
    text = pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(_HEX[rows])])
    return _masked(text, valid)


def _masked(array: pa.Array, valid: np.ndarray) -> pa.Array:
    return array if valid.all() else pc.if_else(pa.array(valid), array, pa.scalar(None, array.type))


def _stamps(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """When a message came in, and which records say so."""

    def find(_: Records) -> tuple[np.ndarray, np.ndarray]:
        rows, valid = _ids(records)
        stamps = rows.view(">u8")[:, 0].astype(np.int64)
        return stamps, valid & (stamps > 0)

    found: tuple[np.ndarray, np.ndarray] = records.once("stamps", find)
    return found


def _published(records: Records, _: Context) -> pa.Array:
    stamps, valid = _stamps(records)
    return pa.array(stamps, pa.int64(), mask=None if valid.all() else ~valid).cast(_TIME)


def _latency(records: Records, _: Context) -> pa.Array:
    """Of what happened to a message after it was published."""
    stamps, valid = _stamps(records)
    return pa.array(records.time_us - stamps, pa.int64(), mask=~(valid & (records.kinds != 1)))


def _client_id(records: Records, context: Context) -> pa.Array:
    head, value, _ = records.field("session")
    of_session = head == UINT
    publisher = records.text("publisher")
    if not of_session.any():
        return publisher
    sessions = pa.array(value, pa.uint64(), mask=~of_session).dictionary_encode()
    names = [context.names.get(number) for number in sessions.dictionary.to_pylist()]
    texts = pa.array([None if name is None else name.decode(errors="replace") for name in names], pa.string())
    return pc.coalesce(publisher, texts.take(sessions.indices))


def _of_dictionary(encoded: pa.DictionaryArray, make: Callable[[bytes], Any], type: pa.DataType) -> pa.Array:
    """A value made of each different byte string."""
    if encoded.null_count == len(encoded):
        return pa.nulls(len(encoded), type)
    return pa.array([make(one) for one in encoded.dictionary.to_pylist()], type).take(encoded.indices)


def _levels(records: Records, _: Context) -> pa.Array:
    encoded = records.encoded("topic")
    return pc.split_pattern(as_text(encoded.dictionary), "/").take(encoded.indices)


def _properties(records: Records, _: Context) -> pa.Array:
    return _of_dictionary(records.encoded("properties"), lambda one: decode_properties(one)[0], pa.map_(pa.string(), pa.string()))


def _user_properties(records: Records, _: Context) -> pa.Array:
    def pairs(encoded: bytes) -> list[dict[str, str]]:
        return [{"name": name, "value": value} for name, value in decode_properties(encoded)[1]]

    return _of_dictionary(records.encoded("properties"), pairs, _PAIRS)


def _qos(records: Records, _: Context) -> pa.Array:
    head, value, _start = records.field("flags")
    return pa.array((value & np.uint64(3)).astype(np.int8), mask=None if (head == UINT).all() else head != UINT)


def _flag(bit: int) -> Maker:
    return lambda records, _: records.flag(bit)


def _number(name: str, type: pa.DataType) -> Maker:
    return lambda records, _: records.numbers(name, type)


def _string(name: str) -> Maker:
    return lambda records, _: records.text(name)


def _expires(records: Records, _: Context) -> pa.Array:
    """Null if never."""
    head, value, _start = records.field("expires_ms")
    valid = (head == UINT) & (value > 0) & (value < 1 << 50)
    return pa.array(np.where(valid, value, 0).astype(np.int64) * 1000, mask=~valid).cast(_TIME)


def _when(name: str) -> Maker:
    def make(records: Records, _: Context) -> pa.Array:
        head, value, _start = records.field(name)
        valid = (head == UINT) & (value < 1 << 50)
        return pa.array(np.where(valid, value, 0).astype(np.int64) * 1000, mask=~valid).cast(_TIME)

    return make


def _packet(records: Records, _: Context) -> pa.Array:
    return _named(records, "packet", {kind: PACKETS for kind in KINDS})


def _reason_text(records: Records, _: Context) -> pa.Array:
    return _named(records, "reason", REASONS)


def _named(records: Records, name: str, names: Mapping[int, Mapping[int, str]]) -> pa.Array:
    head, value, _ = records.field(name)
    if not (head == UINT).any():
        return pa.nulls(len(records), pa.string())
    both = pa.array(records.kinds.astype(np.uint32) << 8 | value.astype(np.uint32) & 255, mask=head != UINT).dictionary_encode()
    texts = [names.get(one >> 8, {}).get(one & 255) for one in both.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(both.indices)


def _detail(key: int, type: pa.DataType) -> Maker:
    def make(records: Records, _: Context) -> pa.Array:
        if not records.maps:
            return pa.nulls(len(records), type)
        values: list[Any] = [None] * len(records)
        for row, details in records.maps.items():
            value = details.get(key)
            values[row] = value.decode(errors="replace") if isinstance(value, bytes) else value
        return pa.array(values, type)

    return make


def _subscription_ids(records: Records, _: Context) -> pa.Array:
    def numbers(encoded: bytes) -> list[int]:
        text = dict(decode_properties(encoded)[0]).get("subscription_identifier", "")
        return [int(one) for one in text.split(",") if one]

    return _of_dictionary(records.encoded("ids"), numbers, pa.list_(pa.int64()))


JOURNAL: dict[str, tuple[str, pa.DataType, Maker]] = {
    "time": ("timestamp", _TIME, _time),
    "node": ("int", pa.int32(), lambda records, context: pa.repeat(pa.scalar(context.node, pa.int32()), len(records))),
    "worker": ("int", pa.int32(), lambda records, context: pa.repeat(pa.scalar(context.worker, pa.int32()), len(records))),
    "sequence": ("bigint", pa.int64(), lambda records, _: pa.array(records.sequence, pa.int64())),
    "type": ("string", pa.string(), _type),
    "message_id": ("binary", pa.binary(), _message_id),
    "message_id_text": ("string", pa.string(), _message_id_text),
    "client_id": ("string", pa.string(), _client_id),
    "session": ("bigint", pa.int64(), _number("session", pa.int64())),
    "topic": ("string", pa.string(), _string("topic")),
    "topic_levels": ("array<string>", pa.list_(pa.string()), _levels),
    "qos": ("tinyint", pa.int8(), _qos),
    "retain": ("boolean", pa.bool_(), _flag(0x04)),
    "captured": ("boolean", pa.bool_(), _flag(0x10)),
    "payload": ("binary", pa.binary(), lambda records, _: records.binary("payload")),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string()), _properties),
    "user_properties": ("array<struct<name:string,value:string>>", _PAIRS, _user_properties),
    "published": ("timestamp", _TIME, _published),
    "latency_us": ("bigint", pa.int64(), _latency),
    "expires": ("timestamp", _TIME, _expires),
    "packet_id": ("int", pa.int32(), _number("packet_id", pa.int32())),
    "packet": ("string", pa.string(), _packet),
    "reason": ("int", pa.int32(), _number("reason", pa.int32())),
    "reason_text": ("string", pa.string(), _reason_text),
    "from_queue": ("boolean", pa.bool_(), _flag(0x20)),
    "priority": ("int", pa.int32(), _number("priority", pa.int32())),
    "topic_filter": ("string", pa.string(), _string("filter")),
    "share_group": ("string", pa.string(), _string("group")),
    "subscription_options": ("int", pa.int32(), _number("options", pa.int32())),
    "subscription_identifier": ("bigint", pa.int64(), _number("identifier", pa.int64())),
    "subscription_identifiers": ("array<bigint>", pa.list_(pa.int64()), _subscription_ids),
    "protocol_version": ("int", pa.int32(), _number("version", pa.int32())),
    "session_expiry_ms": ("bigint", pa.int64(), _number("expiry_ms", pa.int64())),
    "peer": ("string", pa.string(), _detail(_PEER, pa.string())),
    "username": ("string", pa.string(), _detail(_USERNAME, pa.string())),
    "keepalive_s": ("int", pa.int32(), _detail(_KEEPALIVE, pa.int32())),
    "listener": ("string", pa.string(), _detail(_LISTENER, pa.string())),
    "receive_maximum": ("int", pa.int32(), _detail(_RECEIVE_MAXIMUM, pa.int32())),
    "will_delay_s": ("bigint", pa.int64(), _number("delay_s", pa.int64())),
    "will_at": ("timestamp", _TIME, _when("at_ms")),
    "count": ("bigint", pa.int64(), _number("count", pa.int64())),
}
"""Name -> type in Spark, type in Arrow, and what makes it."""


def build(records: Records, context: Context, columns: Iterable[str]) -> pa.RecordBatch:
    """The columns in the order given."""
    names = list(columns)
    return pa.RecordBatch.from_arrays([JOURNAL[name][2](records, context) for name in names], names)
