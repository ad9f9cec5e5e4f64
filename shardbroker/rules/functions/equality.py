"""Equality of values: `equal` as `=` between values of one kind, `identical` also tells 1 from 1.0."""

from shardbroker.rules.values import Value

__all__ = ["equal", "identical"]


def equal(left: Value, right: Value) -> bool:
    """Compares numbers by value; a boolean is no number."""
    return _compare(left, right, by_type=False)


def identical(left: Value, right: Value) -> bool:
    """Compares values and types."""
    return _compare(left, right, by_type=True)


def _compare(left: Value, right: Value, by_type: bool) -> bool:
    kind = type(left)
    if kind is not type(right):
        numbers = {int, float}
        return not by_type and kind in numbers and type(right) in numbers and bool(left == right)
    if kind is list:
        return len(left) == len(right) and all(_compare(a, b, by_type) for a, b in zip(left, right, strict=True))
    if kind is dict:
        return left.keys() == right.keys() and all(_compare(value, right[key], by_type) for key, value in left.items())
    return bool(left == right)
