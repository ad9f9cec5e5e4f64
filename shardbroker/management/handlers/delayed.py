"""Delayed messages (`$delayed/`): each worker has those of its publishers."""

import base64
import time
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.feature_verbs import DelayedList, OneMessage
from shardbroker.management.context import Context, breathe, handles
from shardbroker.management.paging import decode_cursor, encode_cursor


@handles("delayed list")
async def list_delayed(context: Context, params: DelayedList) -> dict[str, Any]:
    worker, after = decode_cursor(params.cursor, int, int) if params.cursor else (0, 0)
    rows: list[dict[str, Any]] = []
    while worker < len(context.workers):
        found = await context.workers.call(worker, "delayed list", after=after, limit=params.limit - len(rows))
        rows += [row_of(context, one) for one in found]
        worker, after = (worker, found[-1]["order"]) if found else (worker + 1, 0)
        if len(rows) >= params.limit:
            break
        await breathe()
    return {"data": rows, "cursor": encode_cursor(worker, after) if worker < len(context.workers) else None}


@handles("delayed show")
async def show_delayed(context: Context, params: OneMessage) -> dict[str, Any]:
    for found in await context.workers.call_all("delayed show", id=bytes.fromhex(params.msgid)):
        if found is not None:
            return row_of(context, found) | {"payload": base64.b64encode(found["payload"]).decode()}
    raise not_found(params)


@handles("delayed delete")
async def delete_delayed(context: Context, params: OneMessage) -> dict[str, Any]:
    if not any(await context.workers.call_all("delayed delete", id=bytes.fromhex(params.msgid))):
        raise not_found(params)
    return params.model_dump()


def not_found(params: OneMessage) -> ControlError:
    return ControlError("NOT_FOUND", f"no delayed message {params.msgid}")


def row_of(context: Context, known: dict[str, Any]) -> dict[str, Any]:
    """Returns a delayed message with EMQX's names of fields; intervals in seconds."""
    publish_at = int.from_bytes(known["id"][:8], "big") // 1000
    return {
        "msgid": known["id"].hex().upper(),
        "node": context.topology.node_name,
        "topic": known["topic"].decode(errors="replace"),
        "qos": known["qos"],
        "retain": known["retain"],
        "payload_size": known["payload_size"],
        "from_clientid": known["client_id"].decode(errors="replace"),
        "publish_at": publish_at,
        "delayed_interval": round((known["at_ms"] - publish_at) / 1000),
        "delayed_remaining": max(round(known["at_ms"] / 1000 - time.time()), 0),
        "expected_at": known["at_ms"],
    }
