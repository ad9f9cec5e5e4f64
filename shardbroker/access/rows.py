"""Rows of the access stores as one node of a cluster sends them to another, and what a row must be to be stored.

    row     id 16 bytes | state u8 | since_ms u64 | table u8 | size of the key u16, big endian | key | value
    value   JSON of the fields, binary ones in hex; nothing for a deletion

A row of a peer is checked as a change by `ctl` or REST is: kinds, lengths, rules that can be read, patterns that compile. Its key
must be that of its fields.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, NamedTuple

import cbor2

from shardbroker.access.rules import RuleError, network_of, pattern_of, rule_of
from shardbroker.access.tables import (
    BAN_KINDS,
    HASH_MAX,
    KEY_MAX,
    NAME_MAX,
    RULE_KINDS,
    RULES_BYTES_MAX,
    RULES_MAX,
    SCRAM_ALGORITHMS,
    TEXT_MAX,
    UNTIL_MAX,
    USER_KINDS,
    key_of,
    rules_key,
)
from shardbroker.stores.retained_stamps import ID_HIGH_MAX, ROW_BYTES_MAX, TopicState

__all__ = [
    "ROW_BYTES_MAX", "Row", "RowError", "check_value", "decode_row", "encode_row", "number_of", "stored_entry", "text_of",
    "value_of",
]  # fmt: skip

ITERATIONS_MAX = 1 << 31
BINARY_MAX = 1024
"""Bytes of a salt or key of SCRAM."""
_HEAD = Struct(">16sBQBH")


class RowError(ValueError):
    """A row that is not stored; the text has the reason."""


class Row(NamedTuple):
    """The newest change of one entry. since_ms: Unix ms of a deletion. table: number of the table in its store."""

    id: bytes
    state: TopicState
    since_ms: int
    table: int
    key: bytes
    value: bytes


def encode_row(row: Row) -> bytes:
    return _HEAD.pack(row.id, row.state, row.since_ms, row.table, len(row.key)) + row.key + row.value


def decode_row(data: bytes, tables: int) -> Row:
    """Returns a row, of which the value is not checked. tables: number of tables. Raises RowError."""
    if not _HEAD.size < len(data) <= ROW_BYTES_MAX:
        raise RowError(f"row: must have {_HEAD.size + 1} to {ROW_BYTES_MAX} bytes, got {len(data)}")
    id, state, since_ms, table, size = _HEAD.unpack_from(data)
    key, value = data[_HEAD.size : _HEAD.size + size], data[_HEAD.size + size :]
    if int.from_bytes(id[:8], "big") > ID_HIGH_MAX or since_ms > ID_HIGH_MAX or table >= tables:
        raise RowError("row: must have a time and a table that exist")
    if not 0 < size <= KEY_MAX or len(key) != size:
        raise RowError(f"row: must have a key of 1 to {KEY_MAX} bytes, got {size}")
    if (state, bool(value)) not in ((TopicState.LIVE, True), (TopicState.DELETED, False)):
        raise RowError("row: must be an entry with a value, or a deletion without one")
    return Row(id, TopicState(state), since_ms, table, key, value)


def number_of(value: Any, most: float = UNTIL_MAX) -> float:
    """Returns a number from 0 to `most`. Raises RowError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and 0 <= value <= most):
        raise RowError(f"number: must be from 0 to {most:g}, got {str(value)[:40]}")
    return value


def text_of(what: str, value: Any, most: int, least: int = 0) -> str:
    """Returns text of `least` to `most` bytes. Raises RowError."""
    try:
        size = len(value.encode()) if isinstance(value, str) else -1
    except UnicodeEncodeError:
        size = -1
    if not least <= size <= most:
        raise RowError(f"{what}: must be text of {least} to {most} bytes")
    return str(value)


