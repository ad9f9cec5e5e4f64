"""Traces, slow subscriptions, metrics of topics, the loudest clients.

By hand: EMQX's names of fields, downloads, and requests that EMQX answers with another shape than the verb.
"""

import asyncio
import tempfile
import zipfile
from collections.abc import AsyncIterator
from typing import IO, Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field, StringConstraints, model_validator

from shardbroker.api.calls import Call
from shardbroker.api.shapes import Body, TimeMs, moment, timed
from shardbroker.control.watch_verbs import PAYLOAD_MAX, TRACE_NAME, TraceType

__all__ = ["router"]

router = APIRouter(tags=["Diagnose"])
KINDS = ("clientid", "username", "topic", "ip_address", "ruleid")
"""What a trace matches, which is also the name of the field."""
LOG_MAX = 1 << 20
"""Bytes of the file of a trace in one response."""
CHUNK_BYTES = 1 << 18
"""Bytes of one chunk of a download."""

TraceName = Annotated[str, StringConstraints(pattern=TRACE_NAME)]
Value = Annotated[str, StringConstraints(min_length=1, max_length=65535)]


class NewTrace(Body):
    name: TraceName
    type: TraceType
    clientid: Value | None = None
    username: Value | None = None
    topic: Value | None = Field(None, description="Topic filter.")
    ip_address: Value | None = None
    ruleid: Value | None = Field(None, description="Id of a rule.")
    start_at: TimeMs | None = Field(None, description="RFC 3339 or Unix ms; by default now.")
    end_at: TimeMs | None = Field(None, description="RFC 3339 or Unix ms; by default ten minutes after the start.")
    payload_encode: Literal["text", "hex", "hidden"] = "text"
    payload_limit: int = Field(1024, ge=0, le=PAYLOAD_MAX, description="Bytes of a payload that are shown.")
    formatter: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _one(self) -> "NewTrace":
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if given != [self.type]:
            raise ValueError(f"{self.type}: must be set, and no other of {', '.join(KINDS)}, with type {self.type}")
        return self


class LogPlace(Body):
    position: int = Field(0, ge=0, le=2**53, description="Offset in the file, in bytes.")
    bytes: int = Field(1000, ge=1, le=LOG_MAX, description="Number of bytes.")
    node: str | None = Field(None, description="Name of this node.")


class CountedTopic(Body):
    topic: Value


class CountedReset(Body):
    action: Literal["reset"]
    topic: Value | None = Field(None, description="By default all topics.")


# --- traces -----------------------------------------------------------------------------------------------------------------------


@router.get("/trace")
async def list_traces(call: Call) -> list[dict[str, Any]]:
    """Traces, the newest first."""
    return [_trace(call, row) for row in (await call("trace list"))["data"]]


@router.post("/trace")
async def start_trace(call: Call, body: NewTrace) -> dict[str, Any]:
    """Writes the events of a client, a user, a topic, an address or a rule to a file, from `start_at` until `end_at`."""
    given = {name: getattr(body, name) for name in ("start_at", "end_at", "payload_encode", "payload_limit", "formatter")}
    row = await call("trace start", name=body.name, type=body.type, value=getattr(body, body.type), **given)
    return _trace(call, row)


@router.put("/trace/{name}/stop")
async def stop_trace(call: Call, name: str) -> dict[str, Any]:
    """Stops a trace; its file is kept."""
    await call("trace stop", name=name)
    return {"name": name, "enable": False}


@router.get("/trace/{name}/log")
async def read_trace(call: Call, name: str, place: Annotated[LogPlace, Query()]) -> dict[str, Any]:
    """A part of the file as text; `meta.position` is where the next part starts, `meta.hint` is `eof` at the end of an
    ended trace."""
    part = await call.at_or_here(place.node)("trace read", name=name, position=place.position, bytes=place.bytes)
    meta = {"position": part["position"], "bytes": len(part["data"])}
    return {"items": part["data"].decode(errors="replace"), "meta": meta if part["more"] else {**meta, "hint": "eof"}}


