"""Table `journal`: its columns, version 1, and their construction from decoded records. Documented in docs/spark.md.

Only the columns that a query needs are made. Later versions may add columns; existing ones keep name, type and meaning.
"""

import json
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

try:
    import pyspark_shardbroker._compiled as _compiled
except ImportError:
    _compiled = None

__all__ = ["JOURNAL", "JOURNAL_VERSION", "ON_REQUEST", "Context", "build"]

JOURNAL_VERSION = 1
_TIME = pa.timestamp("us", tz="UTC")
_HEX = np.array([int.from_bytes(f"{byte:02x}".encode(), "little") for byte in range(256)], "<u2")
_PAIRS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())]))
_PEER, _USERNAME, _KEEPALIVE, _LISTENER, _RECEIVE_MAXIMUM = 1, 2, 3, 4, 5


@dataclass
class Context:
    """Facts that a record itself does not have."""

    worker: int
    node: int
    names: Mapping[int, bytes]
    """Client ids of sessions."""


Maker = Callable[[Records, Context], pa.Array]


def _constant(value: int, type: pa.DataType) -> pa.Array:
    return pa.array([value], type)


def _time(records: Records, _: Context) -> pa.Array:
    return pa.array(records.time_us, pa.int64()).cast(_TIME)


_TYPES = pa.array([KINDS.get(number, f"kind_{number}") for number in range(24)], pa.string())


def _type(records: Records, _: Context) -> pa.Array:
    return _TYPES.take(pa.array(records.kinds))


