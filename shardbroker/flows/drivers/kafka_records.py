"""Rows as records of Kafka: topic, key, value, headers and time, and the partition of a key."""

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from shardbroker.config.sinks.kafka import KafkaParameters
from shardbroker.flows.drivers.getters import Getter, encoded, placeholders
from shardbroker.flows.sinks.json_bytes import json_bytes
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["TOPIC", "ImpossibleRecord", "Record", "constant_of", "key_hash", "record_maker", "topic_maker"]

TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
NAME: Final = "1 to 249 letters, digits, `.`, `_` and `-`"
"""Names that topics of Kafka can have."""
RECORD_MAX: Final = 64 << 20
"""Most bytes of a record: the broker closes connections for requests above socket.request.max.bytes, 100 MB by default."""
TIME_MAX_MS: Final = 253_402_300_799_999
"""End of the year 9999."""
HEADERS_MAX: Final = 1000
"""Most headers of a record: a row may have a map of any size."""
UNPRINTABLE = (EvaluationError, ValueError, RecursionError)  # UnicodeEncodeError is a ValueError
KEYS_CACHED: Final = 65_536
"""Keys whose hash is remembered: those of as many clients."""
KEY_CACHED_MAX: Final = 256
"""Most bytes of such a key."""

Headers = list[tuple[str, bytes]]
Make = Callable[[Row], bytes]


class ImpossibleRecord(Exception):
    """A row of which no record can be made. The text is shown: it has no value of the row."""


class Record(NamedTuple):
    """A record, with the place of its row in the batch."""

    at: int
    key: bytes | None
    value: bytes
    time_ms: int
    headers: Headers


def constant_of(template: str) -> str | None:
    """Returns a template without placeholders; None for one with them. Raises ValueError if it is no name of a topic."""
    parts = placeholders(template)
    if all(isinstance(one, str) for one in parts):
        if not TOPIC.fullmatch(template):
            raise ValueError(f"must be {NAME}, or a template of such a name, got {template!r:.100}")
        return template
    return None


def topic_maker(template: str) -> Callable[[Row], str]:
    """Returns what makes the topic of a row, which raises ImpossibleRecord."""
    constant = constant_of(template)
    if constant is not None:
        return lambda row: constant
    make = _text(template)

    def topic(row: Row) -> str:
        try:
            found = make(row).decode()
        except UNPRINTABLE:
            found = ""
        if not TOPIC.fullmatch(found):
            raise ImpossibleRecord(f"topic: must be {NAME}, got another text")
        return found

    return topic


def record_maker(parameters: KafkaParameters) -> Callable[[int, Row], Record]:
    """Returns what makes the record of a row, which raises ImpossibleRecord. Raises ValueError."""
    message = parameters.message
    key, value = _text(message.key), _text(message.value)
    times = placeholders(message.timestamp)
    time_of = times[0] if len(times) == 1 and not isinstance(times[0], str) else None
    fixed_ms = _number(message.timestamp)
    headers = _headers(parameters)

    def make(at: int, row: Row) -> Record:
        try:
            found = Record(
                at,
                key(row) or None,
                value(row),
                _time(time_of(row) if time_of is not None else fixed_ms, row),
                headers(row) if headers is not None else [],
            )
        except UNPRINTABLE:
            raise ImpossibleRecord("a value cannot be written as text") from None
        if len(found.value) > RECORD_MAX:
            raise ImpossibleRecord(f"the record is larger than {RECORD_MAX} bytes")
        return found

    return make


def _text(template: str) -> Make:
    """As getters.rendered, but a missing field is empty, as it is in EMQX."""
    parts = placeholders(template)
    if template == "${.}":
        return lambda row: json_bytes(row.values)
    if all(isinstance(one, str) for one in parts):
        constant = template.encode()
        return lambda row: constant
    if len(parts) == 1 and not isinstance(only := parts[0], str):
        return lambda row: _encoded(only(row))
    ready = [one.encode() if isinstance(one, str) else one for one in parts]
    return lambda row: b"".join([one if isinstance(one, bytes) else _encoded(one(row)) for one in ready])