@router.get("/trace/{name}/log_detail")
async def trace_detail(call: Call, name: str) -> list[dict[str, Any]]:
    """Size and modification time of the file."""
    part = await call("trace read", name=name, bytes=1)
    return [{"node": call.node, "size": part["size"], "mtime": part["modified_at"]}]


@router.get("/trace/{name}/download", response_class=Response)
async def download_trace(
    call: Call, name: str, format: Annotated[Literal["zip", "text"], Query(description="A zip archive, or the file.")] = "zip"
) -> StreamingResponse:
    """The file of a trace."""
    await call("trace show", name=name)
    if format == "text":
        file, kind = _parts(call, name), "text/plain; charset=utf-8"
    else:
        file, kind = _chunks(await _zipped(call, name)), "application/zip"
    ending = "log" if format == "text" else "zip"
    return StreamingResponse(file, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}.{ending}"'})


async def _parts(call: Call, name: str) -> AsyncIterator[bytes]:
    """Yields the file up to its current end."""
    position, size = 0, 1
    while position < size:
        part = await call("trace read", name=name, position=position)
        position, size = part["position"], part["size"]
        if not part["data"]:
            return
        yield part["data"]


async def _zipped(call: Call, name: str) -> IO[bytes]:
    """Returns an anonymous temporary file with the archive."""
    made = tempfile.TemporaryFile()  # noqa: SIM115 - _chunks() closes it
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{call.node}/{name}.log", "w") as target:
        async for part in _parts(call, name):
            await asyncio.to_thread(target.write, part)
    made.seek(0)
    return made


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


def _trace(call: Call, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a trace with EMQX's names of fields."""
    shown = timed(row, "start_at", "end_at")
    value, size = shown.pop("value"), shown.pop("log_size")
    return {**shown, row["type"]: value, "log_size": {call.node: size}}


# --- slow subscriptions -----------------------------------------------------------------------------------------------------------


@router.get("/slow_subscriptions")
async def list_slow(call: Call) -> list[dict[str, Any]]:
    """The slowest deliveries; `timespan` is in ms."""
    return [{**row, "last_update_time": row["last_update_at"]} for row in (await call("slow-subs list"))["data"]]


# --- metrics of topics ------------------------------------------------------------------------------------------------------------


@router.get("/mqtt/topic_metrics")
async def list_counted(call: Call) -> list[dict[str, Any]]:
    """Counts of each registered topic or filter; rates cover the last five seconds."""
    return [_counted(row) for row in (await call("topic-metrics list"))["data"]]


@router.post("/mqtt/topic_metrics")
async def add_counted(call: Call, body: CountedTopic) -> dict[str, Any]:
    """Starts to count messages of a topic or filter."""
    await call("topic-metrics add", topic=body.topic)
    return _counted(await call("topic-metrics show", topic=body.topic))


@router.put("/mqtt/topic_metrics", status_code=204)
async def reset_counted(call: Call, body: CountedReset) -> None:
    """Resets the counts of a topic or of all."""
    await call("topic-metrics reset", topic=body.topic)


@router.get("/mqtt/topic_metrics/{topic:topic}")
async def show_counted(call: Call, topic: str) -> dict[str, Any]:
    """Counts of one topic or filter."""
    return _counted(await call("topic-metrics show", topic=topic))


def _counted(row: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: value for name, value in row.items() if name.startswith("messages.")}
    times = {"create_time": moment(row["create_at"]), "reset_time": moment(row["reset_at"])}
    return {"topic": row["topic"], **times, "metrics": metrics}


# --- clients ---------------------------------------------------------------------------------------------------------------------


@router.get("/clients_loudest")
async def loudest(call: Call, limit: Annotated[int, Query(ge=1, le=100, description="Number of clients.")] = 10) -> dict[str, Any]:
    """Clients with the highest message rates over the last two seconds; workers count only while this is polled."""
    found = await call("clients loudest", limit=limit)
    return {"data": found["data"], "meta": {"left_out": found["left_out"]}}
