"""Text: case, trimming, slices, splitting, padding, replacing."""

import re
from collections.abc import Sequence

from shardbroker.rules.functions.arguments import array, bounded_size, from_octets, integer, octets, refusal, text
from shardbroker.rules.functions.graphemes import graphemes
from shardbroker.rules.functions.table import Function
from shardbroker.rules.functions.texts import json_text, text_of
from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["FUNCTIONS"]

_WHITESPACE = "\t\n\v\f\r \x85\u200e\u200f\u2028\u2029"
"""What trimming removes: Unicode's Pattern_White_Space, as in Erlang; no-break spaces stay."""

_ESCAPES = {"\\": "\\", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "'": "'", '"': '"', "?": "?", "a": "\a"}

_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]+|.)", re.DOTALL)

_MAX_PIECES = 65_536
"""Pieces of a split text: an array of a payload of separators only would take 60 times its memory."""


def _lower(value: Value) -> str:
    # One by one, since the form of a letter at a word's end is a matter of Python only.
    return "".join(map(str.lower, text(value)))


def _reverse(value: Value) -> str:
    return "".join(reversed(graphemes(text(value))))


def _remove_prefix(value: Value, prefix: Value) -> Value:
    if isinstance(value, bytes):
        return from_octets(value.removeprefix(octets(prefix, "prefix")))
    return text(value).removeprefix(text(prefix, "prefix"))


def _slice(value: Value, start: Value, length: Value = None) -> str:
    """Counts from 0; a position behind the end gives empty text."""
    characters = graphemes(text(value))
    start = integer(start, "start")
    if start < 0:
        raise refusal("start", "0 or more", start)
    if length is None:
        return "".join(characters[start:])
    if integer(length, "length") < 0:
        raise refusal("length", "0 or more", length)
    return "".join(characters[start : start + length])


def _pieces(value: str, separator: str, where: str) -> list[str]:
    if not separator:
        return [value]
    if where == "all":
        if value.count(separator) >= _MAX_PIECES:
            raise refusal("text", f"split into at most {_MAX_PIECES} pieces", value)
        return value.split(separator)
    return value.split(separator, 1) if where == "leading" else value.rsplit(separator, 1)


_SPLITS = {
    "notrim": ("all", False),
    "leading": ("leading", True),
    "leading_notrim": ("leading", False),
    "trailing": ("trailing", True),
    "trailing_notrim": ("trailing", False),
}
"""Modes of `split`: where, and whether empty pieces are left out."""


def _split(value: Value, separator: Value, *mode: Value) -> list[str]:
    where, trims = _chosen(mode[0], _SPLITS, "mode") if mode else ("all", True)
    pieces = _pieces(text(value), text(separator, "separator"), where)
    return [piece for piece in pieces if piece] if trims else pieces


def _chosen(name: Value, choices: dict[str, tuple[str, bool]], key: str) -> tuple[str, bool]:
    if isinstance(name, str) and name in choices:
        return choices[name]
    raise refusal(key, "one of " + ", ".join(choices), name)


def _tokens(value: Value, separators: Value, *mode: Value) -> list[Value]:
    """Splits at any byte of `separators`; a CR LF pair counts as one character of its own."""
    data = octets(text(value) if isinstance(value, bool) else value).decode("latin-1")
    apart = set(octets(separators, "separators").decode("latin-1"))
    if mode:
        if mode[0] != "nocrlf":
            raise refusal("mode", "nocrlf", mode[0])
        apart |= {"\r", "\n", "\r\n"}
    if not apart:
        return [value] if data else []
    # In the order of alternatives: the pair is never taken apart, and ends a token only where it is a separator itself.
    pair = "" if "\r\n" in apart else "\r\n|"
    singles = "".join(map(re.escape, (one for one in apart if len(one) == 1)))
    found = [one.group() for one in re.finditer(f"(?:{pair}[^{singles}])+", data, re.DOTALL)]
    if len(found) > _MAX_PIECES:
        raise refusal("text", f"split into at most {_MAX_PIECES} tokens", value)
    return [from_octets(one.encode("latin-1")) for one in found]


def _concat(*values: Value) -> str:
    """Concatenates two values, or those of an array."""
    parts = [text_of(one) for one in (array(values[0]) if len(values) == 1 else values)]
    bounded_size(sum(map(len, parts)))
    return "".join(text(part) for part in parts)


