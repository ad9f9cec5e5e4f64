"""Connectors, actions and sources.

By hand: fields of EMQX 5, whose settings are keys of the body and of the response; lists without pages; metrics with those of each
node; enabling by a path.
"""

import json
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from shardbroker.api.calls import Call, VerbCall
from shardbroker.config.sinks.tables import SINKS_MAX
from shardbroker.config.sinks.types import SINK_TYPES, source_types

__all__ = ["router"]

router = APIRouter()
Kind = Literal["connectors", "actions", "sources"]
FIGURES = (
    "matched", "success", "failed", "dropped", "dropped.expired", "dropped.queue_full", "dropped.resource_not_found",
    "dropped.resource_stopped", "dropped.other", "inflight", "late_reply", "queuing", "queuing_bytes", "received", "retried",
    "retried.success", "retried.failed", "rate", "rate_last5m", "rate_max", "lag_records", "lag_seconds",
)  # fmt: skip
"""Names as in EMQX, but for the two lags."""
SOURCE_FIGURES = ("received", "published", "failed", "acknowledged", "inflight", "rate", "rate_last5m", "rate_max", "lag_records")
"""Figures of a source besides those of FIGURES; all others are 0."""
SUMMARY = (
    "type", "name", "enable", "description", "created_at", "last_modified_at", "node_status", "rules", "status", "status_reason",
)  # fmt: skip
"""Fields of a row of a summary."""


class SinkBody(BaseModel):
    """Settings; each type has keys of its own, see the configuration reference."""

    model_config = ConfigDict(extra="allow")


class ConnectorBody(SinkBody):
    enable: bool = Field(True, description="Whether it is used.")
    description: str = Field("", description="What it is for.")
    tags: list[str] = Field([], description="Words to find it by.")


class ActionBody(ConnectorBody):
    connector: str = Field(description="Name of the connector of the same type.")
    parameters: dict[str, Any] = Field({}, description="What is written, and how; keys of the type.")
    resource_opts: dict[str, Any] = Field({}, description="How rows are buffered, batched and written.")
    fallback_actions: list[Any] = Field([], description="Actions that get the rows that the server rejects, as `type:name`.")


class SourceBody(ConnectorBody):
    connector: str = Field(description="Name of the connector of the same type.")
    parameters: dict[str, Any] = Field({}, description="What is received, and what is published here; keys of the type.")
    resource_opts: dict[str, Any] = Field({}, description="How the server is watched.")


class NewConnector(ConnectorBody):
    type: str = Field(description="One of the types of connectors, such as `http`.")
    name: str = Field(description="Name among those of the type.")


class NewAction(ActionBody):
    type: str = Field(description="One of `GET /action_types`.")
    name: str = Field(description="Name among those of the type.")


class NewSource(SourceBody):
    type: str = Field(description="One of `GET /source_types`.")
    name: str = Field(description="Name among those of the type.")


class ConnectorProbe(ConnectorBody):
    type: str = Field(description="One of the types of connectors, such as `http`.")
    name: str = Field("probe", description="Name of the connector whose secrets are meant by `******`.")


class ActionProbe(ActionBody):
    type: str = Field(description="One of `GET /action_types`.")
    name: str = Field("probe", description="Name of the action whose secrets are meant by `******`.")


class SourceProbe(SourceBody):
    type: str = Field(description="One of `GET /source_types`.")
    name: str = Field("probe", description="Name of the source whose secrets are meant by `******`.")


@router.get("/connectors", tags=["Connectors"])
async def list_connectors(call: Call) -> list[dict[str, Any]]:
    """Connectors."""
    return await _all(call, "connectors")


@router.post("/connectors", status_code=201, tags=["Connectors"])
async def create_connector(call: Call, body: NewConnector) -> dict[str, Any]:
    """Makes a connector."""
    return await _made(call, "connectors", body)


@router.get("/connectors/{id}", tags=["Connectors"])
async def show_connector(call: Call, id: str) -> dict[str, Any]:
    """One connector."""
    return _shaped(call, await call("connectors show", id=id))


@router.put("/connectors/{id}", tags=["Connectors"])
async def update_connector(call: Call, id: str, body: ConnectorBody) -> dict[str, Any]:
    """Replaces the settings of a connector; secrets that are `******` stay."""
    return await _changed(call, "connectors", id, body)


@router.put("/connectors/{id}/enable/{enable}", status_code=204, tags=["Connectors"])
async def enable_connector(call: Call, id: str, enable: bool) -> None:
    """Enables or disables a connector."""
    await call(f"connectors {'enable' if enable else 'disable'}", id=id)


@router.post("/connectors_probe", status_code=204, tags=["Connectors"])
async def probe_connector(call: Call, body: ConnectorProbe) -> None:
    """Tries to reach the server of a connector; 400 TEST_FAILED with the reason."""
    await call("connectors probe", **_definition(body))


@router.get("/actions", tags=["Actions"])
async def list_actions(call: Call) -> list[dict[str, Any]]:
    """Actions."""
    return await _all(call, "actions")


@router.post("/actions", status_code=201, tags=["Actions"])
async def create_action(call: Call, body: NewAction) -> dict[str, Any]:
    """Makes an action."""
    return await _made(call, "actions", body)


