"""`sprintf` with the directives of Erlang's io:format: `~[width][.precision][.fill][modifier]directive`."""

import json
import re
from collections.abc import Callable, Iterator

from shardbroker.rules.functions.arguments import bounded_size, from_octets, integer, octets, refusal, text
from shardbroker.rules.functions.bits import BitString
from shardbroker.rules.functions.table import Function
from shardbroker.rules.functions.texts import key_order, text_of
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["FUNCTIONS"]

_MAX_ARGUMENTS = 32
"""Arguments of a call."""

_MAX_WIDTH = 4_096
"""Characters of a field, digits of a float: a format that comes from a payload must not ask for a megabyte in five bytes."""

_MAX_DEPTH = 64
"""Levels of a value that is shown as a term."""

_DIRECTIVE = re.compile(rb"~(-?\d{1,9}|\*)?(?:\.(\d{1,9}|\*)?)?(?:\.(\*|.))?([tlkK]*)(.)?", re.DOTALL)

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _sprintf(pattern: Value, *arguments: Value) -> Value:
    shown = octets(pattern, "format")
    rest = iter(arguments)
    made = bytearray()
    at = 0
    for found in _DIRECTIVE.finditer(shown):
        made += shown[at : found.start()]
        made += _field(found, rest)
        bounded_size(len(made))
        at = found.end()
    if any(True for _ in rest):
        raise EvaluationError("format: must use every argument")
    made += shown[at:]
    bounded_size(len(made))
    return from_octets(bytes(made))


def _next(rest: Iterator[Value]) -> Value:
    for value in rest:
        return value
    raise EvaluationError("arguments: must be as many as the format has directives")


def _size(shown: bytes | None, rest: Iterator[Value]) -> int | None:
    if shown is None:
        return None
    size = integer(_next(rest), "width") if shown == b"*" else int(shown)
    if abs(size) > _MAX_WIDTH:
        raise refusal("width", f"at most {_MAX_WIDTH}", size)
    return size


def _field(found: "re.Match[bytes]", rest: Iterator[Value]) -> bytes:
    """Returns one field as bytes."""
    width, precision = _size(found[1], rest), _size(found[2], rest)
    fill = chr(integer(_next(rest), "fill")).encode() if found[3] == b"*" else found[3] or b" "
    kind = (found[5] or b"").decode("latin-1")
    if kind in ("~", "n"):
        return (b"~" if kind == "~" else b"\n") * max(1, abs(width or 1))
    if kind == "i":
        _next(rest)
        return b""
    if kind == "c":
        return _characters(_next(rest), width, precision, fill)
    if kind in ("s", "p", "P", "w", "W"):
        shown, precision = _text_field(kind, rest, precision)
        # For terms, the width is that of lines, and there is one line only.
        return _aligned(shown, width if kind == "s" else None, precision, fill)
    if kind in _NUMBERS:
        return _number_field(kind, width, precision, fill, rest)
    raise refusal("format", "one of the directives c e f g s w p W P b B x X + # i n ~", found[0])


def _characters(code: Value, width: int | None, precision: int | None, fill: bytes) -> bytes:
    """`~c`: a code point, as often as its precision or width."""
    count = precision if precision is not None else abs(width or 1)
    return _aligned(chr(integer(code, "character")) * count, width, None, fill)


def _text_field(kind: str, rest: Iterator[Value], precision: int | None) -> tuple[str | bytes, int | None]:
    value = _next(rest)
    if kind != "s":
        if kind.isupper():
            # The depth that is shown; all of it is.
            _next(rest)
        return _term(value, kind in "pP", _MAX_DEPTH), None
    if value is None or value is UNDEFINED:
        return text_of(value), precision
    if isinstance(value, list):
        return "".join(chr(integer(one, "character")) for one in value), precision
    return value if isinstance(value, bytes) else text(value), precision


def _aligned(shown: str | bytes, width: int | None, precision: int | None, fill: bytes) -> bytes:
    """Right-aligned in its width, left-aligned in a negative one; cut at the precision, or at the width."""
    limit = precision if precision is not None else abs(width) if width is not None else None
    size = len(shown)
    if limit is not None and size > limit:
        shown, size = shown[:limit], limit
    data = shown.encode() if isinstance(shown, str) else shown
    if limit is not None and size < limit:
        data += fill * (limit - size)
        if precision is None and width is not None and width > 0:
            data = fill * (limit - size) + data[: len(data) - len(fill) * (limit - size)]
    if width is not None and abs(width) > (limit or 0):
        missing = abs(width) - max(size, limit or 0)
        data = data + fill * missing if width < 0 else fill * missing + data
    return data


def _number_field(kind: str, width: int | None, precision: int | None, fill: bytes, rest: Iterator[Value]) -> bytes:
    value = _next(rest)
    prefix = text(_next(rest), "prefix") if kind in "xX" else ""
    shown = _NUMBERS[kind](value, precision, prefix)
    if width is None:
        return shown.encode()
    if len(shown) > abs(width):
        # Erlang fills a number that does not fit with asterisks.
        return b"*" * abs(width)
    missing = fill * (abs(width) - len(shown))
    return shown.encode() + missing if width < 0 else missing + shown.encode()


