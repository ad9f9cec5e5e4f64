"""The sections `[connectors.<type>.<name>]`, `[actions.<type>.<name>]` and `[sources.<type>.<name>]`, with a table for each
type."""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import Field, create_model, field_validator

from shardbroker.config.base import Section
from shardbroker.config.sinks.base import NAME
from shardbroker.config.sinks.ids import check_own_name, checked_id
from shardbroker.config.sinks.types import SINK_TYPES

__all__ = ["SINKS_MAX", "Actions", "Connectors", "Sources", "check_actions", "check_sources"]

SINKS_MAX = 1000
"""Connectors of a broker, actions, and sources: each change writes all of them."""


def _tables(of: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for type, row in SINK_TYPES.items():
        model: Any = getattr(row, of)
        if model is None:
            continue
        found[type] = (dict.__class_getitem__((str, model)), Field({}, description=f"{row.title}: {of}s by name."))
    return found


class _Tables(Section):
    @field_validator("*")
    @classmethod
    def _names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if not re.fullmatch(NAME, name):
                raise ValueError(f"allowed is a name of up to 64 letters, digits, - and _, a letter or digit first, not {name!r}")
            check_own_name(name)
        if len(value) > SINKS_MAX:
            raise ValueError(f"allowed is up to {SINKS_MAX} of them, not {len(value)}")
        return value

    def _by_id(self) -> Iterator[tuple[str, Any]]:
        for kind in type(self).model_fields:
            for name, one in getattr(self, kind).items():
                yield f"{kind}:{name}", one


class Connectors(create_model("_Connectors", __base__=_Tables, **_tables("connector"))):  # type: ignore[misc]
    """Connections to other systems, which actions and sources use: a table for each type."""

    def by_id(self) -> dict[str, Any]:
        """Returns all connectors by `type:name`."""
        return dict(self._by_id())


class Actions(create_model("_Actions", __base__=_Tables, **_tables("action"))):  # type: ignore[misc]
    """What rules do in other systems: a table for each type."""

    def by_id(self) -> dict[str, Any]:
        """Returns all actions by `type:name`."""
        return dict(self._by_id())


class Sources(create_model("_Sources", __base__=_Tables, **_tables("source"))):  # type: ignore[misc]
    """What arrives from other systems: a table for each type."""

    def by_id(self) -> dict[str, Any]:
        """Returns all sources by `type:name`."""
        return dict(self._by_id())


def check_sources(sources: Sources, connectors: Connectors) -> None:
    """Raises ValueError for a source without its connector."""
    _check_connectors("sources", sources.by_id(), connectors.by_id())


def _check_connectors(section: str, users: dict[str, Any], there: dict[str, Any]) -> None:
    for id, one in users.items():
        type = id.partition(":")[0]
        if f"{type}:{one.connector}" not in there:
            raise ValueError(
                f"allowed is a connector that exists: {section}.{id.replace(':', '.')}.connector names {one.connector!r}, and "
                f"there is no connectors.{type}.{one.connector}"
            )


def check_actions(actions: Actions, connectors: Connectors) -> None:
    """Raises ValueError for an action without its connector, or with a fallback that does not exist."""
    known = actions.by_id()
    _check_connectors("actions", known, connectors.by_id())
    for id, action in known.items():
        for fallback in action.fallback_actions:
            try:
                other = ":".join(checked_id(fallback))
            except ValueError as error:
                raise ValueError(f"allowed is a list of type:name: fallback_actions of {id} {error}") from None
            if other not in known or other == id:
                raise ValueError(f"allowed is another action that exists: fallback_actions of {id} names {fallback!r}")
