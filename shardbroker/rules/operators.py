"""Operators of SQL: arithmetic, comparison, IN.

Kinds of values are ordered as in EMQX: numbers, then booleans and null, maps, arrays, text. A boolean or null is compared with
text by its name, a number with text by the number in that text.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from shardbroker.rules.functions.equality import identical
from shardbroker.rules.functions.texts import text_of
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value, is_number

__all__ = ["ARITHMETIC", "COMPARISONS", "compare", "contains", "identical", "matches", "minus"]

INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
FLOAT = re.compile(r"[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?", re.ASCII)
DIGITS_MAX: Final = 4_300
"""Most digits of an integer in a text: the work to convert grows with the square."""
BITS_MAX: Final = 65_536
"""Most bits of a product: factors of a payload are bounded one by one, a chain of them is not."""
NAMES: Final = {True: "true", False: "false", None: "null"}


# --- arithmetic -------------------------------------------------------------------------------------------------------------------


def add(left: Value, right: Value) -> Value:
    """Adds numbers; appends where one side is text."""
    if is_number(left) and is_number(right):
        return _finite(left + right)
    if isinstance(left, str | bytes) or isinstance(right, str | bytes):
        first, second = text_of(left), text_of(right)
        if isinstance(first, str) and isinstance(second, str):
            return first + second
        return _text(_bytes(first) + _bytes(second))
    raise _refused("+", left, right)


def subtract(left: Value, right: Value) -> Value:
    _check_numbers("-", left, right)
    return _finite(left - right)


def multiply(left: Value, right: Value) -> Value:
    _check_numbers("*", left, right)
    if type(left) is int and type(right) is int and left.bit_length() + right.bit_length() > BITS_MAX:
        raise EvaluationError(f"'*': must be a product of at most {BITS_MAX} bits")
    return _finite(left * right)


def divide(left: Value, right: Value) -> Value:
    """Divides; the result is always a float."""
    _check_numbers("/", left, right)
    if right == 0:
        raise EvaluationError("'/': must be a divisor other than 0, got 0")
    return _finite(left / right)


def quotient(left: Value, right: Value) -> Value:
    """Divides integers and drops the fraction."""
    _check_integers("div", left, right)
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def remainder(left: Value, right: Value) -> Value:
    """Returns what `div` leaves, with the sign of the left side."""
    _check_integers("mod", left, right)
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def minus(value: Value) -> Value:
    """Returns a number with the other sign."""
    if not is_number(value):
        raise EvaluationError(f"'-': must be a number, got {_shown(value)}")
    return -value


def _finite(value: float) -> float:
    if type(value) is float and not math.isfinite(value):
        raise EvaluationError("arithmetic: must be a result below 1.8e308")
    return value


def _check_numbers(sign: str, left: Value, right: Value) -> None:
    if not (is_number(left) and is_number(right)):
        raise _refused(sign, left, right)


def _check_integers(sign: str, left: Value, right: Value) -> None:
    if type(left) is not int or type(right) is not int or right == 0:
        raise _refused(sign, left, right)


def _refused(sign: str, left: Value, right: Value) -> EvaluationError:
    return EvaluationError(f"'{sign}': must be two values that it takes, got {_shown(left)} and {_shown(right)}")


def _shown(value: Value) -> str:
    return "text" if isinstance(value, str | bytes) else type(value).__name__ if isinstance(value, dict | list) else str(value)[:40]


def _bytes(text: str | bytes) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


ARITHMETIC: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "div": quotient,
    "mod": remainder,
}

# --- comparison -------------------------------------------------------------------------------------------------------------------


def compare(test: Callable[[Any, Any], bool], left: Value, right: Value) -> bool:
    """Compares any two values; `test` is a function of the module `operator`."""
    left_kind, right_kind = type(left), type(right)
    if left_kind is right_kind and left_kind in (int, float, str, bytes):
        return test(left, right)
    if left is UNDEFINED or right is UNDEFINED:
        return left is right and test(0, 0)
    left, right = _aligned(left, right)
    return test(_order(left, right), 0)


def _aligned(left: Value, right: Value) -> tuple[Value, Value]:
    """Converts one side where a text is compared with a number, a boolean or null."""
    if isinstance(left, str | bytes):
        if is_number(right):
            return _number(left), right
        if right is None or isinstance(right, bool):
            return left, NAMES[right]
    elif isinstance(right, str | bytes):
        if is_number(left):
            return left, _number(right)
        if left is None or isinstance(left, bool):
            return NAMES[left], right
    return left, right


def _number(text: str | bytes) -> int | float:
    """Returns the number that a text is. Raises EvaluationError."""
    if isinstance(text, str) and len(text) <= DIGITS_MAX:
        if INTEGER.fullmatch(text):
            return int(text)
        if FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
            return number
    raise EvaluationError(f"comparison: must be a number or a text of one, got {text[:40]!r}")


def _rank(value: Value) -> int:
    kind = type(value)
    if kind is int or kind is float:
        return 0
    if kind is bool or value is None or value is UNDEFINED:
        return 1
    return 2 if kind is dict else 3 if kind is list else 4


def _order(left: Value, right: Value) -> int:
    """Returns -1, 0 or 1: the order of two values of any kinds."""
    rank = _rank(left)
    if rank != _rank(right):
        return -1 if rank < _rank(right) else 1
    if rank == 1:
        left, right = (NAMES.get(one, "undefined") if one is not UNDEFINED else "undefined" for one in (left, right))
    elif rank == 2:
        return _order_of_maps(left, right)
    elif rank == 3:
        return _first_difference(zip(left, right, strict=False)) or (len(left) > len(right)) - (len(left) < len(right))
    elif rank == 4 and type(left) is not type(right):
        left, right = _bytes(left), _bytes(right)
    return int(left > right) - int(left < right)


def _order_of_maps(left: dict[str, Value], right: dict[str, Value]) -> int:
    if len(left) != len(right):
        return -1 if len(left) < len(right) else 1
    keys, other_keys = sorted(left), sorted(right)
    if keys != other_keys:
        return -1 if keys < other_keys else 1
    return _first_difference((left[key], right[key]) for key in keys)


def _first_difference(pairs: Iterable[tuple[Value, Value]]) -> int:
    for left, right in pairs:
        if order := _order(left, right):
            return order
    return 0


def contains(value: Value, items: Iterable[Value]) -> bool:
    """Returns whether `value IN (items)`."""
    return any([identical(value, item) for item in items])


# --- =~ ---------------------------------------------------------------------------------------------------------------------------


def matches(topic: Value, topic_filter: Value) -> bool:
    """Returns `topic =~ filter`. Arrays are levels of a topic, as in EMQX; other values match '#' only."""
    if topic is UNDEFINED or topic_filter is UNDEFINED:
        return False
    topic, topic_filter = _aligned(topic, topic_filter)
    if isinstance(topic, str | bytes) and isinstance(topic_filter, str | bytes):
        topic, topic_filter = _bytes(topic), _bytes(topic_filter)
        if topic[:1] == b"$" and topic_filter[:1] in (b"+", b"#"):
            return False  # [MQTT-4.7.2-1]
        return _levels_match(topic.split(b"/"), topic_filter.split(b"/"), b"+", b"#")
    if isinstance(topic_filter, str):
        return _levels_match(topic if isinstance(topic, list) else None, topic_filter.split("/"), "+", "#")
    if isinstance(topic, str) and isinstance(topic_filter, list):
        return identical(topic.split("/"), topic_filter)
    return isinstance(topic, list) and isinstance(topic_filter, list) and identical(topic, topic_filter)


def _levels_match(levels: list[Any] | None, wanted: list[Any], any_one: Any, any_rest: Any) -> bool:
    for at, one in enumerate(wanted):
        if one == any_rest and at == len(wanted) - 1:
            return levels is not None or at == 0
        if levels is None or at >= len(levels) or one not in (any_one, levels[at]):
            return False
    return levels is not None and len(levels) == len(wanted)


COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""All but `=~`."""
