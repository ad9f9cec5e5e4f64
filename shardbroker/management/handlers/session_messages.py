"""Messages of a session: those in its queue, and those in its inflight window."""

import base64
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.verbs import MessagesOf
from shardbroker.management.context import Context, breathe, handles
from shardbroker.management.paging import decode_cursor, encode_cursor

INTEGER_MAX = 1 << 31
"""Priorities, places and packet ids are below."""


@handles("sessions queue")
async def list_queue(context: Context, params: MessagesOf) -> dict[str, Any]:
    return await _page(context, "session queue", params)


@handles("sessions inflight")
async def list_inflight(context: Context, params: MessagesOf) -> dict[str, Any]:
    return await _page(context, "session inflight", params)


async def _page(context: Context, command: str, params: MessagesOf) -> dict[str, Any]:
    """Returns a page. `position` is that of its last message, also at the end: what arrives later is behind it."""
    after, left = _place(params.cursor), params.max_payload_bytes
    rows: list[dict[str, Any]] = []
    client_id = params.clientid.encode()
    worker = context.worker_of(client_id)
    while True:
        found = await context.workers.call(
            worker, command, client_id=client_id, after=after, limit=params.limit - len(rows), max_bytes=left,
            payload=params.payload != "none",
        )  # fmt: skip
        for row in found["rows"]:
            after = row["place"]
            left -= len(row.get("topic", b"")) + len(row.get("payload", b""))
            rows.append(_row(row, params.payload))
        if not found["more"] or len(rows) >= params.limit or left <= 0:
            position = None if after is None else encode_cursor(*after)
            return {"data": rows, "cursor": position if found["more"] else None, "position": position}
        await breathe()


def _place(cursor: str | None) -> list[Any] | None:
    """Returns the place of a cursor. Raises ControlError."""
    if not cursor:
        return None
    first, second, id = decode_cursor(cursor, int, int, bytes)
    if not (-INTEGER_MAX < first < INTEGER_MAX and 0 <= second < INTEGER_MAX and len(id) in (0, 16)):
        raise ControlError("BAD_REQUEST", "cursor: must be one returned by this list")
    return [first, second, id]


def _row(known: dict[str, Any], payload: str) -> dict[str, Any]:
    """Returns a message with EMQX's names of fields."""
    row: dict[str, Any] = {name: known[name] for name in ("packet_id", "awaits") if name in known}
    if "sent_ms" in known:
        row["inserted_at"] = known["sent_ms"]
    if "id" not in known:
        return row
    row |= {
        "msgid": known["id"].hex().upper(),
        "topic": known["topic"].decode(errors="replace"),
        "qos": known["qos"],
        "retain": known["retain"],
        "payload_size": known["payload_size"],
        "from_clientid": known["client_id"].decode(errors="replace"),
        "publish_at": int.from_bytes(known["id"][:8], "big") // 1000,
        "expires_at": known["expires_ms"] or None,
    }
    if "priority" in known:
        row["mqueue_priority"] = known["priority"]
    if payload == "base64":
        row["payload"] = base64.b64encode(known["payload"]).decode()
    elif payload == "plain":
        row["payload"] = known["payload"].decode(errors="replace")
    return row
