"""Journals: segments, sealing, and exports."""

import time
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, number, size, table
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import timed

__all__ = ["page"]

STATES = {"worker": "Worker", "records": "Records up to", "written": "Written", "waiting": "Waiting for the disk",
          "problem": "Problem"}  # fmt: skip
SEGMENTS = {"worker": "Worker", "segment": "Segment", "bytes": "Bytes", "begins_at": "From", "ends_at": "Until", "age": "Age",
            "state": "State"}  # fmt: skip
EXPORTS = {"to": "To", "format": "Format", "ended_at": "Last run", "result": "Result", "current": "Has everything"}
CURRENT = {True: "yes", False: "not yet", None: "unknown"}


async def _fill(session: Session) -> None:
    with card("Journals"):
        states = table(STATES, "worker")
        with ui.row().classes("items-center w-full"):
            ui.button("Seal", icon="inventory_2", on_click=lambda: seal()).set_enabled(session.may_change)
            ui.label("Closes the current segment of each journal for export.").classes("opacity-70 text-sm")
    with card("Segments"):
        segments = CursorTable(session, "journal segments", SEGMENTS, _segment, lambda row: None)
    with card("Exports"):
        exports = table(EXPORTS, "to")
        ui.label("Of `shardbroker export`, as far as its runs have left notes here.").classes("opacity-70 text-sm")

    async def look() -> None:
        found = await session.show_errors(session.call("journal status"))
        states.rows = [_state(row) for row in found["data"]] if found else []
        await segments.show()
        found = await session.show_errors(session.call("journal exports"))
        exports.rows = [_export(row) for row in found["data"]] if found else []

    async def seal() -> None:
        if await session.show_errors(session.call("journal seal")):
            ui.notify("the segments are closed", type="positive")
            await look()

    await look()


def _state(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "worker": row["worker"],
        "records": row["durable"],
        "written": size(row["bytes_written"]),
        "waiting": size(row["pending_bytes"]),
        "problem": row["problem"] or "none",
    }


def _segment(row: dict[str, Any]) -> dict[str, Any]:
    age_s = max(0.0, time.time() - row["ends_at"] / 1000)
    unit_s, unit = next((one for one in ((86400, "d"), (3600, "h"), (60, "min")) if age_s >= one[0]), (1, "s"))
    shown = timed(row, "begins_at", "ends_at")
    age = f"{number(age_s // unit_s)} {unit}"
    return shown | {"bytes": size(row["bytes"]), "age": age, "state": "last" if row["last"] else "closed"}


def _export(row: dict[str, Any]) -> dict[str, Any]:
    return timed(row, "ended_at") | {"current": CURRENT[row["current"]]}


page = Page("/journals", "Journals", "inventory", _fill)
