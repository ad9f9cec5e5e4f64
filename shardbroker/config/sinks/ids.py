"""Ids `type:name` of connectors, actions and sources, and the names of their types."""

import re
from collections.abc import Iterable
from typing import Any

from shardbroker.config.sinks.base import NAME, PRESETS
from shardbroker.config.sinks.types import ALIASES, SINK_TYPES, source_types

__all__ = [
    "SECTIONS", "check_names_of_sources", "check_own_name", "checked_id", "checked_source_id", "normal_id", "normal_path",
    "normal_tree", "normal_type", "source_id", "types_text",
]  # fmt: skip

SECTIONS = ("connectors", "actions", "sources")
"""Sections of the configuration whose second part is a type."""
NAMES_OF_SOURCES = ("$sources/", "$bridges/")
"""Beginnings of the names of sources behind FROM."""


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


def checked_source_id(id: object) -> tuple[str, str]:
    """Returns type and name of the id of a source. Raises ValueError."""
    type, name = checked_id(id)
    if SINK_TYPES[type].source is None:
        raise ValueError(f"type must be one with sources ({', '.join(source_types())}), got {type!r}")
    return type, name


def source_id(name: str) -> str:
    """Returns the id of the source behind FROM, such as `$sources/rabbitmq:orders`; an empty text for other names. Raises
    ValueError for one that cannot be the id of a source."""
    for prefix in NAMES_OF_SOURCES:
        if name.startswith(prefix):
            return ":".join(checked_source_id(name.removeprefix(prefix)))
    return ""


def check_names_of_sources(names: Iterable[str]) -> None:
    """Raises ValueError for a name behind FROM that is meant to be a source, and cannot be one."""
    for name in names:
        try:
            source_id(name)
        except ValueError as error:
            raise ValueError(f"sql: FROM: {name[:100]}: {error}") from None


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