def _encoded(value: Value) -> bytes:
    return b"" if value is UNDEFINED or value is None else encoded(value)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _time(value: Value, row: Row) -> int:
    if type(value) is str:
        value = _number(value)
    return value if type(value) is int and 0 <= value <= TIME_MAX_MS else row.at_ms


# --- headers ----------------------------------------------------------------------------------------------------------------------


def _headers(parameters: KafkaParameters) -> Callable[[Row], Headers] | None:
    """Raises ValueError."""
    all_of: Getter | None = None
    if parameters.kafka_headers:
        parts = placeholders(parameters.kafka_headers)
        if len(parts) != 1 or isinstance(parts[0], str):
            got = parameters.kafka_headers
            raise ValueError(f"kafka_headers: must be one placeholder such as ${{pub_props}}, got {got!r:.100}")
        all_of = parts[0]
    more = [(_text(one.kafka_ext_header_key), _single(one.kafka_ext_header_value)) for one in parameters.kafka_ext_headers]
    if all_of is None and not more:
        return None
    value_of = _json_header if parameters.kafka_header_value_encode_mode == "json" else _plain_header

    def make(row: Row) -> Headers:
        pairs = _pairs(all_of(row)) if all_of is not None else []
        pairs += [(key(row).decode(), value(row)) for key, value in more]
        if len(pairs) > HEADERS_MAX:
            raise ImpossibleRecord(f"headers: must be at most {HEADERS_MAX}, got {len(pairs)}")
        found = [(name, value_of(value)) for name, value in pairs if name]
        return [(name, value) for name, value in found if value is not None]

    return make


def _single(template: str) -> Getter:
    """Returns what finds the value of a template of one placeholder with its type, or makes the text of another one."""
    parts = placeholders(template)
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    make = _text(template)
    return lambda row: make(row).decode()


def _pairs(value: Value) -> list[tuple[str, Value]]:
    if type(value) is dict:
        return [(name, one) for name, one in value.items() if isinstance(name, str)]
    found: list[tuple[str, Value]] = []
    for one in value if type(value) is list else ():
        if type(one) is dict and isinstance(name := one.get("key"), str) and "value" in one:
            found.append((name, one["value"]))
    return found


def _plain_header(value: Value) -> bytes | None:
    if type(value) is str:
        return value.encode()
    return value if type(value) is bytes else None


def _json_header(value: Value) -> bytes | None:
    return None if value is UNDEFINED else json_bytes(value.decode(errors="replace") if type(value) is bytes else value)


# --- partitions -------------------------------------------------------------------------------------------------------------------

SEED, FACTOR, SHIFT = 0x9747B28C, 0x5BD1E995, 24
"""Constants of MurmurHash2 as Java's clients of Kafka use it."""
MASK = 0xFFFFFFFF


def key_hash(key: bytes) -> int:
    """Returns the hash of a key that Java's clients divide by the number of partitions: MurmurHash2 without its sign."""
    return _remembered(key) if len(key) <= KEY_CACHED_MAX else _murmur2(key)


def _murmur2(key: bytes) -> int:
    whole = len(key) >> 2
    found = SEED ^ len(key)
    for word in struct.unpack_from(f"<{whole}I", key):
        word = word * FACTOR & MASK
        word = (word ^ word >> SHIFT) * FACTOR & MASK
        found = (found * FACTOR & MASK) ^ word
    rest = key[whole << 2 :]
    if rest:
        found = (found ^ int.from_bytes(rest, "little")) * FACTOR & MASK
    found = (found ^ found >> 13) * FACTOR & MASK
    return (found ^ found >> 15) & 0x7FFFFFFF


_remembered = lru_cache(KEYS_CACHED)(_murmur2)
