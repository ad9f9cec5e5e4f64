"""Tests of types. Only a missing value is null for `is_null`; `is_null_var` also takes null of JSON."""

from shardbroker.rules.functions.maps import map_of
from shardbroker.rules.functions.table import Function
from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["FUNCTIONS"]


def _is_empty(value: Value) -> bool:
    """Of an array, a map, or a map as JSON."""
    return not (value if type(value) is list else map_of(value))


FUNCTIONS: dict[str, Function] = {
    "is_array": Function(lambda value: type(value) is list, (1,)),
    "is_bool": Function(lambda value: type(value) is bool, (1,)),
    "is_empty": Function(_is_empty, (1,)),
    "is_float": Function(lambda value: type(value) is float, (1,)),
    "is_int": Function(lambda value: type(value) is int, (1,)),
    "is_map": Function(lambda value: type(value) is dict, (1,)),
    "is_not_null": Function(lambda value: value is not UNDEFINED, (1,)),
    "is_not_null_var": Function(lambda value: value is not UNDEFINED and value is not None, (1,)),
    "is_null": Function(lambda value: value is UNDEFINED, (1,)),
    "is_null_var": Function(lambda value: value is UNDEFINED or value is None, (1,)),
    "is_num": Function(lambda value: type(value) is int or type(value) is float, (1,)),
    "is_str": Function(lambda value: isinstance(value, str | bytes), (1,)),
}
