"""Connectors and actions: cards with status, rate and lag, and a form with the keys of the type."""

import json
from typing import Any, Literal

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, number
from shardbroker.api.dashboard.model_form import ModelForm
from shardbroker.api.dashboard.session import Session
from shardbroker.config.sinks.types import SINK_TYPES
from shardbroker.control import ControlError

__all__ = ["pages"]

REFRESH_S = 2.0
"""Between two refreshes of the cards."""
CARDS_MAX = 60
"""Cards that are shown; the filter finds the others."""
COLORS = {"connected": "positive", "connecting": "warning", "disconnected": "negative", "stopped": "grey"}
DESCRIBING = ("enable", "description", "tags")
"""Keys that a row has beside its settings."""
Kind = Literal["connectors", "actions"]


class _Sinks:
    """The page of connectors, or of actions."""

    def __init__(self, session: Session, kind: Kind) -> None:
        self._session, self._kind, self._one = session, kind, kind[:-1]
        self._rows: list[dict[str, Any]] = []
        self._opened = ""
        self._form: ModelForm | None = None
        with card(kind.capitalize()):
            with ui.row().classes("items-center w-full"):
                self._like = ui.input("Id contains", on_change=self.refresh).props("dense clearable").classes("w-56")
                types = {type: row.title for type, row in SINK_TYPES.items()}
                self._type = ui.select(types, value=next(iter(types)), label="Type").props("dense").classes("w-48")
                ui.button(f"New {self._one}", icon="add", on_click=self.begin).props("flat")
            self._cards = ui.row().classes("w-full gap-3")
            self._note = ui.label().classes("opacity-70 text-sm")
        self._editor = ui.column().classes("w-full")

    async def refresh(self) -> None:
        """Shows the cards again, if anything has changed."""
        found = await self._session.show_errors(
            self._session.call(f"{self._kind} list", limit=CARDS_MAX, like_id=self._like.value or None)
        )
        if found is None or found["data"] == self._rows:
            return
        self._rows = found["data"]
        self._cards.clear()
        with self._cards:
            for row in self._rows:
                self._card(row)
        more = " Further ones are found by the filter." if found["cursor"] is not None else ""
        self._note.set_text(f"Click a card to change it.{more}" if self._rows else f"No {self._one} yet.")

    def _card(self, row: dict[str, Any]) -> None:
        with ui.card().classes("w-72 cursor-pointer gap-1").on("click", lambda: self.open(row["id"])).props("flat bordered"):
            with ui.row().classes("items-center justify-between w-full no-wrap"):
                ui.label(row["id"]).classes("font-medium break-all")
                ui.badge(row["status"], color=COLORS.get(row["status"], "grey"))
            if row["status_reason"]:
                ui.label(row["status_reason"]).classes("text-xs opacity-70 break-all line-clamp-2")
            if self._kind == "actions":
                text = f"{number(row['rate'])} a second, {number(row['lag_records'])} behind, {row['lag_seconds']:.1f} s"
                ui.label(text).classes("text-sm")
            users = row["rules" if self._kind == "actions" else "actions"]
            ui.label(f"used by {', '.join(users)}" if users else "not used").classes("text-xs opacity-70 break-all line-clamp-2")

    # --- one of them ----------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Shows an empty form of the chosen type."""
        await self._show(self._type.value, {"id": "", "name": "", "origin": "runtime", "settings": {}})

    async def open(self, id: str) -> None:
        """Shows one of the broker."""
        row = await self._session.show_errors(self._session.call(f"{self._kind} show", id=id))
        if row is not None:
            await self._show(row["type"], row)

    async def _show(self, type: str, row: dict[str, Any]) -> None:
        model = SINK_TYPES[type].connector if self._kind == "connectors" else SINK_TYPES[type].action
        choices = {"connector": await self._connectors(type)} if self._kind == "actions" else {}
        self._opened = row["id"]
        self._editor.clear()
        with self._editor, card(row["id"] or f"New {self._one}: {SINK_TYPES[type].title}"):
            self._name = ui.input("name", value=row["name"]).props("dense").classes("w-56")
            self._name.set_enabled(not row["id"])
            values = {**{name: row[name] for name in DESCRIBING if name in row}, **row["settings"]}
            self._form = ModelForm(model, (self._kind, type, "<name>"), values, choices)
            self._result = ui.label().classes("text-sm break-all").props('data-testid="probe"')
            with ui.row().classes("items-center w-full justify-end"):
                self._buttons(type, row)

    def _buttons(self, type: str, row: dict[str, Any]) -> None:
        may_save = self._session.may_change and row["origin"] == "runtime"
        if row["origin"] != "runtime":
            ui.label("In the configuration: change it there, and reload.").classes("opacity-70 text-sm")
        if row["id"]:
            for verb, icon in (("start", "play_arrow"), ("stop", "stop")):
                button = ui.button(verb.capitalize(), icon=icon, on_click=lambda verb=verb: self._order(verb)).props("flat")
                button.set_enabled(self._session.may_change)
            delete = ui.button("Delete", icon="delete", color="negative", on_click=self._delete).props("flat")
            delete.set_enabled(may_save)
        probe = ui.button("Probe", icon="network_check", on_click=lambda: self._probe(type)).props("flat")
        probe.set_enabled(self._session.may_change)
        ui.button("Save", icon="save", on_click=lambda: self._save(type)).set_enabled(may_save)

    async def _connectors(self, type: str) -> list[str]:
        found = await self._session.show_errors(self._session.call("connectors list", type=type, limit=1000))
        return [row["name"] for row in found["data"]] if found is not None else []

    def _definition(self) -> str | None:
        assert self._form is not None
        try:
            return json.dumps(self._form.values())
        except ValueError as error:
            self._session.notify(ControlError("BAD_REQUEST", str(error)))
            return None

    async def _probe(self, type: str) -> None:
        definition = self._definition()
        if definition is None:
            return
        self._result.set_text("...")
        id = self._opened or f"{type}:{self._name.value or 'probe'}"
        try:
            await self._session.call(f"{self._kind} probe", id=id, definition=definition)
        except ControlError as error:
            self._result.set_text(f"{error}")
            return
        self._result.set_text("The server can be used.")

    async def _save(self, type: str) -> None:
        definition = self._definition()
        if definition is None:
            return
        if self._opened:
            call = self._session.call(f"{self._kind} change", id=self._opened, definition=definition, replace=True)
        else:
            call = self._session.call(f"{self._kind} add", id=f"{type}:{self._name.value or ''}", definition=definition)
        row = await self._session.show_errors(call)
        if row is not None:
            ui.notify(f"{row['id']} is in force", type="positive")
            await self._show(type, row)
            await self.refresh()

    async def _order(self, verb: str) -> None:
        try:
            await self._session.call(f"{self._kind} {verb}", id=self._opened)
        except ControlError as error:
            self._session.notify(error)
            return
        ui.notify(f"{self._opened}: {verb}", type="positive")

    async def _delete(self) -> None:
        id = self._opened
        try:
            await self._session.call(f"{self._kind} delete", id=id)
        except ControlError as error:
            self._session.notify(error)
            return
        ui.notify(f"{id} is deleted", type="positive")
        self._editor.clear()
        await self.refresh()


def _page(kind: Kind, icon: str) -> Page:
    async def fill(session: Session) -> None:
        sinks = _Sinks(session, kind)
        await sinks.refresh()
        ui.timer(REFRESH_S, sinks.refresh)

    return Page(f"/{kind}", kind.capitalize(), icon, fill)


pages = (_page("connectors", "cable"), _page("actions", "output"))
