"""Connectors, actions and sources: cards with status, rate and lag, and a form with the keys of the type.

Each step leads to the next: a connector to an action or a source over it, an action to a rule with its rows.
"""

import json
from contextlib import suppress
from typing import Any, Literal

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, asked, card, number
from shardbroker.api.dashboard.model_form import ModelForm
from shardbroker.api.dashboard.session import Session
from shardbroker.config.persistence import key_of
from shardbroker.config.sinks.definition import model_of
from shardbroker.config.sinks.ids import checked_id
from shardbroker.config.sinks.proposals import PROPOSALS
from shardbroker.config.sinks.types import SINK_TYPES, source_types
from shardbroker.control import ControlError

__all__ = ["pages"]

REFRESH_S = 2.0
"""Between two refreshes of the cards."""
CARDS_MAX = 60
"""Cards that are shown; the filter finds the others."""
COLORS = {"connected": "green-9", "connecting": "indigo-7", "disconnected": "negative", "stopped": "grey-7"}
"""Of badges with white text, which is to be read."""
GOOD, BAD = "text-green-800 dark:text-green-400", "text-red-700 dark:text-red-400"
DESCRIBING = ("enable", "description", "tags")
"""Keys that a row has beside its settings."""
TLS = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_verify")
FOLDS = {"TLS": TLS, "description": (*DESCRIBING, "fallback_actions")}
Kind = Literal["connectors", "actions", "sources"]
NAMES: dict[Kind, str] = {"connectors": "main", "actions": "messages", "sources": "messages"}
"""Proposed for the first one of a type."""
NAME_MUST = "must be up to 64 letters, digits, - and _, the first of them a letter or a digit"
EMPTY: dict[Kind, str] = {
    "connectors": "No connector yet. A connector is the connection to one server; actions and sources use it.",
    "actions": "No action yet. An action writes the rows of rules over a connector, which is made first.",
    "sources": "No source yet. A source receives what another system has, over a connector, which is made first.",
}


