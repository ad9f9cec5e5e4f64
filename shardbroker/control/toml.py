"""Settings as JSON, and as the keys and TOML texts that verbs of the configuration take."""

import json
import tomllib
from collections.abc import Iterable
from typing import Any

from shardbroker.control.errors import ControlError

__all__ = ["as_toml", "assignments", "nested"]

DEPTH_MAX = 8
"""Most levels of tables; the schema has three."""


def assignments(tree: dict[str, Any], prefix: str = "", depth: int = 0) -> dict[str, str]:
    """Returns the leaves by dotted key, values as TOML. Raises ControlError."""
    if depth > DEPTH_MAX:
        raise ControlError("BAD_REQUEST", f"{prefix[:100]}: must have at most {DEPTH_MAX} levels")
    found: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            found |= assignments(value, f"{prefix}{name}.", depth + 1)
        else:
            found[f"{prefix}{name}"] = as_toml(value)
    return found


def as_toml(value: Any, depth: int = 0) -> str:
    """Returns a JSON value as TOML. Raises ControlError for null, which TOML does not have."""
    if value is None:
        raise ControlError("BAD_REQUEST", "null is not a value: omit what is not to change")
    if depth > DEPTH_MAX:
        raise ControlError("BAD_REQUEST", f"a value must have at most {DEPTH_MAX} levels")
    if isinstance(value, list):
        return f"[{', '.join(as_toml(one, depth + 1) for one in value)}]"
    if isinstance(value, dict):
        fields = (f"{json.dumps(name, ensure_ascii=False)} = {as_toml(one, depth + 1)}" for name, one in value.items())
        return "{" + ", ".join(fields) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one sign that TOML does not have as it is


def nested(rows: Iterable[dict[str, Any]], root: str) -> dict[str, Any]:
    """Returns rows of `config get` as nested tables below a section; a single key as a table with its last name."""
    tree: dict[str, Any] = {}
    for row in rows:
        _merge(tree, tomllib.loads(f"{row['key']} = {row['value']}"))
    for part in root.split("."):
        tree = tree.get(part, {})
    return tree if isinstance(tree, dict) else {root.rpartition(".")[2]: tree}


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value
