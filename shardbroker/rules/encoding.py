"""Values of rules as JSON and back: bytes are `{"$bytes": base64}`, a missing field is `{"$undefined": true}`."""

import base64
from typing import Any

from shardbroker.rules.values import UNDEFINED, Value

__all__ = ["decoded", "encoded"]


def encoded(value: Value) -> Any:
    """Returns a value that JSON can hold."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): encoded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(one) for one in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    return {"$undefined": True} if value is UNDEFINED else value


def decoded(value: Any) -> Value:
    """Returns the value that `encoded` made. Raises ValueError."""
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$bytes"} and isinstance(value["$bytes"], str):
        data = base64.b64decode(value["$bytes"], validate=True)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data
    if value.keys() == {"$undefined"}:
        return UNDEFINED
    if value.keys() == {"$atom"}:
        return value["$atom"]
    return {key: decoded(one) for key, one in value.items()}
