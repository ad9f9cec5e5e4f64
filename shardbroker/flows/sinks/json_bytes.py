"""Values of rules as JSON that a client can read back, for drivers: bytes are `{"$bytes": base64}`."""

import base64
import json
from typing import Any

from shardbroker.rules.values import UNDEFINED

try:
    import orjson
except ImportError:  # the extra `rules` is not installed
    orjson = None  # type: ignore[assignment]

__all__ = ["json_bytes"]


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON in one line. A missing field is "undefined", as in templates. Raises ValueError, RecursionError."""
    if orjson is not None:
        try:
            return orjson.dumps(value, _of_other)
        except TypeError:  # an integer above 64 bits, half a character, a key that is no text, a hundred levels
            pass
    try:
        return json.dumps(value, default=_of_other, allow_nan=False, separators=(",", ":")).encode()
    except TypeError as error:
        raise ValueError(str(error)) from None


def _of_other(value: Any) -> Any:
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is no JSON")
