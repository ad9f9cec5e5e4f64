"""Settings: a form for each section, made from the schema, and effective values with their sources."""

from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui
from pydantic import BaseModel

from shardbroker.api.dashboard.frame import Page, asked, card, columns, within
from shardbroker.api.dashboard.model_form import ModelForm
from shardbroker.api.dashboard.session import Session
from shardbroker.config import Settings
from shardbroker.config.access import AclKeys, AuthKeys
from shardbroker.control import ControlError
from shardbroker.control.toml import assignments, nested

__all__ = ["page"]

COLUMNS = {"key": "Key", "value": "Value", "source": "From", "live": "Changes", "after_restart": "After a restart"}
FORMS: dict[str, type[BaseModel]] = {
    name: model
    for name, field in Settings.model_fields.items()
    if isinstance(model := field.annotation, type) and issubclass(model, BaseModel)
}
"""Section -> its model. Tables of things that have pages of their own are left out, and so are back ends in auth and acl."""
for _name in ("connectors", "actions", "sources", "persistence", "exhook", "gateways"):
    del FORMS[_name]
FORMS["auth"], FORMS["acl"] = AuthKeys, AclKeys


async def _fill(session: Session) -> None:
    with card("Settings"):
        sections = {"": "all that differs from the default", **{name: name for name in Settings.model_fields}}
        with ui.row().classes("items-center w-full"):
            first = asked("section") if asked("section") in sections else ""
            section = ui.select(sections, value=first, label="Section", on_change=lambda: choose()).props("dense").classes("w-72")
            ui.label("Change values in the form of a section, or click a row.").classes("opacity-70 text-sm")
    form = ui.column().classes("w-full")
    with card("Values"):
        table = ui.table(columns=columns(COLUMNS, sortable=True), rows=[], row_key="key")
        table.classes("w-full").props("flat dense wrap-cells")
        table.on("rowClick", lambda event: change(event.args[1]))

    async def choose() -> None:
        form.clear()
        await look()
        if section.value in FORMS:
            with form:
                _Form(session, section.value, nested(table.rows, section.value), look, form)

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

    await choose()


class _Form:
    """The form of a section. known: its values; again: reads them again; place: the column with the form."""

    def __init__(
        self, session: Session, section: str, known: dict[str, Any], again: Callable[[], Awaitable[None]], place: ui.column
    ) -> None:
        self._session, self._section, self._known, self._again = session, section, known, again
        with card(section):
            self._form = ModelForm(FORMS[section], (section,), known, {}, {}, f"{section}.")
            with ui.row().classes("w-full justify-end"):
                ui.button("Save", icon="save", on_click=within(place, self._save)).set_enabled(session.may_change)

    async def _save(self) -> None:
        try:
            changed = self._form.differing(self._known)
            if not changed:
                ui.notify("nothing has changed")
                return
            done = await self._session.call("config update", values=assignments(changed, f"{self._section}."))
        except (ControlError, ValueError) as error:
            refused = error if isinstance(error, ControlError) else ControlError("BAD_REQUEST", str(error))
            if refused.code != "BAD_REQUEST" or self._form.show_errors(str(refused)):
                self._session.notify(refused)
            return
        self._form.show_errors("")
        self._known = self._form.everything()
        ui.notify(_outcome(done), type="warning" if done.get("shadowed_by") else "positive")
        await self._again()


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
