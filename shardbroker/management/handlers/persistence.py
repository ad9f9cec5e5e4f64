"""Presets of databases: what they expand to, and their tables."""

from typing import Any

from shardbroker.config.persistence import DATABASES
from shardbroker.config.sinks.ids import normal_type
from shardbroker.control import ControlError
from shardbroker.control.persistence_verbs import OneDatabase
from shardbroker.flows.persistence.expansion import connector_id, rule_id
from shardbroker.management.context import Context, handles


@handles("persistence show")
async def show(context: Context, params: OneDatabase) -> dict[str, Any]:
    figures, rows = context.actions.figures(), []
    for name, section in _sections(context, params.database).items():
        for part in section.parts:
            rule = context.rules.find(rule_id(name, part))
            action = context.actions.find(rule["actions"][0])
            status, reason = context.actions.status(action, figures.get(action["id"], {}))
            used = {"rule": rule["id"], "action": action["id"], "connector": connector_id(name, section)}
            rows.append({"database": name, "part": part, **used, "status": status, "status_reason": reason})
    return {"data": rows}


@handles("persistence create")
async def create(context: Context, params: OneDatabase) -> dict[str, Any]:
    sections, rows = _sections(context, params.database), []
    if not sections:
        raise ControlError("BAD_REQUEST", "database: must be one that keeps anything, and there is none in the section persistence")
    for name, section in sections.items():
        connector = context.connectors.find(connector_id(name, section))
        if error := await context.connectors.create_tables(connector):
            raise ControlError("TEST_FAILED", f"persistence.{name}: {error}")
        rows.append({"database": name, "connector": connector["id"], "created": True})
    return {"data": rows}


def _sections(context: Context, database: str) -> dict[str, Any]:
    """Returns the sections in use, or one of them. Raises ControlError."""
    used, name = context.configuration.settings.persistence.used(), normal_type(database)
    if not name:
        return used
    if name not in DATABASES:
        raise ControlError("BAD_REQUEST", f"database: must be one of {', '.join(DATABASES)}, got {database}")
    if name not in used:
        raise ControlError("BAD_REQUEST", f"database: must be one that keeps anything, and persistence.{name} does not")
    return {name: used[name]}
