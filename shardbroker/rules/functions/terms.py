"""Erlang's external term format, for the types that rules have. Other types (tuples, processes, functions) are refused.

Names of atoms other than true, false, null and undefined become text: a payload cannot make atoms, nor anything that is called.
"""

import math
import struct

from shardbroker.rules.functions.arguments import MAX_RESULT_BYTES, bounded_size, bounded_width, from_octets, refusal
from shardbroker.rules.functions.texts import key_order
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["decode_term", "encode_term"]

_VERSION = 131

_FLOAT, _SMALL_INTEGER, _INTEGER, _ATOM, _NIL = 70, 97, 98, 100, 106
_STRING, _LIST, _BINARY, _SMALL_BIG, _LARGE_BIG = 107, 108, 109, 110, 111
_SMALL_ATOM, _MAP, _ATOM_UTF8, _SMALL_ATOM_UTF8 = 115, 116, 118, 119
"""Tags."""

_MAX_DEPTH = 64
"""Levels of lists and maps."""

_MAX_TERMS = 65_536
"""Values within a term: a list of empty lists would else take 60 times the memory of its bytes."""

_MAX_STRING = 65_535
"""Bytes of a list of small numbers that has the short form of Erlang's strings."""

_ATOMS = {"true": True, "false": False, "null": None, "undefined": UNDEFINED}


def encode_term(value: Value) -> bytes:
    """Returns a value in the format that OTP 25 writes."""
    made = bytearray([_VERSION])
    _encode(value, made, _MAX_DEPTH)
    return bytes(made)


def _encode(value: Value, made: bytearray, depth: int) -> None:
    bounded_size(len(made))
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        bounded_size(len(made) + len(data))
        made += struct.pack(">BI", _BINARY, len(data)) + data
    elif value is None or value is UNDEFINED or isinstance(value, bool):
        name = next(name for name, atom in _ATOMS.items() if atom is value).encode()
        made += struct.pack(">BH", _ATOM, len(name)) + name
    elif type(value) is int:
        made += _encoded_integer(value)
    elif type(value) is float:
        made += struct.pack(">Bd", _FLOAT, value)
    elif not depth:
        raise EvaluationError(f"value: must be at most {_MAX_DEPTH} levels deep")
    elif type(value) is list:
        _encode_list(value, made, depth)
    elif type(value) is dict:
        made += struct.pack(">BI", _MAP, len(value))
        for key in sorted(value, key=key_order):
            _encode(key, made, depth - 1)
            _encode(value[key], made, depth - 1)
    else:
        raise refusal("value", "text, a number, a boolean, null, a map or an array", value)


def _encode_list(values: list[Value], made: bytearray, depth: int) -> None:
    if not values:
        made.append(_NIL)
    elif len(values) <= _MAX_STRING and all(type(one) is int and 0 <= one < 256 for one in values):
        made += struct.pack(">BH", _STRING, len(values)) + bytes(values)
    else:
        made += struct.pack(">BI", _LIST, len(values))
        for one in values:
            _encode(one, made, depth - 1)
        made.append(_NIL)


def _encoded_integer(value: int) -> bytes:
    if 0 <= value < 256:
        return bytes([_SMALL_INTEGER, value])
    if -(2**31) <= value < 2**31:
        return struct.pack(">Bi", _INTEGER, value)
    bounded_width(value.bit_length())
    digits = abs(value).to_bytes(-(-value.bit_length() // 8), "little")
    head = struct.pack(">BB", _SMALL_BIG, len(digits)) if len(digits) < 256 else struct.pack(">BI", _LARGE_BIG, len(digits))
    return head + bytes([value < 0]) + digits


def decode_term(data: bytes) -> Value:
    """Returns the value of a term; bytes behind it are ignored, as in Erlang."""
    if len(data) > MAX_RESULT_BYTES:
        raise EvaluationError(f"term: must be at most {MAX_RESULT_BYTES} bytes, got {len(data)}")
    if data[:1] != bytes([_VERSION]):
        raise EvaluationError(f"term: must begin with byte {_VERSION}")
    return _Reader(data).value(_MAX_DEPTH)


class _Reader:
    """Reads a term; every length is held against the bytes that are there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1
        self._terms = 0

    def _bytes(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise EvaluationError("term: must be complete")
        self._at += size
        return found

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size))

    def value(self, depth: int) -> Value:
        self._terms += 1
        if self._terms > _MAX_TERMS:
            raise EvaluationError(f"term: must have at most {_MAX_TERMS} values")
        tag = self._number(1)
        if tag in (_LIST, _MAP) and not depth:
            raise EvaluationError(f"term: must be at most {_MAX_DEPTH} levels deep")
        if tag == _LIST:
            return self._list(depth)
        if tag == _MAP:
            return {self._key(depth): self.value(depth - 1) for _ in range(self._number(4))}
        return self._scalar(tag)

    def _scalar(self, tag: int) -> Value:
        if tag == _BINARY:
            return from_octets(self._bytes(self._number(4)))
        if tag == _SMALL_INTEGER:
            return self._number(1)
        if tag == _INTEGER:
            return int.from_bytes(self._bytes(4), signed=True)
        if tag == _FLOAT:
            return self._float()
        if tag in (_SMALL_BIG, _LARGE_BIG):
            return self._big(self._number(1 if tag == _SMALL_BIG else 4))
        if tag in (_ATOM, _ATOM_UTF8, _SMALL_ATOM, _SMALL_ATOM_UTF8):
            return self._atom(tag)
        if tag == _NIL:
            return []
        if tag == _STRING:
            return list(self._bytes(self._number(2)))
        raise EvaluationError(f"term: must be text, a number, an atom, a list or a map, got tag {tag}")

    def _list(self, depth: int) -> list[Value]:
        values = [self.value(depth - 1) for _ in range(self._number(4))]
        if self._number(1) != _NIL:
            raise EvaluationError("term: must be a proper list")
        return values

    def _key(self, depth: int) -> Value:
        key = self.value(depth - 1)
        if isinstance(key, list | dict):
            raise refusal("key", "text or a number", key)
        return key

    def _float(self) -> float:
        value: float = struct.unpack(">d", self._bytes(8))[0]
        if not math.isfinite(value):
            raise refusal("number", "finite", value)
        return value

    def _big(self, size: int) -> int:
        bounded_width(size * 8)
        sign = self._number(1)
        value = int.from_bytes(self._bytes(size), "little")
        return -value if sign else value

    def _atom(self, tag: int) -> Value:
        size = self._number(2 if tag in (_ATOM, _ATOM_UTF8) else 1)
        name = self._bytes(size).decode("latin-1" if tag in (_ATOM, _SMALL_ATOM) else "utf-8")
        return _ATOMS.get(name, name)
