"""Configuration and listeners.

By hand: sections as JSON, where the verbs take keys and TOML, headers of `/opentelemetry` that are masked, and listeners by
EMQX's `TYPE:NAME`.
"""

from typing import Any, Literal

from fastapi import APIRouter

from shardbroker.api.calls import Call
from shardbroker.control import ControlError
from shardbroker.control.toml import assignments, nested

__all__ = ["router", "section_of", "set_section"]

router = APIRouter(tags=["Configuration"])
LISTENER_TYPES = ("tcp", "ssl", "ws", "wss")


@router.get("/configs/{root}")
async def show_section(call: Call, root: str) -> dict[str, Any]:
    """A section, such as `mqtt`, as JSON. Durations and sizes are text, such as 15s and 1MB."""
    return await section_of(call, root)


@router.put("/configs/{root}")
async def change_section(call: Call, root: str, body: dict[str, Any], cluster: bool = False) -> dict[str, Any]:
    """Changes the given values permanently, all of them or none; returns what was `applied`, what `needs_restart`, the source
    that a value is `shadowed_by`, and which `workers_behind` and other `processes_behind` have not applied it within 5 s. With
    `cluster=true` on all nodes of the cluster: `changed` then has the `revision`, and the state of each of the `nodes`."""
    return await set_section(call, root, body, cluster)


@router.get("/opentelemetry")
async def show_opentelemetry(call: Call) -> dict[str, Any]:
    """Whether, how and where metrics and traces are sent by OTLP. Values of headers are masked."""
    return await section_of(call, "opentelemetry")


@router.put("/opentelemetry")
async def change_opentelemetry(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """As `PUT /configs/opentelemetry`. Headers may be in the body as they are shown; others are set in the configuration file."""
    exporter = body.get("exporter")
    if isinstance(exporter, dict) and "headers" in exporter:
        shown = (await section_of(call, "opentelemetry")).get("exporter", {}).get("headers", {})
        if exporter["headers"] == shown:
            body = {**body, "exporter": {name: value for name, value in exporter.items() if name != "headers"}}
    return await set_section(call, "opentelemetry", body)


@router.get("/listeners")
async def list_listeners(call: Call) -> list[dict[str, Any]]:
    """Listeners of the broker."""
    return [_listener(row) for row in (await call("listeners list"))["data"]]


@router.get("/listeners_status")
async def listeners_status(call: Call) -> list[dict[str, Any]]:
    """State and number of connections of each listener."""
    return [{"id": row["id"], "enable": row["running"], "status": _status(row)} for row in (await call("listeners list"))["data"]]


@router.post("/listeners")
async def add_listener(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Opens a listener until the broker stops: `id` as `tcp:NAME`, or `type` and `name`, and settings such as `bind`."""
    given = dict(body)
    kind, _, name = str(given.pop("id", "")).partition(":")
    settings = {"type": kind or given.pop("type", "tcp"), **given}
    name = str(settings.pop("name", "") or name)
    if not name or settings["type"] not in LISTENER_TYPES:
        raise ControlError("BAD_REQUEST", f"id: must be TYPE:NAME with one of {', '.join(LISTENER_TYPES)}")
    if any(row["name"] == name for row in (await call("listeners list"))["data"]):
        raise ControlError("ALREADY_EXISTS", f"listener {name!r} already exists")
    await call("listeners add", name=name, settings=_lines(settings))
    return await _one(call, name)


@router.get("/listeners/{id}")
async def show_listener(call: Call, id: str) -> dict[str, Any]:
    """One listener, by `TYPE:NAME`."""
    return await _one(call, await _named(call, id))


@router.put("/listeners/{id}")
async def change_listener(call: Call, id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Changes a listener, for new connections."""
    name = await _named(call, id)
    await call("listeners update", name=name, settings=_lines(body))
    return await _one(call, name)


@router.post("/listeners/{id}/{action}")
async def steer_listener(call: Call, id: str, action: Literal["start", "stop", "restart"]) -> dict[str, Any]:
    """Closes a listener, opens it again, or both; its connections stay open. A restart of the broker reopens it."""
    name = await _named(call, id)
    await call(f"listeners {action}", name=name)
    return await _one(call, name)


@router.delete("/listeners/{id}", status_code=204)
async def remove_listener(call: Call, id: str) -> None:
    """Closes and removes a listener; its connections stay open."""
    await call("listeners remove", name=await _named(call, id))


async def section_of(call: Call, root: str) -> dict[str, Any]:
    """Returns a section as nested tables. Raises ControlError."""
    return nested((await call("config get", key=root))["data"], root)


async def set_section(call: Call, root: str, body: dict[str, Any], cluster: bool = False) -> dict[str, Any]:
    """Sets the given values. Raises ControlError; nothing changes then."""
    if not body:
        raise ControlError("BAD_REQUEST", "body: must not be empty")
    where = {"cluster": True} if cluster else {}
    changed: dict[str, Any] = await call("config update", values=assignments(body, f"{root}."), **where)
    return {**await section_of(call, root), "changed": changed}


def _lines(settings: dict[str, Any]) -> list[str]:
    """Returns KEY=VALUE pairs as the verbs of listeners take them. Raises ControlError."""
    return [f"{key}={value}" for key, value in assignments(settings).items()]


async def _named(call: Call, id: str) -> str:
    """Returns the name of a listener. Raises ControlError NOT_FOUND."""
    for row in (await call("listeners list"))["data"]:
        if row["id"] == id:
            return str(row["name"])
    raise ControlError("NOT_FOUND", f"no listener {id!r}")


async def _one(call: Call, name: str) -> dict[str, Any]:
    for row in (await call("listeners list"))["data"]:
        if row["name"] == name:
            return _listener(row)
    raise ControlError("NOT_FOUND", f"no listener {name!r}")


def _listener(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "enable": row["running"], "status": _status(row)}


def _status(row: dict[str, Any]) -> dict[str, Any]:
    return {"running": row["running"], "current_connections": row["current_connections"], "max_connections": row["max_connections"]}
