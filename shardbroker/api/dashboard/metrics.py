"""Metrics: every counter and gauge of the broker, of one worker or of all processes together, with its change a second."""

import time
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, number, table
from shardbroker.api.dashboard.session import Session
from shm.counters import GAUGES

__all__ = ["page"]

REFRESH_S = 2.0
"""Between two refreshes."""
COLUMNS = {"name": "Name", "type": "Type", "value": "Value", "rate": "Change /s"}
ALL = "all processes"


async def _fill(session: Session) -> None:
    before: tuple[float, dict[str, int]] = 0.0, {}
    with card("Counters and gauges"):
        with ui.row().classes("items-center w-full"):
            part = ui.input("Name contains", on_change=lambda: look()).props("clearable dense")
            worker = ui.select([ALL], value=ALL, label="Of", on_change=lambda: look(restart=True)).props("dense").classes("w-44")
            quiet = ui.checkbox("Those that are 0, too", on_change=lambda: look())
        shown = table(COLUMNS, "name")
        note = ui.label().classes("opacity-70 text-sm")

    async def look(restart: bool = False) -> None:
        nonlocal before
        number_of = None if worker.value == ALL else int(worker.value)
        found: dict[str, int] | None = await session.show_errors(session.call("metrics", worker=number_of))
        if found is None:
            return
        now_s = time.monotonic()
        since_s, known = (now_s, {}) if restart else before
        words = (part.value or "").strip().lower()
        shown.rows = [
            _row(name, value, (value - known[name]) / max(now_s - since_s, 0.1) if name in known else 0.0)
            for name, value in found.items()
            if words in name and (value or quiet.value)
        ]
        note.set_text("" if shown.rows else "nothing here")
        before = now_s, found

    workers = await session.show_errors(session.call("workers list"))
    if workers is not None:
        names = (row["name"].partition("-") for row in workers["data"])
        worker.set_options([ALL, *(number for kind, _, number in names if kind == "worker")], value=ALL)
    await look()
    ui.timer(REFRESH_S, look)


def _row(name: str, value: int, rate: float) -> dict[str, Any]:
    kind = "gauge" if name in GAUGES else "counter"
    return {"name": name, "type": kind, "value": f"{value:,}", "rate": number(rate) if kind == "counter" else ""}


page = Page("/metrics", "Metrics", "query_stats", _fill)
