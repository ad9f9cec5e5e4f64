"""Audit log: changes, by whom, and whether they were carried out."""

import json
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import timed

__all__ = ["page"]

COLUMNS = {"at": "At", "by": "By", "verb": "Verb", "code": "Result", "params": "Parameters"}
PARAMETERS_MAX = 300
"""Characters of parameters in a row; a click on it shows all."""


async def _fill(session: Session) -> None:
    with card("Audit log"):
        with ui.row().classes("items-center w-full"):
            by = ui.input("By, such as dashboard:admin").props("clearable dense").classes("w-64")
            ui.button("Search", icon="search", on_click=lambda: search())
        table = CursorTable(session, "audit list", COLUMNS, _row, _show_one)

    async def search() -> None:
        await table.show(by=by.value)

    by.on("keydown.enter", search)
    await search()


def _row(row: dict[str, Any]) -> dict[str, Any]:
    whole = json.dumps(row["params"], ensure_ascii=False)
    cut = whole if len(whole) <= PARAMETERS_MAX else f"{whole[:PARAMETERS_MAX]}…"
    return timed(row, "at") | {"params": cut, "whole": json.dumps(row["params"], ensure_ascii=False, indent=2)}


def _show_one(row: dict[str, Any]) -> None:
    with ui.dialog() as dialog, ui.card().classes("min-w-[32rem] max-w-full"):
        ui.label(row["verb"]).classes("text-lg font-medium")
        ui.label(f"{row['at']}, by {row['by']}: {row['code']}").classes("opacity-70 text-sm break-all")
        ui.label(row["whole"]).classes("font-mono text-sm whitespace-pre-wrap break-all max-h-96 overflow-auto w-full")
        with ui.row().classes("w-full justify-end"):
            ui.button("Close", on_click=dialog.close).props("flat")
    dialog.on("hide", dialog.delete)
    dialog.open()


page = Page("/audit", "Audit log", "history", _fill)
