"""Traces of clients, users, topics, addresses and rules: start, follow, download, delete."""

import json
import time
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, size, table
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import moment

__all__ = ["page"]

REFRESH_S = 2.0
"""Between two refreshes."""
VIEW_BYTES = 64 << 10
"""Bytes at the end of the file of a trace that the page shows."""
TYPES = {"clientid": "Client id", "username": "User name", "topic": "Topic filter", "ip_address": "Address", "ruleid": "Rule"}
PAYLOADS = {"text": "as text", "hex": "in hexadecimal", "hidden": "hidden"}
FORMATTERS = {"text": "text", "json": "JSON"}
COLUMNS = {
    "name": "Name", "looks_for": "Looks for", "status": "Status", "start_at": "From", "end_at": "Until", "events": "Events",
    "lost": "Lost", "bytes": "File", "stopped_by": "Ended by",
}  # fmt: skip
CHUNK_BYTES = 1 << 20
"""Bytes of one call of a download."""


async def _fill(session: Session) -> None:
    with card("Begin a trace"), ui.row().classes("items-center w-full"):
        name = ui.input("Name", value=f"trace-{time.strftime('%H%M%S')}").props("dense").classes("w-40")
        kind = ui.select(TYPES, value="clientid", label="Looks for").props("dense").classes("w-36")
        value = ui.input("Which").props("dense").classes("w-56")
        minutes = ui.number("Minutes", value=10, min=1, max=1440).props("dense").classes("w-24")
        payload = ui.select(PAYLOADS, value="text", label="Payloads").props("dense").classes("w-40")
        formatter = ui.select(FORMATTERS, value="text", label="Lines").props("dense").classes("w-24")
        ui.button("Start", icon="play_arrow", on_click=lambda: start()).set_enabled(session.may_change)
    with card("Traces"):
        traces = table(COLUMNS, "name")
        traces.on("rowClick", lambda event: _show_one(session, event.args[1]["name"], look))
        ui.label("Click a row to read it, end it, download it or delete it.").classes("opacity-70 text-sm")

    async def look() -> None:
        found = await session.show_errors(session.call("trace list"))
        if found is not None:
            traces.rows = [_row(row) for row in found["data"]]

    async def start() -> None:
        ends = time.time_ns() // 1_000_000 + int((minutes.value or 10) * 60_000)
        request = session.call(
            "trace start", name=name.value or "", type=kind.value, value=value.value or "", end_at=ends,
            payload_encode=payload.value, formatter=formatter.value,
        )  # fmt: skip
        if await session.show_errors(request):
            ui.notify(f"{name.value} has begun", type="positive")
            name.set_value(f"trace-{time.strftime('%H%M%S')}")
            await look()

    await look()
    ui.timer(REFRESH_S, look)


async def _show_one(session: Session, name: str, look: Any) -> None:
    known = await session.show_errors(session.call("trace show", name=name))
    if known is None:
        return

    async def follow() -> None:
        row = await session.show_errors(session.call("trace show", name=name))
        if row is None:
            timer.deactivate()
            return
        about.set_text(_about(row))
        stop.set_enabled(session.may_change and row["status"] != "stopped")
        start = max(0, row["log_size"] - VIEW_BYTES)
        part = await session.show_errors(session.call("trace read", name=name, position=start, bytes=VIEW_BYTES))
        if part is not None:
            lines = part["data"].decode(errors="replace").splitlines()
            log.set_text("\n".join(lines[1:] if start else lines) or "nothing yet")

    async def download() -> None:
        parts, position, end = [], 0, 1
        while position < end:
            part = await session.show_errors(session.call("trace read", name=name, position=position, bytes=CHUNK_BYTES))
            if part is None or not part["data"]:
                break
            parts.append(part["data"])
            position, end = part["position"], part["size"]
        ui.download.content(b"".join(parts), f"{name}.log")

    async def end() -> None:
        if await session.show_errors(session.call("trace stop", name=name)):
            ui.notify(f"{name} has ended", type="positive")
            await follow()
            await look()

    async def delete() -> None:
        if await session.show_errors(session.call("trace delete", name=name)):
            ui.notify(f"{name} is deleted", type="positive")
            dialog.close()
            await look()

    with ui.dialog() as dialog, ui.card().classes("w-[80rem] max-w-[95vw]"):
        ui.label(name).classes("text-lg font-medium break-all")
        about = ui.label(_about(known)).classes("opacity-70 text-sm")
        log = ui.label("…").props('data-testid="log"')
        log.classes("font-mono text-xs whitespace-pre-wrap break-all h-[60vh] overflow-auto w-full")
        with ui.row().classes("w-full justify-end"):
            ui.button("Close", on_click=dialog.close).props("flat")
            ui.button("Download", icon="download", on_click=download).props("flat")
            stop = ui.button("Stop", icon="stop", on_click=end).props("flat")
            ui.button("Delete", icon="delete", color="negative", on_click=delete).set_enabled(session.may_change)
        timer = ui.timer(REFRESH_S, follow)
    dialog.on("hide", dialog.delete)
    dialog.open()


def _about(row: dict[str, Any]) -> str:
    shown = _row(row)
    ended = f", ended by {row['stopped_by']}" if row["stopped_by"] else ""
    return f"{shown['looks_for']}; {row['status']}{ended}; {row['events']} events, {row['lost']} lost, {shown['bytes']}"


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "looks_for": f"{TYPES[row['type']]} {json.dumps(row['value'], ensure_ascii=False)}",
        "start_at": moment(row["start_at"]),
        "end_at": moment(row["end_at"]),
        "bytes": size(row["log_size"]),
    }


page = Page("/trace", "Trace", "track_changes", _fill)
