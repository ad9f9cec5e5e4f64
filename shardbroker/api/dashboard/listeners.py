"""Listeners: their state, and a form with the keys of one."""

from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, table, within
from shardbroker.api.dashboard.model_form import ModelForm
from shardbroker.api.dashboard.session import Session
from shardbroker.config.listeners import Listener
from shardbroker.control import ControlError
from shardbroker.control.toml import assignments, nested

__all__ = ["page"]

REFRESH_S = 2.0
"""Between two refreshes of the table."""
COLUMNS = {"name": "Name", "type": "Type", "bind": "Address", "running": "Open", "current_connections": "Connections",
           "max_connections": "At most", "max_conn_rate": "New a second"}  # fmt: skip
COMMON = {"bind", "type", "max_connections", "max_conn_rate", "mountpoint", "enable_authn", "auth_chain", "access_rules"}
FOLDS = {"further keys": tuple(name for name in Listener.model_fields if name not in COMMON)}
ORDERS = (("start", "play_arrow"), ("stop", "stop"), ("restart", "restart_alt"), ("remove", "delete"))


class _Listeners:
    """The page."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._opened = ""
        self._known: dict[str, Any] = {}
        self._form: ModelForm | None = None
        with card("Listeners"):
            self._table = table(COLUMNS, "name", selection="single")
            self._table.on("rowClick", lambda event: self.open(event.args[1]))
            with ui.row().classes("items-center w-full"):
                buttons = [ui.button("New listener", icon="add", on_click=lambda: self._show("", {}))]
                for verb, icon in ORDERS:
                    one = ui.button(verb.capitalize(), icon=icon, on_click=lambda verb=verb: self._order(verb)).props("flat")
                    buttons.append(one)
            for button in buttons:
                button.set_enabled(session.may_change)
            ui.label(
                "Click a row to change it. What is changed here holds until the broker stops; the configuration file has the rest."
            ).classes("opacity-70 text-sm")
        self._editor = ui.column().classes("w-full")

    async def refresh(self) -> None:
        """Reads the table again."""
        found = await self._session.show_errors(self._session.call("listeners list"))
        if found is not None:
            self._table.rows = [row | {"running": "yes" if row["running"] else "no"} for row in found["data"]]

    async def open(self, row: dict[str, Any]) -> None:
        """Shows the form of a listener. Of one that was added at run time only the row is known."""
        section = f"listeners.{row['name']}"
        try:
            known = nested((await self._session.call("config get", key=section))["data"], section)
        except ControlError as error:
            if error.code != "NOT_FOUND":
                self._session.notify(error)
                return
            known = {}
        self._show(row["name"], known | {"bind": row["bind"], "type": row["type"]})

    def _show(self, name: str, known: dict[str, Any]) -> None:
        self._opened, self._known = name, known
        self._editor.clear()
        with self._editor, card(name or "New listener"):
            self._name = ui.input("name", value=name).props("dense").classes("w-96 max-w-full")
            self._name.set_enabled(not name)
            self._form = ModelForm(Listener, ("listeners", "<name>"), known, {}, FOLDS)
            with ui.row().classes("w-full justify-end"):
                ui.button("Save", icon="save", on_click=within(self._editor, self._save)).set_enabled(self._session.may_change)

    async def _save(self) -> None:
        assert self._form is not None
        name = self._opened or (self._name.value or "").strip()
        verb = "listeners update" if self._opened else "listeners add"
        try:
            changed = self._form.differing(self._known)
            settings = [f"{key}={value}" for key, value in assignments(changed).items()]
            if not self._opened:
                settings = [one for one in settings if not one.startswith("bind=")] + [f"bind={self._form.everything()['bind']}"]
            if not settings:
                ui.notify("nothing has changed")
                return
            await self._session.call(verb, name=name, settings=settings)
        except (ControlError, ValueError) as error:
            self._refuse(name, error if isinstance(error, ControlError) else ControlError("BAD_REQUEST", str(error)))
            return
        ui.notify(f"{name} is changed" if self._opened else f"{name} is open", type="positive")
        self._editor.clear()
        await self.refresh()

    def _refuse(self, name: str, error: ControlError) -> None:
        """Shows an error beside the field that it names, or as a message."""
        assert self._form is not None
        rest = self._form.show_errors(str(error).replace(f"listeners.{name}.", ""))
        if rest:
            self._session.notify(error)

    async def _order(self, verb: str) -> None:
        if not self._table.selected:
            ui.notify("choose a listener first", type="warning")
        for row in [*self._table.selected]:
            if await self._session.show_errors(self._session.call(f"listeners {verb}", name=row["name"])) is not None:
                ui.notify(f"{row['name']}: {verb}", type="positive")
                if verb == "remove":
                    self._table.selected = []
                    self._editor.clear()
        await self.refresh()


async def _fill(session: Session) -> None:
    listeners = _Listeners(session)
    await listeners.refresh()
    ui.timer(REFRESH_S, listeners.refresh)


page = Page("/listeners", "Listeners", "sensors", _fill)
