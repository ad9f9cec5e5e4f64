"""Connectors, actions and sources as they are defined, checked: `connectors`, `actions` and `sources` of flows.json.

    {"id": "pgsql:main", "type": "pgsql", "name": "main", "settings": {...}}

Settings are those of the model of the type in config/sinks/types.py. What is wrong with one is a problem of it alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from shardbroker.config.persistence import key_of
from shardbroker.config.sinks.base import ActionSection, ConnectorSection, ResourceOptions, SourceSection
from shardbroker.config.sinks.types import ALIASES, SINK_TYPES, source_types
from shardbroker.flows.sinks.limits import Limits

__all__ = [
    "ActionDefinition", "ConnectorDefinition", "Definitions", "SourceDefinition", "full_id", "limits_of", "read_definitions",
    "settings_of",
]  # fmt: skip


def full_id(id: str) -> str:
    """Returns `type:name` with the type's own name in place of an alias."""
    kind, colon, name = id.partition(":")
    return f"{ALIASES.get(kind, kind)}{colon}{name}"


@dataclass(frozen=True, slots=True)
class ConnectorDefinition:
    """A connector."""

    id: str
    type: str
    settings: Any
    """Its model, a ConnectorSection."""

    @property
    def key(self) -> str:
        """Its key in the configuration."""
        return f"{preset}.connection" if (preset := key_of(self.id)) else f"connectors.{self.type}.{self.id.partition(':')[2]}"


@dataclass(frozen=True, slots=True)
class ActionDefinition:
    """An action."""

    id: str
    type: str
    settings: Any
    """Its model, an ActionSection."""

    @property
    def connector(self) -> str:
        """Id of its connector."""
        return f"{self.type}:{self.settings.connector}"

    @property
    def fallbacks(self) -> list[str]:
        """Ids of the actions that get the rows that fail for good."""
        return list(dict.fromkeys(full_id(one) for one in self.settings.fallback_actions if isinstance(one, str)))

    @property
    def is_exactly_once(self) -> bool:
        return bool(getattr(getattr(self.settings, "parameters", None), "exactly_once", False))


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """A source."""

    id: str
    type: str
    settings: Any
    """Its model, a SourceSection."""

    @property
    def connector(self) -> str:
        """Id of its connector."""
        return f"{self.type}:{self.settings.connector}"


@dataclass(slots=True)
class Definitions:
    """All that are enabled, by id. Problems are those of actions, by id, and of connectors, by `connector id`."""

    connectors: dict[str, ConnectorDefinition] = field(default_factory=dict)
    actions: dict[str, ActionDefinition] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)
    """Connectors that are not enabled."""
    sources: dict[str, SourceDefinition] = field(default_factory=dict)
    problems_of_sources: dict[str, str] = field(default_factory=dict)
    """By id."""


def read_definitions(content: Mapping[str, Any]) -> Definitions:
    """Returns the definitions of flows.json."""
    found = Definitions()
    for one, settings in _usable(content, "connector", found.problems, "connector "):
        if settings.enable:
            found.connectors[one["id"]] = ConnectorDefinition(one["id"], one["type"], settings)
        else:
            found.disabled.add(one["id"])
    for one, settings in _usable(content, "action", found.problems):
        if settings.enable:
            found.actions[one["id"]] = ActionDefinition(one["id"], one["type"], settings)
    for one, settings in _usable(content, "source", found.problems_of_sources):
        if settings.enable:
            found.sources[one["id"]] = SourceDefinition(one["id"], one["type"], settings)
    _check_fallbacks(found)
    return found


def _usable(
    content: Mapping[str, Any], part: str, problems: dict[str, str], prefix: str = ""
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yields the definitions of a part with their models, and notes the problem of each other one behind `prefix` and its id."""
    listed = content.get(f"{part}s")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), str) and isinstance(one.get("type"), str):
            try:
                yield one, settings_of(one["type"], part, one.get("settings"))
            except ValueError as error:
                problems[f"{prefix}{one['id']}"] = str(error)


def settings_of(kind: str, part: str, settings: object) -> ConnectorSection | ActionSection | SourceSection:
    """Returns the model of a type. part: connector, action or source. Raises ValueError."""
    if kind not in SINK_TYPES:
        raise ValueError(f"type: must be {', '.join(sorted(SINK_TYPES))}, got {kind!r:.100}")
    model: type[ConnectorSection | ActionSection | SourceSection] | None = getattr(SINK_TYPES[kind], part)
    if model is None:
        raise ValueError(f"type: must be one with sources ({', '.join(source_types())}), got {kind!r:.100}")
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def limits_of(options: ResourceOptions, by_journal: bool) -> Limits:
    """Returns the limits of an action."""
    return Limits(
        lanes=options.worker_pool_size,
        inflight_window=options.inflight_window,
        batch_size=options.batch_size,
        batch_time_s=options.batch_time,
        buffer_records=options.buffer_records,
        buffer_bytes=options.buffer_bytes,
        request_ttl_s=options.request_ttl,
        health_check_s=options.health_check_interval,
        by_journal=by_journal,
    )


def _check_fallbacks(found: Definitions) -> None:
    """Refuses loops, which a row would follow for ever, and fallbacks whose sink stores positions, which such rows have not."""
    for id, action in list(found.actions.items()):
        for fallback in action.fallbacks:
            other = found.actions.get(fallback)
            if other is not None and other.is_exactly_once:
                found.problems[id] = f"fallback_actions: must be actions without exactly_once or aggregation, got {fallback}"
        if id in _reached_from(id, found.actions):
            found.problems[id] = "fallback_actions: must not lead back to the action"
    for id in found.problems:
        found.actions.pop(id, None)


def _reached_from(id: str, actions: Mapping[str, ActionDefinition]) -> set[str]:
    reached: set[str] = set()
    waiting = [id]
    while waiting:
        action = actions.get(waiting.pop())
        for fallback in action.fallbacks if action is not None else ():
            if fallback not in reached:
                reached.add(fallback)
                waiting.append(fallback)
    return reached
