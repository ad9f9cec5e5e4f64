"""Connectors, actions and rules of a configuration: its own, and those that its presets expand to."""

from importlib import import_module
from typing import Any

from shardbroker.config import Settings
from shardbroker.config.flows import Rule
from shardbroker.config.persistence import connector_id, rule_id
from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.flows.persistence.rules import PARTS, rule_sql

__all__ = ["all_actions", "all_connectors", "all_rules", "connector_id", "create_tables", "rule_id"]

ORDERED = 1
"""Lanes of an action whose rows of different clients are about the same key: they are written in the order of the journal."""


def all_connectors(settings: Settings) -> dict[str, Any]:
    """Returns the connectors by id."""
    made = {connector_id(name, one): one.connection for name, one in settings.persistence.used().items() if not one.connector}
    return {**settings.connectors.by_id(), **made}


def all_actions(settings: Settings) -> dict[str, Any]:
    """Returns the actions by id."""
    made = {}
    for name, section in settings.persistence.used().items():
        for part in section.parts:
            if _action_of(part, section) == part:
                made[f"{name}:{rule_id(name, part)}"] = _action(name, part, section)
    return {**settings.actions.by_id(), **made}


def all_rules(settings: Settings, started_ms: int = 0) -> dict[str, Rule]:
    """Returns the rules by id. started_ms: Unix ms of the start of the broker."""
    made = {}
    for name, section in settings.persistence.used().items():
        for part in section.parts:
            action = f"{name}:{rule_id(name, _action_of(part, section))}"
            text = f"{PARTS[part]}, of persistence.{name}."
            made[rule_id(name, part)] = Rule(sql=rule_sql(name, part, section, started_ms), actions=[action], description=text)
    return {**settings.rules, **made}


def _module_of(name: str) -> Any:
    """Returns the module of a database."""
    return import_module(f"shardbroker.flows.persistence.{name}")


async def create_tables(name: str, connector: Any) -> None:
    """Creates the tables of a database that are missing. Raises any exception."""
    await _module_of(name).create(connector)


def _action_of(part: str, section: Any) -> str:
    """Returns the part whose action writes a part: what removes messages is in order with what writes them."""
    return "messages" if part == "acked" and section.on_acked == "delete" else part


def _action(name: str, part: str, section: Any) -> Any:
    is_shared = part == "retained" or (part == "messages" and getattr(section, "on_acked", "") == "delete")
    options = {"worker_pool_size": ORDERED} if is_shared else {}
    values = {
        "connector": connector_id(name, section).partition(":")[2],
        "description": f"{PARTS[part]}, of persistence.{name}.",
        "parameters": _module_of(name).parameters(part, section),
        "resource_opts": options,
    }
    return SINK_TYPES[name].action.model_validate(values)
