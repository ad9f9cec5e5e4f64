"""Named streams: what each is, what is kept for it, and changes."""

from typing import Any

from shardbroker.config.units import format_duration, format_size
from shardbroker.control import ControlError
from shardbroker.control.stream_verbs import OneStream, StreamChange, StreamList, StreamSettings
from shardbroker.management.context import Context, handles


@handles("streams list")
async def list_streams(context: Context, params: StreamList) -> dict[str, Any]:
    names = [
        name
        for name in context.streams.all()
        if (params.cursor is None or name > params.cursor) and (params.like_name is None or params.like_name in name)
    ]
    page = names[: params.limit]
    return {"data": await _rows(context, page), "cursor": page[-1] if len(names) > params.limit else None}


@handles("streams show")
async def show(context: Context, params: OneStream) -> dict[str, Any]:
    return await _row(context, params.name)


@handles("streams add")
async def add(context: Context, params: StreamSettings) -> dict[str, Any]:
    await context.streams.add(params.name, _fields(params.model_dump(exclude={"name"})))
    return await _row(context, params.name)


@handles("streams change")
async def change(context: Context, params: StreamChange) -> dict[str, Any]:
    await context.streams.change(params.name, _fields(params.model_dump(exclude={"name"}, exclude_none=True)))
    return await _row(context, params.name)


@handles("streams delete")
async def delete(context: Context, params: OneStream) -> None:
    await context.streams.delete(params.name)


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """Returns fields as in the configuration, whose retention is a table."""
    retention = {name: given.pop(name) for name in ("age", "bytes") if name in given}
    return {**given, "retention": retention}


async def _row(context: Context, name: str) -> dict[str, Any]:
    """Returns one stream. Raises ControlError NOT_FOUND."""
    (row,) = await _rows(context, [name])
    return row


async def _rows(context: Context, names: list[str]) -> list[dict[str, Any]]:
    try:
        uses = await context.streams.uses(names)
    except OSError as error:
        raise ControlError("NOT_AVAILABLE", f"journals cannot be listed: {error}") from None
    subscribers = await context.streams.subscribers()
    rows = []
    for name in names:
        stream, use = context.streams.find(name), uses[name]
        oldest_us = use.oldest_us if stream.enable else None
        rows.append({
            "name": name,
            "status": "enabled" if stream.enable else "disabled",
            "topic_filter": stream.topic_filter,
            "enable": stream.enable,
            "description": stream.description,
            "age": format_duration(stream.retention.age),
            "bytes": format_size(stream.retention.bytes),
            "last_value": stream.last_value,
            "key": stream.key,
            "origin": context.streams.origin(name),
            "held_bytes": use.bytes if stream.enable else 0,
            "oldest_at": None if oldest_us is None else oldest_us // 1000,
            "subscribers": subscribers.get(name, 0),
        })  # fmt: skip
    return rows