@router.get("/actions/{id}", tags=["Actions"])
async def show_action(call: Call, id: str) -> dict[str, Any]:
    """One action."""
    return _shaped(call, await call("actions show", id=id))


@router.put("/actions/{id}", tags=["Actions"])
async def update_action(call: Call, id: str, body: ActionBody) -> dict[str, Any]:
    """Replaces the settings of an action, which continues at its position."""
    return await _changed(call, "actions", id, body)


@router.put("/actions/{id}/enable/{enable}", status_code=204, tags=["Actions"])
async def enable_action(call: Call, id: str, enable: bool) -> None:
    """Enables or disables an action."""
    await call(f"actions {'enable' if enable else 'disable'}", id=id)


@router.get("/actions/{id}/metrics", tags=["Actions"])
async def show_action_metrics(call: Call, id: str) -> dict[str, Any]:
    """Figures of an action."""
    found = await call("actions metrics", id=id)
    metrics = {name: found.get(name, 0) for name in FIGURES}
    return {"metrics": metrics, "node_metrics": [{"node": call.node, "metrics": metrics}]}


@router.post("/actions_probe", status_code=204, tags=["Actions"])
async def probe_action(call: Call, body: ActionProbe) -> None:
    """Checks settings of an action, and tries to reach the server of its connector; 400 TEST_FAILED with the reason."""
    await call("actions probe", **_definition(body))


@router.get("/actions_summary", tags=["Actions"])
async def summarize_actions(call: Call) -> list[dict[str, Any]]:
    """Actions without their settings."""
    return [{name: row[name] for name in SUMMARY if name in row} for row in await _all(call, "actions")]


@router.get("/action_types", tags=["Actions"])
async def list_action_types() -> list[str]:
    """Types of actions."""
    return [*SINK_TYPES]


@router.get("/sources", tags=["Sources"])
async def list_sources(call: Call) -> list[dict[str, Any]]:
    """Sources."""
    return await _all(call, "sources")


@router.post("/sources", status_code=201, tags=["Sources"])
async def create_source(call: Call, body: NewSource) -> dict[str, Any]:
    """Makes a source."""
    return await _made(call, "sources", body)


@router.get("/sources/{id}", tags=["Sources"])
async def show_source(call: Call, id: str) -> dict[str, Any]:
    """One source."""
    return _shaped(call, await call("sources show", id=id))


@router.put("/sources/{id}", tags=["Sources"])
async def update_source(call: Call, id: str, body: SourceBody) -> dict[str, Any]:
    """Replaces the settings of a source; what it has received and not acknowledged arrives again."""
    return await _changed(call, "sources", id, body)


@router.put("/sources/{id}/enable/{enable}", status_code=204, tags=["Sources"])
async def enable_source(call: Call, id: str, enable: bool) -> None:
    """Enables or disables a source."""
    await call(f"sources {'enable' if enable else 'disable'}", id=id)


@router.get("/sources/{id}/metrics", tags=["Sources"])
async def show_source_metrics(call: Call, id: str) -> dict[str, Any]:
    """Figures of a source."""
    found = await call("sources metrics", id=id)
    metrics = dict.fromkeys(FIGURES, 0) | {name: found.get(name, 0) for name in SOURCE_FIGURES}
    return {"metrics": metrics, "node_metrics": [{"node": call.node, "metrics": metrics}]}


@router.post("/sources_probe", status_code=204, tags=["Sources"])
async def probe_source(call: Call, body: SourceProbe) -> None:
    """Checks settings of a source, and tries to reach the server of its connector; 400 TEST_FAILED with the reason."""
    await call("sources probe", **_definition(body))


@router.get("/sources_summary", tags=["Sources"])
async def summarize_sources(call: Call) -> list[dict[str, Any]]:
    """Sources without their settings."""
    return [{name: row[name] for name in SUMMARY if name in row} for row in await _all(call, "sources")]


@router.get("/source_types", tags=["Sources"])
async def list_source_types() -> list[str]:
    """Types of sources."""
    return source_types()


async def _all(call: VerbCall, kind: Kind) -> list[dict[str, Any]]:
    found = await call(f"{kind} list", limit=2 * SINKS_MAX)  # of the configuration, and made at run time
    return [_shaped(call, row) for row in found["data"]]


async def _made(call: VerbCall, kind: Kind, body: BaseModel) -> dict[str, Any]:
    return _shaped(call, await call(f"{kind} add", **_definition(body)))


async def _changed(call: VerbCall, kind: Kind, id: str, body: BaseModel) -> dict[str, Any]:
    given = body.model_dump(exclude_unset=True)
    return _shaped(call, await call(f"{kind} change", id=id, definition=json.dumps(given), replace=True))


def _definition(body: BaseModel) -> dict[str, Any]:
    """Returns the parameters of a verb for a body with type and name."""
    given = body.model_dump(exclude_unset=True)
    id = f"{given.pop('type')}:{given.pop('name', 'probe')}"
    return {"id": id, "definition": json.dumps(given)}


def _shaped(call: VerbCall, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with its settings beside the status, as EMQX has them."""
    status = {"status": row["status"], **({"status_reason": row["status_reason"]} if row["status_reason"] else {})}
    shown = {name: value for name, value in row.items() if name not in ("settings", "status", "status_reason")}
    return {**shown, **row["settings"], **status, "node_status": [{"node": call.node, **status}]}
