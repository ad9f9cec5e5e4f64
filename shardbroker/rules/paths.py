"""Paths: `a.b[1]` in maps, arrays and texts of JSON; reading, writing, slices.

A step into a text reads it as JSON. A missing step, null and a wrong kind give `UNDEFINED`. An index that is a path is looked up in
the value at which the whole path starts: in the payload for `payload.l[i]`.
"""

from typing import Any, Final

from shardbroker.rules.payload import Payload, nested
from shardbroker.rules.syntax import Index, Path, Step
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["RANGE_MAX", "find", "find_in_either", "get", "get_key", "integers", "put", "slice_of"]

RANGE_MAX: Final = 10_000
"""Most integers of a range."""


def get_key(value: Value, key: str) -> Value:
    """Returns an element of a map, or of a text that is one as JSON."""
    if isinstance(value, str):
        value = nested(value)
    return value.get(key, UNDEFINED) if type(value) is dict else UNDEFINED


def get(value: Value, steps: tuple[Step, ...], start: Value = UNDEFINED) -> Value:
    """Follows steps; indexes that are paths are looked up in `start`, by default in `value`."""
    if start is UNDEFINED:
        start = value
    for step in steps:
        if isinstance(step, str):
            value = get_key(value, step)
        else:
            value = _element(value, _number(step, start))
        if value is UNDEFINED:
            break
    return value


def find(columns: dict[str, Value], payload: Payload, steps: tuple[Step, ...]) -> Value:
    """Follows a path from the columns of an event, or from fields that a rule has selected so far."""
    root = steps[0]
    assert isinstance(root, str)
    value = columns.get(root, UNDEFINED)
    if len(steps) == 1 or value is UNDEFINED:
        return value
    if root != "payload":
        return get(value, steps[1:], columns)
    if value is payload.raw:
        value = payload.value()
    elif isinstance(value, str | bytes):
        value = Payload(value).value()
    return get(value, steps[1:], value)


def find_in_either(
    fields: dict[str, Value], columns: dict[str, Value], payload: Payload, steps: tuple[Step, ...]
) -> Value:
    """Follows a path from the fields selected so far, else from the columns."""
    value = find(fields, payload, steps)
    return find(columns, payload, steps) if value is UNDEFINED else value


def _number(index: Index, start: Value) -> int | None:
    if index.path is None:
        return index.number
    number = get(start, index.path.steps)
    return number if type(number) is int else None


def _element(value: Value, number: int | None) -> Value:
    if isinstance(value, str):
        value = nested(value)
    if type(value) is not list or not number or abs(number) > len(value):
        return UNDEFINED
    return value[number - 1 if number > 0 else number]


def slice_of(value: Value, first: int, last: int) -> list[Value]:
    """Returns the elements from `first` to `last`, counted from 1, or from the end if negative. Raises EvaluationError."""
    if type(value) is not list:
        raise EvaluationError(f"range [{first}..{last}]: must be of an array, got {type(value).__name__}")
    if not first or not last:
        raise EvaluationError(f"range [{first}..{last}]: must have ends other than 0")
    begin, end = (one if one > 0 else len(value) + one + 1 for one in (first, last))
    if begin < 1 or (end - begin + 1 < 0 and begin < len(value) + 2):
        raise EvaluationError(f"range [{first}..{last}]: must be within an array of {len(value)} elements")
    return value[begin - 1 : end]


def integers(first: int, last: int) -> list[Value]:
    """Returns the integers from `first` to `last`. Raises EvaluationError."""
    if last < first - 1 or last - first >= RANGE_MAX:
        raise EvaluationError(f"range [{first}..{last}]: must be ascending and of at most {RANGE_MAX} integers")
    return list(range(first, last + 1))


def put(fields: dict[str, Value], path: Path, value: Value) -> None:
    """Sets an element of the result of a rule; copies what it changes, since the result shares values with the payload."""
    root = path.root
    if len(path.steps) == 1:
        fields[root] = value
        return
    old: Any = fields.get(root, UNDEFINED)
    if root == "payload" and isinstance(old, str | bytes):
        old = nested(old)
        if old is UNDEFINED:
            raise EvaluationError("payload: must be JSON to set a part of it")
    fields[root] = _with(old, path.steps[1:], value, fields)


def _with(old: Value, steps: tuple[Step, ...], value: Value, fields: dict[str, Value]) -> Value:
    """Returns a copy of `old` with the element at `steps` set."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        inner = _with(get_key(old, step), rest, value, fields)
        return {**old, step: inner} if type(old) is dict else {step: inner}
    number = _number(step, fields)
    inner = _with(_element(old, number), rest, value, fields)
    if type(old) is not list:
        return [inner]
    if number is None and step.path is None:
        return [*old, inner] if step.is_tail else [inner, *old]
    if not number or abs(number) > len(old):
        return old
    changed = list(old)
    changed[number - 1 if number > 0 else number] = inner
    return changed
