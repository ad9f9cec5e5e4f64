"""Values that rules keep between messages: one store for all rules (`kv_store_*`), and one of the process (`proc_dict_*`).

Both live in the process that evaluates the rules, and end with it.
"""

from shardbroker.rules.functions.table import Function
from shardbroker.rules.functions.terms import encode_term
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["FUNCTIONS", "Store"]

MAX_KEYS = 10_000
"""Keys of a store."""

MAX_KEY_BYTES = 1_024
"""Bytes of a key, as Erlang's term format has it."""

MAX_VALUE_BYTES = 65_536
"""Bytes of a value, in the same form."""

MAX_STORE_BYTES = 16 << 20
"""Bytes of all keys and values of a store: keys may come from payloads, and 10,000 values of the size above were 640 MiB."""


class Store:
    """Keys and values with bounds; keys differ by type, so 1 and 1.0 are two."""

    def __init__(self) -> None:
        self._values: dict[bytes, tuple[Value, int]] = {}
        self._size = 0

    def get(self, key: Value, default: Value = UNDEFINED) -> Value:
        found = self._values.get(_key(key))
        return default if found is None else found[0]

    def put(self, key: Value, value: Value) -> Value:
        """Returns the value that was there before."""
        name = _key(key)
        size = len(name) + len(encode_term(value))
        if size > MAX_VALUE_BYTES:
            raise EvaluationError(f"value: must be at most {MAX_VALUE_BYTES} bytes, got {size}")
        before, freed = self._values.get(name, (UNDEFINED, 0))
        if not freed and len(self._values) >= MAX_KEYS:
            raise EvaluationError(f"key: must be one of the {MAX_KEYS} that are stored")
        if self._size + size - freed > MAX_STORE_BYTES:
            raise EvaluationError(f"store: must be at most {MAX_STORE_BYTES} bytes")
        self._values[name] = value, size
        self._size += size - freed
        return before

    def delete(self, key: Value) -> Value:
        """Returns the value that was there."""
        value, size = self._values.pop(_key(key), (UNDEFINED, 0))
        self._size -= size
        return value


def _key(key: Value) -> bytes:
    name = encode_term(key)
    if len(name) > MAX_KEY_BYTES:
        raise EvaluationError(f"key: must be at most {MAX_KEY_BYTES} bytes, got {len(name)}")
    return name


_SHARED = Store()
_PROCESS = Store()


def _put(key: Value, value: Value) -> bool:
    _SHARED.put(key, value)
    return True


def _delete(key: Value) -> bool:
    _SHARED.delete(key)
    return True


FUNCTIONS: dict[str, Function] = {
    "kv_store_del": Function(_delete, (1,), is_pure=False),
    "kv_store_get": Function(_SHARED.get, (1, 2), is_pure=False),
    "kv_store_put": Function(_put, (2,), is_pure=False),
    "proc_dict_del": Function(_PROCESS.delete, (1,), is_pure=False),
    "proc_dict_get": Function(_PROCESS.get, (1,), is_pure=False),
    "proc_dict_put": Function(_PROCESS.put, (2,), is_pure=False),
}