def load_object(data: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields of a value; all of them, and no other. Raises RowError."""
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RowError(f"value: must be JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict) or {*found} != {*names}:
        raise RowError(f"value: must have the fields {', '.join(names)}")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _one_of(what: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise RowError(f"{what}: must be one of {', '.join(allowed)}, got {str(value)[:40]!r}")
    return str(value)


def _name(value: Any) -> str:
    name = text_of("name", value, NAME_MAX, 1)
    if "\0" in name:
        raise RowError("name: must not contain NUL")
    return name


def _flag(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RowError(f"{what}: must be true or false")
    return value


def _binary(what: str, value: Any) -> bytes:
    text = text_of(what, value, 2 * BINARY_MAX, 2)
    if len(text) % 2 or not re.fullmatch("[0-9a-f]+", text):
        raise RowError(f"{what}: must be lower-case hex")
    return bytes.fromhex(text)


def _user(value: bytes) -> tuple[bytes, dict[str, Any]]:
    found = load_object(value, ("kind", "name", "hash", "superuser", "salt"))
    kind, name = _one_of("kind", found["kind"], USER_KINDS), _name(found["name"])
    text_of("hash", found["hash"], HASH_MAX, 1)
    text_of("salt", found["salt"], HASH_MAX)
    _flag("superuser", found["superuser"])
    return key_of(kind, name), found


def _scram_user(value: bytes) -> tuple[bytes, dict[str, Any]]:
    names = ("algorithm", "name", "salt", "stored_key", "server_key", "iterations", "is_superuser")
    found = load_object(value, names)
    key = key_of(_one_of("algorithm", found.pop("algorithm"), SCRAM_ALGORITHMS), _name(found["name"]))
    for name in ("salt", "stored_key", "server_key"):
        found[name] = _binary(name, found[name])
    if not isinstance(found["iterations"], int) or isinstance(found["iterations"], bool):
        raise RowError("iterations: must be a whole number")
    number_of(found["iterations"], ITERATIONS_MAX)
    _flag("is_superuser", found["is_superuser"])
    return key, found


def _rules(value: bytes) -> tuple[bytes, dict[str, Any]]:
    found = load_object(value, ("kind", "name", "rules"))
    kind, rules = _one_of("kind", found["kind"], RULE_KINDS), found["rules"]
    name = text_of("name", found["name"], NAME_MAX) if kind == "all" else _name(found["name"])
    if not isinstance(rules, list) or not 0 < len(rules) <= RULES_MAX:
        raise RowError(f"rules: must be a list of 1 to {RULES_MAX}")
    if len(value) > RULES_BYTES_MAX + 8 * NAME_MAX:
        raise RowError(f"rules: must have at most {RULES_BYTES_MAX} bytes")
    try:
        for one in rules:
            rule_of(one)
    except (RuleError, TypeError, ValueError, RecursionError) as error:
        raise RowError(f"rules: {str(error)[:200]}") from None
    return rules_key(kind, name), found


def _ban(value: bytes) -> tuple[bytes, dict[str, Any]]:
    found = load_object(value, ("kind", "value", "until", "by", "reason", "at"))
    kind = _one_of("kind", found["kind"], BAN_KINDS)
    text = text_of("value", found["value"], TEXT_MAX)
    for name in ("by", "reason"):
        text_of(name, found[name], TEXT_MAX)
    if found["until"] is not None:
        number_of(found["until"])
    number_of(found["at"])
    try:
        if kind == "peerhost_net":
            network_of(text)
        elif kind.endswith("_re"):
            pattern_of(text)
    except (RuleError, RecursionError, OverflowError) as error:
        raise RowError(f"value: {str(error)[:200]}") from None
    return key_of(kind, text), found


_CHECKS: Mapping[str, Callable[[bytes], tuple[bytes, dict[str, Any]]]] = {
    "passwords": _user, "scram": _scram_user, "rules": _rules, "banned": _ban,
}  # fmt: skip


def stored_entry(table: str, value: bytes) -> tuple[bytes, bytes]:
    """Returns the key of a value as it is sent, and the value as it is stored. Raises RowError."""
    key, fields = _CHECKS[table](value)
    return key, cbor2.dumps(fields)


def check_value(table: str, key: bytes, value: bytes) -> bytes:
    """Returns the value as it is stored. Raises RowError."""
    own, stored = stored_entry(table, value)
    if own != key:
        raise RowError("row: must have the key of its fields")
    return stored


def value_of(table: str, key: bytes, stored: bytes) -> bytes:
    """Returns a stored value as it is sent."""
    fields = cbor2.loads(stored)
    if table == "passwords":
        fields.setdefault("salt", "")
    elif table == "banned" and fields["until"] is not None and fields["until"] > UNTIL_MAX:
        fields["until"] = None  # from before there was a limit: permanent
    elif table == "scram":
        fields["algorithm"] = re.split(b"[:#]", key, maxsplit=1)[0].decode()
    plain = {name: one.hex() if isinstance(one, bytes) else one for name, one in fields.items()}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
