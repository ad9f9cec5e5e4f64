"""Regular expressions. They match bytes, as in EMQX: `.` is one byte, and classes are those of ASCII."""

import re
from functools import lru_cache
from typing import Any

from shardbroker.rules.functions.arguments import bounded_size, from_octets, octets, text
from shardbroker.rules.functions.libraries import library
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["FUNCTIONS"]

_TIMEOUT_SECONDS = 0.1
"""A search of a payload takes microseconds; an expression that backtracks without end is stopped here."""

_MAX_PATTERN_BYTES = 4096
"""Bytes of an expression: compilation has no timeout, and takes about a microsecond a byte."""

_MAX_ITEMS = 4096
"""Items of an expression after its repetitions: `(a{100}){100}` becomes 10,000 copies of 660 bytes each when it is compiled."""

_PATTERNS = 64
"""Compiled expressions that are kept, of at most 3 MB each."""

_ITEM = re.compile(rb"\\.|\[\^?\]?[^\]]*\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)
"""An item of an expression, or how often it is repeated; `_items` counts them."""

_UNCOUNTED = re.compile(rb"\(\?(?:#|[A-Za-z0-9-]*[xVw])")
"""Comments, and flags that change how an expression is read, so that its items could not be counted."""

_REFERENCE = re.compile(rb"\\g\{(\d{1,3})\}|\\g(\d{1,3})|\\([1-9]\d{0,2})|\\(.)|(&)", re.DOTALL)
"""References of a replacement: `&` and groups by number; a backslash before anything else makes it literal."""


@lru_cache(_PATTERNS)
def _compiled(pattern: bytes) -> Any:
    if len(pattern) > _MAX_PATTERN_BYTES:
        raise EvaluationError(f"expression: must be at most {_MAX_PATTERN_BYTES} bytes, got {len(pattern)}")
    if _UNCOUNTED.search(pattern):
        raise EvaluationError(f"expression: must have neither comments nor the flags x, V and w, got {pattern[:64]!r}")
    if _items(pattern) > _MAX_ITEMS:
        raise EvaluationError(f"expression: must have at most {_MAX_ITEMS} items with its repetitions")
    regex = library("regex")
    try:
        # The library would keep 500 more of its own.
        return regex.compile(pattern, cache_pattern=False)
    except regex.error as error:
        raise EvaluationError(f"expression: must be a regular expression, got {pattern[:64]!r}: {error}") from None


def _items(pattern: bytes) -> int:
    """Returns the number of items that an expression has once its repetitions are copies."""
    groups, last = [0], 0
    for found in _ITEM.finditer(pattern):
        item = found.group()
        if item == b"(":
            groups.append(1)
            last = 0
        elif item == b")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif found[1] is not None:
            times = max(int(found[1][:9]), int((found[2] or b"0")[:9]), 1)
            groups[-1] += last * (times - 1)
            last *= times
        else:
            last = 1
            groups[-1] += 1
        if groups[-1] > _MAX_ITEMS:
            return groups[-1]
    return sum(groups)


def _arguments(value: Value, pattern: Value) -> tuple[Any, bytes]:
    return _compiled(octets(pattern, "expression")), octets(text(value) if isinstance(value, bool) else value, "text")


def _slow() -> EvaluationError:
    return EvaluationError(f"expression: must match within {_TIMEOUT_SECONDS:g} s")


def _match(value: Value, pattern: Value) -> bool:
    expression, data = _arguments(value, pattern)
    try:
        return expression.search(data, timeout=_TIMEOUT_SECONDS) is not None
    except TimeoutError:
        raise _slow() from None


def _extract(value: Value, pattern: Value) -> list[Value]:
    """The groups of the first match; those at the end that took no part are left out."""
    expression, data = _arguments(value, pattern)
    try:
        found = expression.search(data, timeout=_TIMEOUT_SECONDS)
    except TimeoutError:
        raise _slow() from None
    groups = list(found.groups()) if found else []
    while groups and groups[-1] is None:
        groups.pop()
    return [from_octets(group or b"") for group in groups]


def _replace(value: Value, pattern: Value, replacement: Value) -> Value:
    expression, data = _arguments(value, pattern)
    parts = _template(octets(replacement, "replacement"))
    size = 0

    def made(found: Any) -> bytes:
        nonlocal size
        new = b"".join(part if isinstance(part, bytes) else _group(found, part) for part in parts)
        size += len(new)
        bounded_size(size)
        return new

    try:
        replaced = expression.sub(made, data, timeout=_TIMEOUT_SECONDS)
    except TimeoutError:
        raise _slow() from None
    bounded_size(len(replaced))
    return from_octets(replaced)


def _group(found: Any, number: int) -> bytes:
    return (found[number] or b"") if number <= found.re.groups else b""


def _template(replacement: bytes) -> list[bytes | int]:
    """Returns the parts of a replacement: literal bytes, and numbers of groups."""
    parts: list[bytes | int] = []
    at = 0
    for found in _REFERENCE.finditer(replacement):
        parts.append(replacement[at : found.start()])
        number = found[1] or found[2] or found[3]
        parts.append(0 if found[5] else int(number) if number else found[4])
        at = found.end()
    parts.append(replacement[at:])
    return parts


FUNCTIONS: dict[str, Function] = {
    "regex_extract": Function(_extract, (2,)),
    "regex_match": Function(_match, (2,)),
    "regex_replace": Function(_replace, (3,)),
}
