"""Connectors, actions and sources: what each is, how it fares, and changes."""

import json
import time
from typing import Any

from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, SOURCES
from shardbroker.control import ControlError
from shardbroker.control.sink_verbs import NewSink, OneSink, Rewind, SinkChange, SinkDelete, SinkList, SinkProbe
from shardbroker.management.context import Context, handles
from shardbroker.management.definitions import Definition
from shardbroker.management.sinks import Sinks
from shardbroker.mqtt.errors import MqttError
from shardbroker.pubsub.periods import parse_period


def _register(kind: str) -> None:
    """Registers the handlers that connectors, actions and sources have alike."""

    def of(context: Context) -> Sinks:
        return {CONNECTORS: context.connectors, ACTIONS: context.actions, SOURCES: context.sources}[kind]

    @handles(f"{kind} list")
    async def list_all(context: Context, params: SinkList) -> dict[str, Any]:
        sinks, figures, rows = of(context), of(context).figures(), []
        uses = sinks.uses()
        for one in sinks.all():
            if params.cursor is not None and one["id"] <= params.cursor:
                continue
            if params.type in (None, one["type"]) and (params.like_id or "") in one["id"]:
                rows.append(row(sinks, one, figures, uses))
            if len(rows) > params.limit:
                return {"data": rows[:-1], "cursor": rows[-2]["id"]}
        return {"data": rows, "cursor": None}

    @handles(f"{kind} show")
    async def show(context: Context, params: OneSink) -> dict[str, Any]:
        return _shown(of(context), of(context).find(params.id))

    @handles(f"{kind} add")
    async def add(context: Context, params: NewSink) -> dict[str, Any]:
        return _shown(of(context), await of(context).create(params.id, _settings(params.definition)))

    @handles(f"{kind} change")
    async def change(context: Context, params: SinkChange) -> dict[str, Any]:
        return _shown(of(context), await of(context).change(params.id, _settings(params.definition), params.replace))

    @handles(f"{kind} delete")
    async def delete(context: Context, params: SinkDelete) -> None:
        await of(context).delete(params.id, params.also_delete_dep_actions)

    @handles(f"{kind} enable")
    async def enable(context: Context, params: OneSink) -> None:
        await of(context).change(params.id, {"enable": True}, replace=False)

    @handles(f"{kind} disable")
    async def disable(context: Context, params: OneSink) -> None:
        await of(context).change(params.id, {"enable": False}, replace=False)

    @handles(f"{kind} probe")
    async def probe(context: Context, params: SinkProbe) -> None:
        if error := await of(context).probe(params.id, _settings(params.definition) if params.definition else None):
            raise ControlError("TEST_FAILED", error)

    @handles(f"{kind} start")
    async def start(context: Context, params: OneSink) -> None:
        await of(context).order(params.id, "start")

    @handles(f"{kind} stop")
    async def stop(context: Context, params: OneSink) -> None:
        await of(context).order(params.id, "stop")

    @handles(f"{kind} restart")
    async def restart(context: Context, params: OneSink) -> None:
        await of(context).order(params.id, "restart")


    if kind == CONNECTORS:
        return

    @handles(f"{kind} metrics")
    async def metrics(context: Context, params: OneSink) -> dict[str, Any]:
        id = of(context).find(params.id)["id"]
        found = of(context).figures().get(id, {})
        return {"id": id, **{name: value for name, value in found.items() if name not in ("status", "error", "cursor")}}

    @handles(f"{kind} reset")
    async def reset(context: Context, params: OneSink) -> None:
        id = of(context).find(params.id)["id"]
        await of(context).flows.order("sink_reset" if kind == ACTIONS else "source_reset", id)


for _kind in (CONNECTORS, ACTIONS, SOURCES):
    _register(_kind)


@handles("actions cursor")
async def cursor(context: Context, params: OneSink) -> dict[str, Any]:
    id = context.actions.find(params.id)["id"]
    found = context.actions.figures().get(id, {})
    return {"id": id, "cursor": found.get("cursor", {}), **{name: found.get(name, 0) for name in ("lag_records", "lag_seconds")}}


@handles("actions rewind")
async def rewind(context: Context, params: Rewind) -> None:
    id = context.actions.find(params.id)["id"]
    if ".." in params.at:
        raise ControlError("BAD_REQUEST", f"at: must be one time, got {params.at[:60]!r}")
    try:
        at_us, _ = parse_period(params.at.encode(), time.time_ns() // 1000)
    except MqttError as error:
        raise ControlError("BAD_REQUEST", str(error).replace("$replay/<period>", "at")) from None
    await context.actions.flows.order("sink_rewind", id, at_us=params.at if params.at in ("earliest", "latest") else at_us)


def row(
    sinks: Sinks, one: Definition, figures: dict[str, dict[str, Any]], uses: dict[str, list[tuple[str, str]]]
) -> dict[str, Any]:
    """Returns a connector, an action or a source as `ctl` and REST show it."""
    found = figures.get(one["id"], {})
    status, reason = sinks.status(one, found)
    settings = dict(one["shown"])
    users = uses.get(one["id"], [])
    shown = {
        "id": one["id"], "type": one["type"], "name": one["name"], "status": status, "status_reason": reason,
        "enable": settings.pop("enable", False), "description": settings.pop("description", ""), "tags": settings.pop("tags", []),
        "origin": one["origin"], "created_at": one["created_ms"], "last_modified_at": one["changed_ms"], "settings": settings,
    }  # fmt: skip
    if sinks.kind == CONNECTORS:
        return {**shown, **{kind: [user for of, user in users if of == kind] for kind in (ACTIONS, SOURCES)}}
    if sinks.kind == SOURCES:
        counts = {name: found.get(name, 0) for name in ("rate", "received", "failed", "lag_records")}
        return {**shown, **counts, "rules": [user for _, user in users]}
    counts = {name: found.get(name, 0) for name in ("rate", "failed", "lag_records", "lag_seconds")}
    fallback_of = [user for of, user in users if of == ACTIONS]
    return {**shown, **counts, "rules": [user for of, user in users if of != ACTIONS], "fallback_of": fallback_of}


def _shown(sinks: Sinks, one: Definition) -> dict[str, Any]:
    return row(sinks, one, sinks.figures(), sinks.uses())


def _settings(text: str) -> dict[str, Any]:
    """Returns settings. Raises ControlError."""
    from shardbroker.rules.definition import check_json  # most brokers have neither rules nor actions

    try:
        found = json.loads(text)
        check_json(found)
    except (ValueError, RecursionError) as error:
        raise ControlError("BAD_REQUEST", f"settings: must be a JSON object, got {str(error).removeprefix('actions: ')}") from None
    if not isinstance(found, dict):
        raise ControlError("BAD_REQUEST", f"settings: must be a JSON object, got {text:.100}")
    return found
