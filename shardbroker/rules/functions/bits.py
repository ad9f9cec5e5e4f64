"""Bits of integers and of byte strings."""

import struct
from dataclasses import dataclass

from shardbroker.rules.functions.arguments import bounded_width, from_octets, integer, octets, refusal
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["FUNCTIONS", "BitString"]

_FLOATS = {16: "e", 32: "f", 64: "d"}
"""Formats of `struct` by the bits of a float."""


@dataclass(frozen=True, slots=True)
class BitString:
    """Bits whose number is no multiple of 8: `subbits` makes them, `bin2hexstr`, `bitsize` and `subbits` take them."""

    value: int
    size: int


def _shift_left(value: Value, by: Value) -> int:
    return _shifted(integer(value), integer(by))


def _shift_right(value: Value, by: Value) -> int:
    return _shifted(integer(value), -integer(by))


def _shifted(value: int, by: int) -> int:
    """Returns an integer shifted to the left, or to the right by a negative number."""
    if by < 0:
        return value >> -by
    if not value:
        return 0
    bounded_width(value.bit_length() + by)
    return value << by


def _size_of(data: Value) -> int:
    return data.size if isinstance(data, BitString) else 8 * len(octets(data))


def _byte_size(data: Value) -> int:
    """Bytes of text, or of an array of texts, bytes (0 to 255) and such arrays."""
    if isinstance(data, list):
        return sum(1 if type(one) is int and 0 <= one < 256 else _byte_size(one) for one in data)
    return len(octets(data))


def _slice(data: Value, start: int, length: int) -> int:
    """Bits as an unsigned big-endian integer; touches only the bytes around them."""
    if isinstance(data, BitString):
        return (data.value >> (data.size - start - length)) & ((1 << length) - 1)
    end = start + length
    last = (end + 7) // 8
    return (int.from_bytes(octets(data)[start // 8 : last]) >> (8 * last - end)) & ((1 << length) - 1)


def _as_integer(bits: int, length: int, signedness: str, endianness: str) -> int:
    if endianness == "little":
        # Whole bytes from the lowest on; bits beyond them are the highest of the number.
        whole, rest = divmod(length, 8)
        low = (bits >> rest).to_bytes(whole, "big")
        bits = int.from_bytes(low, "little") | (bits & ((1 << rest) - 1)) << 8 * whole
    if signedness == "signed" and length and bits >> (length - 1):
        bits -= 1 << length
    return bits


def _as_float(bits: int, length: int, endianness: str) -> float | None:
    """None for what is no finite float of this width."""
    if length not in _FLOATS:
        return None
    value: float = struct.unpack((">" if endianness == "big" else "<") + _FLOATS[length], bits.to_bytes(length // 8))[0]
    return value if abs(value) < float("inf") else None


def _as_bits(bits: int, length: int) -> Value:
    return BitString(bits, length) if length % 8 else from_octets(bits.to_bytes(length // 8))


def _sub_bits(
    data: Value, start: Value, length: Value, kind: Value = "integer", signedness: Value = "unsigned", endianness: Value = "big"
) -> Value:
    size = _size_of(data)
    begin, length = integer(start, "start") - 1, integer(length, "length")
    if begin < 0 or begin >= size:
        return UNDEFINED
    if kind not in ("integer", "float", "bits"):
        raise refusal("type", "integer, float or bits", kind)
    if signedness not in ("unsigned", "signed"):
        raise refusal("signedness", "unsigned or signed", signedness)
    if endianness not in ("big", "little"):
        raise refusal("endianness", "big or little", endianness)
    remaining = size - begin
    # A length that does not fit takes all that is left, as in EMQX.
    taken = length if 0 <= length <= remaining else remaining
    if kind == "float":
        return _sub_float(data, begin, taken, remaining, endianness)
    if kind == "bits":
        return _as_bits(_slice(data, begin, taken), taken)
    bounded_width(taken)
    return _as_integer(_slice(data, begin, taken), taken, signedness, endianness)


def _sub_float(data: Value, begin: int, taken: int, remaining: int, endianness: str) -> float:
    for length in (taken, remaining):
        if length in _FLOATS and (value := _as_float(_slice(data, begin, length), length, endianness)) is not None:
            return value
    raise EvaluationError("length: must be 16, 32 or 64 bits of a finite float")


def _sub_bits_from_start(data: Value, *arguments: Value) -> Value:
    """`subbits(data, length)` begins at the first bit; more arguments begin with a position."""
    return _sub_bits(data, 1, *arguments) if len(arguments) == 1 else _sub_bits(data, *arguments)


FUNCTIONS: dict[str, Function] = {
    "bitand": Function(lambda left, right: integer(left) & integer(right), (2,)),
    "bitnot": Function(lambda value: ~integer(value), (1,)),
    "bitor": Function(lambda left, right: integer(left) | integer(right), (2,)),
    "bitsize": Function(_size_of, (1,)),
    "bitsl": Function(_shift_left, (2,)),
    "bitsr": Function(_shift_right, (2,)),
    "bitxor": Function(lambda left, right: integer(left) ^ integer(right), (2,)),
    "bytesize": Function(_byte_size, (1,)),
    "subbits": Function(_sub_bits_from_start, (2, 3, 4, 5, 6)),
}
