"""Rules: what each is, how it fares, and changes."""

import json
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.rule_verbs import OneRule, RuleChange, RuleList, RulePast, RuleSettings, RuleTrial
from shardbroker.management.context import Context, handles
from shardbroker.management.definitions import Definition

SHOWN = ("matched", "passed", "failed")
"""Figures that are columns of the list."""


@handles("rules list")
async def list_rules(context: Context, params: RuleList) -> dict[str, Any]:
    figures, statuses = context.rules.flows.figures(), _statuses(context)
    rows = []
    for rule in context.rules.all():
        if params.cursor is not None and rule["id"] <= params.cursor:
            continue
        if _fits(rule, params):
            rows.append(_row(rule, figures, statuses))
        if len(rows) > params.limit:
            return {"data": rows[:-1], "cursor": rows[-2]["id"]}
    return {"data": rows, "cursor": None}


@handles("rules show")
async def show(context: Context, params: OneRule) -> dict[str, Any]:
    return _row(context.rules.find(params.id), context.rules.flows.figures(), _statuses(context))


@handles("rules create")
async def create(context: Context, params: RuleSettings) -> dict[str, Any]:
    given = {**params.model_dump(), "actions": _actions(params.actions), "metadata": _metadata(params.metadata)}
    return _row(await context.rules.create(given), {}, _statuses(context))


@handles("rules update")
async def update(context: Context, params: RuleChange) -> dict[str, Any]:
    given = params.model_dump(exclude={"id"}, exclude_none=True)
    if params.actions is not None:
        given["actions"] = _actions(params.actions)
    if params.metadata is not None:
        given["metadata"] = _metadata(params.metadata)
    return _row(await context.rules.update(params.id, given), context.rules.flows.figures(), _statuses(context))


@handles("rules delete")
async def delete(context: Context, params: OneRule) -> None:
    await context.rules.delete(params.id)


@handles("rules try")
async def try_one(context: Context, params: RuleTrial) -> dict[str, Any]:
    try:
        columns = json.loads(params.context)
    except (ValueError, RecursionError) as error:
        raise ControlError("BAD_REQUEST", f"context: must be a JSON object, got {error}") from None
    if not isinstance(columns, dict):
        raise ControlError("BAD_REQUEST", "context: must be a JSON object")
    rule = context.rules.find(params.id)
    tried = await context.rules.flows.try_rule(params.id, columns, params.carry_out) if rule["enable"] else None
    if tried is None:
        raise ControlError("NOT_AVAILABLE", f"rule {params.id} is not in force")
    if "error" in tried:
        raise ControlError("NOT_MATCH" if tried["error"] == "nomatch" else "BAD_REQUEST", tried["detail"])
    return tried


@handles("rules past")
async def over_the_past(context: Context, params: RulePast) -> dict[str, Any]:
    from shardbroker.flows.recent import recent

    try:
        return await recent(params.sql, context.topology.data_dir / "journal", params.last)
    except ValueError as error:
        raise ControlError("BAD_REQUEST", str(error)) from None


@handles("rules reset")
async def reset(context: Context, params: OneRule) -> None:
    context.rules.find(params.id)
    await context.rules.flows.reset(params.id)


def _actions(text: str) -> list[Any]:
    """Returns the actions. Raises ControlError."""
    from shardbroker.rules.definition import check_json  # most brokers have no rules

    try:
        found = json.loads(text)
        check_json(found)
    except (ValueError, RecursionError) as error:
        shown = str(error) if str(error).startswith("actions: ") else f"actions: must be a JSON array, got {error}"
        raise ControlError("BAD_REQUEST", shown) from None
    if not isinstance(found, list):
        raise ControlError("BAD_REQUEST", f"actions: must be a JSON array, got {text:.200}")
    return found


def _metadata(text: str) -> Any:
    """Returns the metadata; whatever keeps the rule checks them. Raises ControlError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ControlError("BAD_REQUEST", f"metadata: must be a JSON object, got {error}") from None


def _fits(rule: Definition, params: RuleList) -> bool:
    return (
        (params.enable is None or rule["enable"] == params.enable)
        and (params.like_id is None or params.like_id in rule["id"])
        and (params.topic is None or params.topic in rule["from"])
    )


def _statuses(context: Context) -> dict[str, str]:
    """Returns the status of each action by id."""
    figures = context.actions.figures()
    return {one["id"]: context.actions.status(one, figures.get(one["id"], {}))[0] for one in context.actions.all()}


def _details(id: str, statuses: dict[str, str]) -> dict[str, str]:
    type, _, name = id.partition(":")
    return {"type": type, "name": name, "status": statuses.get(id, "unavailable")}


def _row(rule: Definition, figures: dict[str, dict[str, Any]], statuses: dict[str, str]) -> dict[str, Any]:
    metrics = dict(figures.get(rule["id"], {}))
    disabled = metrics.pop("disabled", None)
    return {
        "id": rule["id"],
        "name": rule["name"],
        "status": "disabled" if not rule["enable"] else "stopped" if disabled else "running",
        "problem": disabled,
        "enable": rule["enable"],
        "from": rule["from"],
        "sql": rule["sql"],
        "description": rule["description"],
        "origin": rule["origin"],
        "actions": rule["actions"],
        "action_details": [_details(one, statuses) for one in rule["actions"] if isinstance(one, str)],
        "metadata": rule.get("metadata", {}),
        "created_at": rule["created_ms"],
        "last_modified_at": rule["changed_ms"],
        **{name: metrics.get(name, 0) for name in SHOWN},
        "metrics": metrics,
    }
