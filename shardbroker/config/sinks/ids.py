"""Ids `type:name` of connectors and actions, and the names of their types."""

import re
from typing import Any

from shardbroker.config.sinks.base import NAME, PRESETS
from shardbroker.config.sinks.types import ALIASES, SINK_TYPES

__all__ = ["SECTIONS", "check_own_name", "checked_id", "normal_id", "normal_path", "normal_tree", "normal_type", "types_text"]

SECTIONS = ("connectors", "actions")
"""Sections of the configuration whose second part is a type."""


def normal_type(name: str) -> str:
    """Returns the name that a type has here and in EMQX; an unknown one as it is."""
    return ALIASES.get(name, name)


def normal_id(id: str) -> str:
    """Returns `type:name` with the type's own name; other text as it is."""
    type, colon, name = id.partition(":")
    return f"{normal_type(type)}:{name}" if colon else id


def check_own_name(name: str) -> None:
    """Raises ValueError for a name of a user that is one of those of presets."""
    if name.startswith(PRESETS):
        raise ValueError(f"allowed is a name without {PRESETS} at its start, which the presets persistence.<db> have, not {name!r}")


def checked_id(id: object) -> tuple[str, str]:
    """Returns type and name of an id. Raises ValueError."""
    type, colon, name = str(id).partition(":")
    if not colon or not re.fullmatch(NAME, name):
        raise ValueError(f"must be type:name, with a name of up to 64 letters, digits, - and _, got {str(id)[:200]!r}")
    if normal_type(type) not in SINK_TYPES:
        raise ValueError(f"type must be {types_text()}, got {type[:64]!r}")
    return normal_type(type), name


def types_text() -> str:
    """Returns all types as the end of a sentence."""
    return ", ".join(SINK_TYPES)


def normal_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the path of a key with the type's own name."""
    return (path[0], normal_type(path[1]), *path[2:]) if len(path) > 1 and path[0] in SECTIONS else path


def normal_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """Returns the contents of a file with the types' own names. Raises ValueError for an id under two names of its type."""
    found = dict(tree)
    for section in SECTIONS:
        given = tree.get(section)
        if not isinstance(given, dict):
            continue
        merged: dict[str, Any] = {}
        for type, entries in given.items():
            before = merged.setdefault(normal_type(type), {})
            if not isinstance(entries, dict) or not isinstance(before, dict):
                merged[normal_type(type)] = entries
                continue
            if twice := sorted(before.keys() & entries.keys()):
                id = f"{section}.{normal_type(type)}.{twice[0]}"
                raise ValueError(f"{id}: must be under one name of its type, got it under {type} as well")
            merged[normal_type(type)] = before | entries
        found[section] = merged
    return found