def _ids(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """Returns message ids as rows of 16 bytes, and a mask of the records with an id."""
    found: tuple[np.ndarray, np.ndarray] = records.once("ids", _find_ids)
    return found


def _find_ids(records: Records) -> tuple[np.ndarray, np.ndarray]:
    if not records.has("id"):
        return np.zeros((len(records), 16), np.uint8), np.zeros(len(records), bool)
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
    digits = _HEX[rows] if _compiled is None else _compiled.hexadecimal(rows)
    text = pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
    return _masked(text, valid)


def _masked(array: pa.Array, valid: np.ndarray) -> pa.Array:
    return array if valid.all() else pc.if_else(pa.array(valid), array, pa.scalar(None, array.type))


def _stamps(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """Returns the time at which each message was received, and a mask of the records with a time."""

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
    """Returns the time from publish to each later event of a message."""
    if (records.kinds == 1).all():
        return pa.nulls(len(records), pa.int64())
    stamps, valid = _stamps(records)
    return pa.array(records.time_us - stamps, pa.int64(), mask=~(valid & (records.kinds != 1)))


def _client_id(records: Records, context: Context) -> pa.Array:
    publisher = records.text("publisher")
    if not records.has("session"):
        return publisher
    head, value, _ = records.field("session")
    of_session = head == UINT
    sessions = pa.array(value, pa.uint64(), mask=~of_session).dictionary_encode()
    names = [context.names.get(number) for number in sessions.dictionary.to_pylist()]
    texts = pa.array([None if name is None else name.decode(errors="replace") for name in names], pa.string())
    return pc.coalesce(publisher, texts.take(sessions.indices))


def _made(records: Records, name: str, make: Callable[[bytes], Any], type: pa.DataType) -> pa.Array:
    """Returns a column made by `make` from each distinct byte string of a field."""
    if not records.has(name):
        return pa.nulls(len(records), type)
    encoded = records.encoded(name)
    if encoded.null_count == len(encoded):
        return pa.nulls(len(encoded), type)
    if encoded.null_count == 0 and encoded.dictionary.to_pylist() == [b""] and not pa.types.is_string(type):
        return _empty(len(records), type)  # the usual case for most properties
    return pa.array([make(one) for one in encoded.dictionary.to_pylist()], type).take(encoded.indices)


def _empty(count: int, type: pa.DataType) -> pa.Array:
    """Returns empty lists or maps."""
    offsets = pa.array(np.zeros(count + 1, np.int32))
    if pa.types.is_map(type):
        return pa.MapArray.from_arrays(offsets, pa.array([], type.key_type), pa.array([], type.item_type))
    return pa.ListArray.from_arrays(offsets, pa.array([], type.value_type))


def _levels(records: Records, _: Context) -> pa.Array:
    encoded = records.encoded("topic")
    return pc.split_pattern(as_text(encoded.dictionary), "/").take(encoded.indices)


def _properties(records: Records, _: Context) -> pa.Array:
    return _made(records, "properties", lambda one: decode_properties(one)[0], pa.map_(pa.string(), pa.string()))


def _user_properties(records: Records, _: Context) -> pa.Array:
    def pairs(encoded: bytes) -> list[dict[str, str]]:
        return [{"name": name, "value": value} for name, value in decode_properties(encoded)[1]]

    return _made(records, "properties", pairs, _PAIRS)


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
    """Returns the expiry time; null if the message does not expire."""
    head, value, _start = records.field("expires_ms")
    valid = (head == UINT) & (value > 0) & (value < 1 << 50)
    if not valid.any():
        return pa.nulls(len(records), _TIME)
    return pa.array(np.where(valid, value, 0).astype(np.int64) * 1000, mask=~valid).cast(_TIME)


def _when(name: str) -> Maker:
    def make(records: Records, _: Context) -> pa.Array:
        if not records.has(name):
            return pa.nulls(len(records), _TIME)
        head, value, _start = records.field(name)
        valid = (head == UINT) & (value < 1 << 50)
        return pa.array(np.where(valid, value, 0).astype(np.int64) * 1000, mask=~valid).cast(_TIME)

    return make


def _packet(records: Records, _: Context) -> pa.Array:
    return _named(records, "packet", {kind: PACKETS for kind in KINDS})


def _reason_text(records: Records, _: Context) -> pa.Array:
    return _named(records, "reason", REASONS)


def _named(records: Records, name: str, names: Mapping[int, Mapping[int, str]]) -> pa.Array:
    if not records.has(name):
        return pa.nulls(len(records), pa.string())
    head, value, _ = records.field(name)
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


def _payload_json(records: Records, _: Context) -> pa.Array:
    """Returns the text of payloads that are JSON."""
    return _made(records, "payload", _json_text, pa.string())


def _json_text(payload: bytes) -> str | None:
    """Returns the payload as text, or None if it is not JSON (RFC 8259), which publishers need not send."""
    try:
        text = payload.decode()
        # No number is converted: one of ten thousand digits is valid JSON, too.
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _subscription_ids(records: Records, _: Context) -> pa.Array:
    def numbers(encoded: bytes) -> list[int]:
        text = dict(decode_properties(encoded)[0]).get("subscription_identifier", "")
        return [int(one) for one in text.split(",") if one]

    return _made(records, "ids", numbers, pa.list_(pa.int64()))


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
"""Name -> type in Spark, type in Arrow, and its maker."""

ON_REQUEST: dict[str, tuple[str, pa.DataType, Maker]] = {
    "payload_json": ("string", pa.string(), _payload_json),
}
"""Likewise, but only on request by name, since these columns cost more than the rest."""
_ALL = {**JOURNAL, **ON_REQUEST}


DICTIONARIES: dict[str, Maker] = {
    "type": lambda records, _: pa.DictionaryArray.from_arrays(pa.array(records.kinds.astype(np.int32)), _TYPES),
    "topic": lambda records, _: _as_text_once(records.encoded("topic")),
    "client_id": lambda records, context: (
        _client_id(records, context).dictionary_encode() if records.has("session") else _as_text_once(records.encoded("publisher"))
    ),
}
"""Makes the same columns with each distinct text once, for writers of Parquet, which would otherwise search for duplicates."""


def _as_text_once(encoded: pa.DictionaryArray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(encoded.indices, as_text(encoded.dictionary))


def build(records: Records, context: Context, columns: Iterable[str], dictionaries: bool = False) -> pa.RecordBatch:
    """Returns the columns in the given order."""
    makers = {name: _ALL[name][2] for name in columns}
    if dictionaries:
        makers.update({name: maker for name, maker in DICTIONARIES.items() if name in makers})
    return pa.RecordBatch.from_arrays([maker(records, context) for maker in makers.values()], list(makers))
