"""Maps. Keys of `map_get` and `map_put` are paths (`a.b`), those of `mget` and `mput` are whole keys."""

from shardbroker.rules.functions.arguments import refusal, text
from shardbroker.rules.functions.table import Function
from shardbroker.rules.functions.texts import float_text, json_value, key_order
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["FUNCTIONS", "map_of", "value_at"]

_MAX_PATH = 32
"""Levels of a path."""

_NAMES = {True: "true", False: "false", None: "null", UNDEFINED: "undefined"}
"""Keys that are no text, as keys of a map."""


def map_of(value: Value) -> dict[Value, Value]:
    """Returns a map, also one as JSON; an empty array counts as an empty map."""
    if type(value) is dict:
        return value
    if type(value) is list and not value:
        return {}
    if isinstance(value, str | bytes):
        decoded = _decoded(value)
        if type(decoded) is dict:
            return decoded
    raise refusal("map", "a map, or one as JSON", "undefined" if value is UNDEFINED else value)


def _decoded(data: str | bytes) -> Value:
    """The value of a JSON text, UNDEFINED for any other text."""
    try:
        return json_value(data)
    except ValueError:
        return UNDEFINED


def _path(key: Value) -> list[str]:
    path = text(key, "key").split(".", _MAX_PATH)
    if len(path) > _MAX_PATH:
        raise refusal("key", f"a path of at most {_MAX_PATH} levels", key)
    return path


def value_at(key: Value, value: Value, default: Value = UNDEFINED) -> Value:
    """Returns the value at a path; texts on the way are decoded as JSON."""
    for name in _path(key):
        if isinstance(value, str | bytes):
            value = _decoded(value)
        value = value.get(name, UNDEFINED) if type(value) is dict else UNDEFINED
        if value is UNDEFINED:
            return default
    return value


def _put(key: Value, value: Value, into: Value) -> Value:
    """Returns a map with one more value; what lies on the path and is no map is replaced by one."""
    path = _path(key)
    if value is UNDEFINED:
        return into if type(into) in (dict, list) else {}
    return _put_at(path, value, into)


def _put_at(path: list[str], value: Value, into: Value) -> dict[Value, Value]:
    copy = dict(into) if type(into) is dict else {}
    inner = copy.get(path[0])
    copy[path[0]] = _put_at(path[1:], value, inner) if len(path) > 1 else value
    return copy


def _key(key: Value) -> Value:
    """A key as maps have it."""
    if isinstance(key, str) or type(key) is int or type(key) is float:
        return key
    if type(key) in (dict, list, bytes):
        raise refusal("key", "text", key)
    return _NAMES.get(key, key)


def _mget(key: Value, value: Value, default: Value = UNDEFINED) -> Value:
    """An array of keys leads into maps of maps."""
    for name in key if type(key) is list else [key]:
        value = map_of(value).get(_key(name), UNDEFINED)
        if value is UNDEFINED:
            return default
    return value


def _mput(key: Value, value: Value, into: Value) -> Value:
    if type(key) is list:
        if not 0 < len(key) <= _MAX_PATH:
            raise refusal("key", f"1 to {_MAX_PATH} keys", key)
        inner = map_of(into).get(_key(key[0]))
        if len(key) > 1:
            value = _mput(key[1:], value, inner if type(inner) is dict else {})
        key = key[0]
    return {**map_of(into), _key(key): value}


def _keys(value: Value) -> list[Value]:
    """In the order of EMQX's maps, which is that of the keys."""
    return sorted(map_of(value), key=key_order)


def _values(value: Value) -> list[Value]:
    found = map_of(value)
    return [found[key] for key in _keys(found)]


def _entries(value: Value) -> list[Value]:
    found = map_of(value)
    return [{"key": key, "value": found[key]} for key in _keys(found)]


_REDIS_DECIMALS = 6
"""Digits after the point of a float."""


def _redis_arguments(value: Value) -> list[Value]:
    """Returns keys and values for HSET, behind the name that marks the list for Redis.

    What is neither text, number nor boolean is left out.
    """
    if isinstance(value, str | bytes):
        found = _decoded(value)
    else:
        found = value
    fields: list[Value] = ["map_to_redis_hset_args"]
    if type(found) is not dict:
        return fields
    for key in sorted(found, key=key_order, reverse=True):
        shown = _redis_value(found[key])
        if isinstance(key, str) and shown is not None:
            fields += [key, shown]
    return fields


def _redis_value(value: Value) -> Value:
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is float:
        try:
            return float_text(value, _REDIS_DECIMALS)
        except EvaluationError:
            return None
    return None


FUNCTIONS: dict[str, Function] = {
    "map_get": Function(value_at, (2, 3)),
    "map_keys": Function(_keys, (1,)),
    "map_new": Function(dict, (0,)),
    "map_put": Function(_put, (3,)),
    "map_size": Function(lambda value: len(map_of(value)), (1,)),
    "map_to_entries": Function(_entries, (1,)),
    "map_to_redis_hset_args": Function(_redis_arguments, (1,)),
    "map_values": Function(_values, (1,)),
    "mget": Function(_mget, (2, 3)),
    "mput": Function(_mput, (3,)),
}