def _pad(value: Value, length: Value, where: Value = "trailing", character: Value = " ") -> str:
    """Adds `character`, which may be a text, as often as characters are missing."""
    inner, fill = text(value), text(character, "character")
    missing = max(0, integer(length, "length") - len(graphemes(inner)))
    if where not in ("leading", "trailing", "both"):
        raise refusal("where", "leading, trailing or both", where)
    bounded_size(len(inner.encode()) + missing * len(fill.encode()))
    before = missing if where == "leading" else missing // 2 if where == "both" else 0
    return fill * before + inner + fill * (missing - before)


def _replace(value: Value, pattern: Value, replacement: Value, where: Value = "all") -> str:
    whole, old, new = text(value), text(pattern, "pattern"), text(replacement, "replacement")
    if where not in ("all", "leading", "trailing"):
        raise refusal("where", "all, leading or trailing", where)
    if not old:
        return whole
    if where == "all":
        bounded_size(len(whole) + whole.count(old) * (len(new.encode()) - len(old)))
        return whole.replace(old, new)
    return new.join(_pieces(whole, old, where))


def _ascii(value: Value) -> int:
    """The first byte, also of a character beyond ASCII."""
    data = octets(text(value) if isinstance(value, bool) else value)
    if not data:
        raise refusal("text", "at least one character long", value)
    return data[0]


def _find(value: Value, pattern: Value, where: Value = "leading") -> str:
    """The text from the first (or last) occurrence on."""
    whole, part = text(value), text(pattern, "pattern")
    if where not in ("leading", "trailing"):
        raise refusal("where", "leading or trailing", where)
    if not part:
        return whole
    at = whole.find(part) if where == "leading" else whole.rfind(part)
    return whole[at:] if at >= 0 else ""


def _unescape(value: Value) -> str:
    return _ESCAPE.sub(_unescaped, text(value))


def _unescaped(found: "re.Match[str]") -> str:
    escape = found[1]
    if escape[0] == "x" and len(escape) > 1:
        code = int(escape[1:], 16) if len(escape.lstrip("x0")) <= 6 else -1
        if 0 <= code < 0xD800 or 0xE000 <= code < 0x110000:
            return chr(code)
        raise refusal("text", "without code points beyond Unicode", found[0])
    if escape not in _ESCAPES:
        raise refusal("text", "without unknown escapes", found[0])
    return _ESCAPES[escape]


def _join(values: Sequence[Value], separator: Value) -> Value:
    parts = [octets(text_of(one)) for one in values]
    between = octets(separator, "separator")
    bounded_size(sum(map(len, parts)) + len(between) * len(parts))
    return from_octets(between.join(parts))


def _join_to_string(*arguments: Value) -> Value:
    """`join_to_string(array)` puts `, ` between; `join_to_string(separator, array)` its own."""
    separator = arguments[0] if len(arguments) == 2 else ", "
    return _join(array(arguments[-1]), separator)


def _sql_literal(value: Value) -> Value:
    """Numbers as they are, everything else in quotes, with a backslash before quotes and backslashes."""
    if type(value) is int or type(value) is float:
        return text_of(value)
    if value is UNDEFINED:
        return "NULL"
    shown = octets(json_text(value) if type(value) is list else text_of(value))
    return from_octets(b"'" + shown.replace(b"\\", b"\\\\").replace(b"'", b"\\'") + b"'")


FUNCTIONS: dict[str, Function] = {
    "ascii": Function(_ascii, (1,)),
    "concat": Function(_concat, (1, 2)),
    "find": Function(_find, (2, 3)),
    "join_to_sql_values_string": Function(lambda values: _join([_sql_literal(one) for one in array(values)], ", "), (1,)),
    "join_to_string": Function(_join_to_string, (1, 2)),
    "lower": Function(_lower, (1,)),
    "ltrim": Function(lambda value: text(value).lstrip(_WHITESPACE), (1,)),
    "pad": Function(_pad, (2, 3, 4)),
    "replace": Function(_replace, (3, 4)),
    "reverse": Function(_reverse, (1,)),
    "rm_prefix": Function(_remove_prefix, (2,)),
    "rtrim": Function(lambda value: text(value).rstrip(_WHITESPACE), (1,)),
    "split": Function(_split, (2, 3)),
    "strlen": Function(lambda value: len(graphemes(text(value))), (1,)),
    "substr": Function(_slice, (2, 3)),
    "tokens": Function(_tokens, (2, 3)),
    "trim": Function(lambda value: text(value).strip(_WHITESPACE), (1,)),
    "unescape": Function(_unescape, (1,)),
    "upper": Function(lambda value: text(value).upper(), (1,)),
}