def _based(value: Value, precision: int | None, prefix: str) -> str:
    base = 10 if precision is None else precision
    if not 2 <= base <= len(_DIGITS):
        raise refusal("base", f"2 to {len(_DIGITS)}", base)
    number = integer(value)
    digits = str(abs(number)) if base == 10 else ""
    rest = abs(number)
    while base != 10 and (rest or not digits):
        rest, digit = divmod(rest, base)
        digits = _DIGITS[digit] + digits
    return ("-" if number < 0 else "") + prefix + digits


def _fixed(value: Value, precision: int | None, _prefix: str) -> str:
    return f"{_float(value):.{6 if precision is None else precision}f}"


def _exponential(value: Value, precision: int | None, _prefix: str) -> str:
    """Precision counts all digits; the exponent has no zeros before it."""
    digits = 6 if precision is None else precision
    if digits < 2:
        raise refusal("precision", "2 or more", digits)
    mantissa, exponent = f"{_float(value):.{digits - 1}e}".split("e")
    return f"{mantissa}e{exponent[0]}{int(exponent[1:])}"


def _general(value: Value, precision: int | None, prefix: str) -> str:
    """Fixed notation from 0.1 to 10,000, exponents elsewhere."""
    size = abs(_float(value))
    digits = 6 if precision is None else precision
    if not 0.1 <= size < 10_000:
        return _exponential(value, digits, prefix)
    before = 0 if size < 1 else len(str(int(size)))
    if digits - before <= 0:
        return _exponential(value, digits, prefix)
    return _fixed(value, max(1, digits - max(1, before)) if size >= 1 else digits, prefix)


def _float(value: Value) -> float:
    if type(value) is float:
        return value
    raise refusal("number", "a float", value)


_NUMBERS: dict[str, Callable[[Value, int | None, str], str]] = {
    "b": _based,
    "B": lambda value, base, prefix: _based(value, base, prefix).upper(),
    "x": _based,
    "X": lambda value, base, prefix: _upper(_based(value, base, ""), prefix),
    "+": lambda value, base, _prefix: _based(value, base, f"{base or 10}#"),
    "#": lambda value, base, _prefix: _based(value, base, f"{base or 10}#").upper(),
    "e": _exponential,
    "f": _fixed,
    "g": _general,
}


def _upper(digits: str, prefix: str) -> str:
    """Puts a prefix between sign and digits, and makes only the digits upper case."""
    sign = "-" * digits.startswith("-")
    return sign + prefix + digits.removeprefix("-").upper()


def _term(value: Value, is_readable: bool, depth: int) -> str:
    """Returns a value as Erlang shows a term, in one line; `is_readable` shows printable bytes and lists as text."""
    if isinstance(value, str | bytes):
        return _binary(value.encode() if isinstance(value, str) else value, is_readable)
    if value is UNDEFINED or value is None or isinstance(value, bool):
        shown = text_of(value)
        return shown if isinstance(shown, str) else ""
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return _short(value)
    if isinstance(value, BitString):
        raise refusal("value", "whole bytes", value)
    if not depth:
        raise EvaluationError(f"value: must be at most {_MAX_DEPTH} levels deep")
    if type(value) is dict:
        pairs = (map(_term, (key, value[key]), (is_readable,) * 2, (depth - 1,) * 2) for key in sorted(value, key=key_order))
        return "#{" + ",".join(" => ".join(pair) for pair in pairs) + "}"
    if is_readable and value and all(type(one) is int and _is_printable(one) for one in value):
        return _quoted(bytes(value).decode("latin-1"))
    return "[" + ",".join(_term(one, is_readable, depth - 1) for one in value) + "]"


def _is_printable(code: int) -> bool:
    return 0x20 <= code < 0x7F or 0xA0 <= code < 0x100 or code in b"\n\r\t\v\b\f\x1b"


def _quoted(shown: str) -> str:
    # Escapes of JSON are those of Erlang for what is printable.
    return json.dumps(shown, ensure_ascii=False).replace("\\u000b", "\\v").replace("\\u001b", "\\e")


def _binary(data: bytes, is_readable: bool) -> str:
    if is_readable and data and all(_is_printable(one) for one in data):
        return f"<<{_quoted(data.decode('latin-1'))}>>"
    return "<<" + ",".join(map(str, data)) + ">>"


def _short(value: float) -> str:
    """Returns the shortest digits that are this float, with a point always."""
    shown = repr(value)
    if "e" not in shown:
        return shown
    mantissa, exponent = shown.split("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}"


FUNCTIONS: dict[str, Function] = {
    "sprintf": Function(_sprintf, tuple(range(1, _MAX_ARGUMENTS + 2))),
}
