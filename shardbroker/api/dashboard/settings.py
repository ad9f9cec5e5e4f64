"""Settings: effective values with their sources, and changes."""

from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card
from shardbroker.api.dashboard.session import Session
from shardbroker.config import Settings
from shardbroker.control import ControlError

__all__ = ["page"]

COLUMNS = {"key": "Key", "value": "Value", "source": "From", "live": "Changes", "after_restart": "After a restart"}


async def _fill(session: Session) -> None:
    with card("Settings"):
        sections = {"": "all that differs from the default", **{name: name for name in Settings.model_fields}}
        with ui.row().classes("items-center w-full"):
            section = ui.select(sections, value="", label="Section", on_change=lambda: look()).props("dense").classes("w-72")
            ui.label("Click a row to change it.").classes("opacity-70 text-sm")
        columns = [
            {"name": name, "label": label, "field": name, "align": "left", "sortable": True} for name, label in COLUMNS.items()
        ]
        table = ui.table(columns=columns, rows=[], row_key="key").classes("w-full").props("flat dense wrap-cells")
        table.on("rowClick", lambda event: change(event.args[1]))

    async def look() -> None:
        found = await session.show_errors(_rows(session, section.value))
        if found is not None:
            table.rows = [row | {"live": "at once" if row["live"] else "at a restart"} for row in found]

    def change(row: dict[str, Any]) -> None:
        with ui.dialog() as dialog, ui.card().classes("min-w-[28rem]"):
            ui.label(row["key"]).classes("text-lg font-medium")
            ui.label(f"{row['live']}; now from {row['source']}").classes("opacity-70 text-sm")
            value = ui.input("Value, as in TOML", value=row["value"]).classes("w-full")

            async def keep(verb: str, **params: Any) -> None:
                done = await session.show_errors(session.call(verb, key=row["key"], **params))
                if done is not None:
                    ui.notify(_outcome(done), type="warning" if done.get("shadowed_by") else "positive")
                    dialog.close()
                    await look()

            with ui.row().classes("w-full justify-end"):
                ui.button("Close", on_click=dialog.close).props("flat")
                back = ui.button("Reset", on_click=lambda: keep("config reset")).props("flat")
                save = ui.button("Set", on_click=lambda: keep("config set", value=value.value))
                for button in (back, save):
                    button.set_enabled(session.may_change)
        dialog.on("hide", dialog.delete)
        dialog.open()

    await look()


async def _rows(session: Session, section: str) -> list[dict[str, Any]]:
    """Raises ControlError; a section without values has no rows."""
    try:
        return list((await session.call("config get", key=section))["data"])
    except ControlError as error:
        if error.code == "NOT_FOUND":
            return []
        raise


def _outcome(done: dict[str, Any]) -> str:
    if done.get("shadowed_by"):
        return f"kept, but {done['shadowed_by']} takes precedence"
    if done["needs_restart"]:
        return "kept; it holds from the next start on"
    behind = [f"worker-{number}" for number in done.get("workers_behind", ())] + done.get("processes_behind", [])
    if behind:
        return f"changed, but not yet applied by {', '.join(behind)}"
    return "changed" if done["applied"] else "nothing has changed"


page = Page("/settings", "Settings", "tune", _fill)