class _Sinks:
    """The page of connectors, of actions, or of sources."""

    def __init__(self, session: Session, kind: Kind) -> None:
        self._session, self._kind, self._one = session, kind, kind[:-1]
        self._rows: list[dict[str, Any]] = []
        self._opened = ""
        self._form: ModelForm | None = None
        with card(kind.capitalize()):
            with ui.row().classes("items-center w-full"):
                with ui.button(f"New {self._one}", icon="add").props("flat"), ui.menu():
                    for type in source_types() if kind == "sources" else SINK_TYPES:
                        ui.menu_item(SINK_TYPES[type].title, lambda type=type: self.begin(type))
                self._like = ui.input("Id contains", on_change=self.refresh).props("dense clearable").classes("w-56")
            self._cards = ui.row().classes("w-full gap-3 items-stretch")
            self._note = ui.label(EMPTY[kind]).classes("opacity-70 text-sm")
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
        empty = "No id contains this." if self._like.value else EMPTY[self._kind]
        self._note.set_text(f"Click a card to change it.{more}" if self._rows else empty)

    def _card(self, row: dict[str, Any]) -> None:
        with (
            ui.card()
            .classes("w-80 max-w-full cursor-pointer gap-1")
            .on("click", lambda: self.open(row["id"]))
            .props('flat bordered data-testid="card"')
        ):
            with ui.row().classes("items-start justify-between w-full no-wrap gap-2"):
                ui.label(row["id"]).classes("font-medium break-all")
                ui.badge(row["status"], color=COLORS.get(row["status"], "grey-7")).classes("shrink-0 mt-1")
            if row["description"]:
                ui.label(row["description"]).classes("text-xs opacity-80 break-words w-full line-clamp-2")
            if row["status_reason"]:
                ui.label(row["status_reason"]).classes("text-xs break-words w-full line-clamp-3").tooltip(row["status_reason"])
            if self._kind != "connectors":
                self._figures(row)
            users = [*row["actions"], *row["sources"]] if self._kind == "connectors" else row["rules"]
            text = f"used by {', '.join(users)}" if users else "not used" if self._kind == "connectors" else "not used by a rule"
            ui.label(text).classes("text-xs opacity-80 break-words w-full line-clamp-2")

    def _figures(self, row: dict[str, Any]) -> None:
        late = f", {_age(row['lag_seconds'])}" if row["lag_records"] and "lag_seconds" in row else ""
        with ui.row().classes("text-sm gap-x-4 gap-y-0"):
            ui.label(f"{number(row['rate'])} a second").classes("whitespace-nowrap")
            ui.label(f"{number(row['lag_records'])} behind{late}").classes("whitespace-nowrap")
            failed = ui.label(f"{number(row['failed'])} failed").classes("whitespace-nowrap")
            if row["failed"]:
                failed.classes(f"{BAD} font-medium")

    # --- one of them ----------------------------------------------------------------------------------------------------------

    async def begin(self, type: str, connector: str = "") -> None:
        """Shows a form with what is proposed for a type. connector: the name of the one to be used."""
        settings: dict[str, Any] = {}
        if self._kind != "connectors":
            proposal = PROPOSALS.get(type) if self._kind == "actions" else None
            names = await self._connectors(type)
            settings = {"connector": connector if connector in names else "".join(names[:1])}
            settings["parameters"] = proposal.parameters if proposal is not None else {}
        taken = await self._session.show_errors(self._session.call(f"{self._kind} list", type=type, limit=1))
        name = NAMES[self._kind] if taken is not None and not taken["data"] else ""
        await self._show(type, {"id": "", "name": name, "origin": "runtime", "settings": settings})

    async def open(self, id: str) -> None:
        """Shows one of the broker."""
        row = await self._session.show_errors(self._session.call(f"{self._kind} show", id=id))
        if row is not None:
            await self._show(row["type"], row)

    async def _show(self, type: str, row: dict[str, Any]) -> None:
        model = model_of(self._kind, type)
        choices = {"connector": await self._connectors(type)} if self._kind != "connectors" else {}
        self._opened = row["id"]
        self._editor.clear()
        with self._editor, card(row["id"] or f"New {self._one}: {SINK_TYPES[type].title}"):
            self._name = ui.input("name", value=row["name"]).props("dense").classes("w-96 max-w-full")
            self._name.set_enabled(not row["id"])
            values = {**{name: row[name] for name in DESCRIBING if name in row}, **row["settings"]}
            self._form = ModelForm(model, (self._kind, type, "<name>"), values, choices, FOLDS)
            proposal = PROPOSALS.get(type)
            if self._kind == "actions" and proposal is not None and proposal.needs and not row["id"]:
                ui.label("What the proposed statement needs, in the database:").classes("text-sm opacity-80")
                ui.label(proposal.needs).classes(
                    "font-mono text-xs whitespace-pre-wrap break-words w-full p-3 rounded bg-gray-500/10"
                ).props('data-testid="needs"')
            with ui.row().classes("items-center w-full justify-end"):
                self._result = ui.label().classes("text-sm break-words grow basis-80").props('data-testid="probe"')
                self._buttons(type, row)

    def _buttons(self, type: str, row: dict[str, Any]) -> None:
        may_save = self._session.may_change and row["origin"] == "runtime"
        if row["origin"] != "runtime":
            where = f"Of {preset}: change that" if (preset := key_of(row["id"])) else "In the configuration: change it there"
            ui.label(f"{where}, and reload.").classes("opacity-70 text-sm")
        if row["id"]:
            for verb, icon in (("start", "play_arrow"), ("stop", "stop")):
                button = ui.button(verb.capitalize(), icon=icon, on_click=lambda verb=verb: self._order(verb)).props("flat")
                button.set_enabled(self._session.may_change)
            delete = ui.button("Delete", icon="delete", color="negative", on_click=self._delete).props("flat")
            delete.set_enabled(may_save)
        probe = ui.button("Test connection", icon="network_check", on_click=lambda: self._probe(type)).props("flat")
        probe.set_enabled(self._session.may_change)
        ui.button("Save", icon="save", on_click=lambda: self._save(type)).set_enabled(may_save)
        if row["id"]:
            for text, path in self._steps(type, row["id"]):
                following = ui.button(text, icon="arrow_forward", on_click=lambda path=path: ui.navigate.to(path)).props("outline")
                following.set_enabled(self._session.may_change)

    def _steps(self, type: str, id: str) -> list[tuple[str, str]]:
        """Returns text and path of the steps that follow."""
        if self._kind == "actions":
            return [("New rule for it", f"/rules?action={id}")]
        if self._kind == "sources":
            return [("New rule for it", f"/rules?source={id}")]
        of_source = [("New source over it", f"/sources?connector={id}")] if type in source_types() else []
        return [("New action over it", f"/actions?connector={id}"), *of_source]

    async def _connectors(self, type: str) -> list[str]:
        found = await self._session.show_errors(self._session.call("connectors list", type=type, limit=1000))
        return [row["name"] for row in found["data"]] if found is not None else []

    def _definition(self) -> str | None:
        assert self._form is not None
        try:
            return json.dumps(self._form.values())
        except ValueError as error:
            self._refuse(ControlError("BAD_REQUEST", str(error)))
            return None

    def _refuse(self, error: ControlError) -> None:
        """Shows an error: beside the fields that it names, the rest as a message."""
        assert self._form is not None
        text = str(error) if error.code == "BAD_REQUEST" else ""
        rest = self._form.show_errors(text)
        self._name.error = None
        if text.startswith("id: "):
            self._name.error, rest = NAME_MUST, ""
        if rest or not text:
            self._session.notify(ControlError(error.code, rest) if text else error)

    def _say(self, text: str, color: str) -> None:
        self._result.set_text(text)
        self._result.classes(remove=f"{GOOD} {BAD}", add=color)

    async def _probe(self, type: str) -> None:
        definition = self._definition()
        if definition is None:
            return
        self._say("...", "")
        id = self._opened or f"{type}:{self._name.value or 'probe'}"
        try:
            await self._session.call(f"{self._kind} probe", id=id, definition=definition)
        except ControlError as error:
            if error.code == "BAD_REQUEST":
                self._say("", "")
                self._refuse(error)
            else:
                self._accept()
                self._say(f"{error}", BAD)
            return
        self._accept()
        self._say("The server can be used.", GOOD)

    def _accept(self) -> None:
        """Removes errors from the fields."""
        assert self._form is not None
        self._form.show_errors("")
        self._name.error = None

    async def _save(self, type: str) -> None:
        definition = self._definition()
        if definition is None:
            return
        if self._opened:
            call = self._session.call(f"{self._kind} change", id=self._opened, definition=definition, replace=True)
        else:
            call = self._session.call(f"{self._kind} add", id=f"{type}:{self._name.value or ''}", definition=definition)
        try:
            row = await call
        except ControlError as error:
            self._refuse(error)
            return
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


def _age(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"


def _page(kind: Kind, icon: str) -> Page:
    async def fill(session: Session) -> None:
        sinks = _Sinks(session, kind)
        await sinks.refresh()
        ui.timer(REFRESH_S, sinks.refresh)
        if kind != "connectors" and (connector := asked("connector")):
            with suppress(ValueError):
                await sinks.begin(*checked_id(connector))

    return Page(f"/{kind}", kind.capitalize(), icon, fill)


pages = (_page("connectors", "cable"), _page("actions", "output"), _page("sources", "input"))
