"""Conversions between types, and between bytes and hexadecimal digits."""

import math
import re

from shardbroker.rules.functions.arguments import bounded_size, bounded_width, from_octets, integer, number, octets, refusal
from shardbroker.rules.functions.bits import BitString
from shardbroker.rules.functions.maps import map_of
from shardbroker.rules.functions.table import Function
from shardbroker.rules.functions.texts import float_text, json_text, text_of
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["FUNCTIONS"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?")
"""Numbers as Erlang writes them: no spaces, and a float has digits on both sides of its point."""

_MAX_DIGITS = 1_234
"""Digits of an integer as text: those of 4,096 bits."""


def _bool(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if value == "true" or (type(value) in (int, float) and value == 1):
        return True
    if value == "false" or (type(value) in (int, float) and value == 0):
        return False
    raise refusal("value", "true, false, 1, 0, 'true' or 'false'", "undefined" if value is UNDEFINED else value)


def _parsed(value: Value) -> int | float:
    """Returns the number that a text is; an array of characters is a text in EMQX."""
    shown = text_of(value) if isinstance(value, list | str) else value
    if isinstance(shown, str) and _INTEGER.fullmatch(shown):
        if len(shown) > _MAX_DIGITS:
            raise refusal("number", f"at most {_MAX_DIGITS} digits long", shown)
        return int(shown)
    if isinstance(shown, str) and _FLOAT.fullmatch(shown) and math.isfinite(float(shown)):
        return float(shown)
    raise refusal("number", "a number, or text like 12 or -1.5", "undefined" if value is UNDEFINED else value)


def _int(value: Value) -> int:
    """Rounds floats down."""
    if type(value) is bool:
        return int(value)
    found = value if type(value) in (int, float) else _parsed(value)
    whole = math.floor(found)
    bounded_width(whole.bit_length())
    return whole


def _float(value: Value, decimals: Value = None) -> float:
    found = float(value if type(value) in (int, float) else _parsed(value))
    if decimals is None:
        return found
    if integer(decimals, "decimals") < 1:
        raise refusal("decimals", "1 or more", decimals)
    return float(float_text(found, decimals, compact=False))


def _float_to_text(value: Value, decimals: Value) -> str:
    if type(number(value)) is int:
        raise refusal("number", "a float", value)
    return float_text(value, integer(decimals, "decimals"))


def _utf8(value: Value) -> str:
    """Text of any value; unlike `str`, an array of code points and texts is their text whatever they are."""
    if type(value) is list:
        try:
            return _code_points(value)
        except (TypeError, ValueError):
            return json_text(value)
    shown = text_of(value)
    if isinstance(shown, bytes):
        raise refusal("text", "UTF-8", shown)
    return shown


def _code_points(values: list[Value]) -> str:
    if all(type(one) is int for one in values):
        made = "".join(map(chr, values))
        made.encode()
        return made
    if all(isinstance(one, str) for one in values):
        return "".join(values)
    raise TypeError


def _utf16(value: Value) -> Value:
    shown = text_of(value)
    if isinstance(shown, bytes):
        raise refusal("text", "UTF-8", shown)
    bounded_size(2 * len(shown))
    return from_octets(shown.encode("utf-16-le"))


def _hex_of(data: Value) -> str:
    """Upper-case digits; bits that fill no byte get zeros before them, and no more digits than they need."""
    if isinstance(data, BitString):
        return f"{data.value:0{-(-data.size // 4)}X}"
    found = octets(data)
    bounded_size(2 * len(found))
    return found.hex().upper()


def _to_hex(data: Value, prefix: Value = "") -> str:
    return _prefix(prefix) + _hex_of(data)


def _prefix(prefix: Value) -> str:
    if isinstance(prefix, str):
        return prefix
    raise refusal("prefix", "text", prefix)


def _from_hex(digits: Value, prefix: Value = "") -> Value:
    """An odd number of digits gets a zero before them."""
    shown = octets(digits, "digits").decode("latin-1")
    before = octets(prefix, "prefix").decode("latin-1")
    if not shown.startswith(before):
        raise refusal("digits", f"begin with {prefix!r}", digits)
    shown = shown.removeprefix(before)
    # `bytes.fromhex` would skip spaces.
    if not re.fullmatch("[0-9A-Fa-f]*", shown):
        raise refusal("digits", "hexadecimal", digits)
    return from_octets(bytes.fromhex("0" * (len(shown) % 2) + shown))


def _text(value: Value) -> Value:
    if isinstance(value, BitString):
        raise EvaluationError("value: must be whole bytes")
    return text_of(value)


FUNCTIONS: dict[str, Function] = {
    "bin2hexstr": Function(_to_hex, (1, 2)),
    "bool": Function(_bool, (1,)),
    "float": Function(_float, (1, 2)),
    "float2str": Function(_float_to_text, (2,)),
    "hexstr2bin": Function(_from_hex, (1, 2)),
    "int": Function(_int, (1,)),
    "map": Function(map_of, (1,)),
    "sqlserver_bin2hexstr": Function(lambda data: "0x" + _hex_of(data), (1,)),
    "str": Function(_text, (1,)),
    "str_utf16_le": Function(_utf16, (1,)),
    "str_utf8": Function(_utf8, (1,)),
}
