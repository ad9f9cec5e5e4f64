"""Arrays. Positions count from 1."""

from shardbroker.rules.functions.arguments import array, integer, refusal
from shardbroker.rules.functions.equality import identical
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import Value

__all__ = ["FUNCTIONS"]


def _nth(position: Value, values: Value) -> Value:
    if not 1 <= integer(position, "position") <= len(array(values)):
        raise refusal("position", f"1 to {len(values)}", position)
    return values[position - 1]


def _sublist(*arguments: Value) -> list[Value]:
    """`sublist(length, array)` begins at the first value; `sublist(start, length, array)` at a position."""
    values = array(arguments[-1])
    length = integer(arguments[-2], "length")
    start = integer(arguments[0], "start") if len(arguments) == 3 else 1
    if length < 0:
        raise refusal("length", "0 or more", length)
    if start < 1:
        raise refusal("start", "1 or more", start)
    return values[start - 1 : start - 1 + length]


def _end(position: int, values: Value) -> Value:
    if not array(values):
        raise refusal("array", "not empty", values)
    return values[position]


FUNCTIONS: dict[str, Function] = {
    "contains": Function(lambda value, values: any(identical(value, one) for one in array(values)), (2,)),
    "first": Function(lambda values: _end(0, values), (1,)),
    "last": Function(lambda values: _end(-1, values), (1,)),
    "length": Function(lambda values: len(array(values)), (1,)),
    "nth": Function(_nth, (2,)),
    "sublist": Function(_sublist, (2, 3)),
}
