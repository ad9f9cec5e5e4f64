"""Lists whose order counts: authenticators, sources of rules, ExHook servers. Members are added, changed, moved and removed.

Beside the authenticators are the users of the broker's own database, beside the sources its rules.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nicegui import ui
from pydantic import BaseModel

from shardbroker.api.dashboard.frame import Page, card, table, within
from shardbroker.api.dashboard.model_form import ModelForm
from shardbroker.api.dashboard.session import Session
from shardbroker.config.access import AUTHENTICATORS, SOURCES, Acl, Auth
from shardbroker.config.exhook import ExHookServer
from shardbroker.control import ControlError

__all__ = ["pages"]

REFRESH_S = 2.0
"""Between two refreshes of the state of ExHook servers."""
MODULES = "modules"
USERS_SHOWN = 500
"""Users of the broker's own database that are shown; the filter finds the others."""
USERS = {"name": "Name", "superuser": "Superuser"}
RULES = {"kind": "Of", "name": "Name", "permission": "Permission", "action": "Action", "topic": "Topic"}
SERVERS = {"name": "Server", "status": "Status", "url": "Address", "hooks": "Hooks", "succeeded": "Succeeded", "failed": "Failed",
           "dropped": "Dropped"}  # fmt: skip


@dataclass(frozen=True)
class _Chain:
    """A list: the beginning of its verbs, the verb that lists it, and the model of each kind of member."""

    verbs: str
    listed: str
    title: str
    one: str
    section: str
    models: Mapping[str, type[BaseModel] | None]
    empty: str
    named: bool = False
    """Whether members have names of their own, beside their kind."""


def _models(names: tuple[str, ...], within: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    fields: Mapping[str, Any] = within.model_fields
    return {name: fields[name].annotation if name in fields else None for name in (*names, MODULES)}


AUTHENTICATION = _Chain(
    "auth", "auth list", "Authenticators", "authenticator", "auth", _models(AUTHENTICATORS, Auth),
    "No authenticator: all clients may connect.",
)  # fmt: skip
AUTHORIZATION = _Chain(
    "acl sources", "acl sources list", "Sources of rules", "source", "acl", _models(SOURCES, Acl),
    "No source: all clients may publish and subscribe everywhere.",
)  # fmt: skip
EXHOOK = _Chain(
    "exhook", "exhook servers", "ExHook servers", "server", "exhook", {"server": ExHookServer},
    "No server. A server is a program in any language that takes part in hooks over gRPC.", named=True,
)  # fmt: skip


class _Members:
    """The list of a chain, and the form of one member."""

    def __init__(self, session: Session, chain: _Chain) -> None:
        self._session, self._chain = session, chain
        self._rows: list[dict[str, Any]] = []
        self._opened = ""
        self._form: ModelForm | None = None
        with card(chain.title):
            with ui.button(f"New {chain.one}", icon="add").props("flat") as add, ui.menu():
                for kind in chain.models:
                    ui.menu_item(kind, lambda kind=kind: self._show(kind, "", {}))
            add.set_enabled(session.may_change)
            self._list = ui.list().classes("w-full").props("bordered separator")
            self._note = ui.label().classes("opacity-70 text-sm")
        self._editor = ui.column().classes("w-full")

    async def refresh(self) -> None:
        """Reads the list again."""
        found = await self._session.show_errors(self._session.call(self._chain.listed))
        if found is None:
            return
        self._rows = found["data"]
        self._list.clear()
        self._list.set_visibility(bool(self._rows))
        with self._list:
            for place, row in enumerate(self._rows):
                self._row(place, row)
        several = "The first one that knows the client decides." if not self._chain.named else "They are called in this order."
        self._note.set_text(f"{several} Click one to change it." if self._rows else self._chain.empty)

    def _row(self, place: int, row: dict[str, Any]) -> None:
        name = row["name"]
        with ui.item(on_click=lambda: self._open(row)).props('data-testid="member"'):
            with ui.item_section().props("avatar"):
                ui.label(str(place + 1)).classes("opacity-70")
            with ui.item_section():
                ui.label(name).classes("font-medium break-all")
                ui.label(_summary(row)).classes("text-xs opacity-80 break-all")
            with ui.item_section().props("side"), ui.row().classes("gap-0 no-wrap"):
                for icon, title, act, allowed in (
                    ("arrow_upward", f"Move {name} up", within(self._editor, self._move, place, -1), place > 0),
                    ("arrow_downward", f"Move {name} down", within(self._editor, self._move, place, 1), row is not self._rows[-1]),
                    ("delete", f"Remove {name}", within(self._editor, self._remove, name), True),
                ):
                    button = ui.button(icon=icon).props(f'flat round dense aria-label="{title}"').tooltip(title)
                    button.on("click.stop", act)
                    button.set_enabled(allowed and self._session.may_change)

    def _open(self, row: dict[str, Any]) -> None:
        settings = row if self._chain.named else row["settings"]
        self._show("server" if self._chain.named else row["name"], row["name"], settings)

    def _show(self, kind: str, name: str, settings: dict[str, Any]) -> None:
        model = self._chain.models.get(kind)
        self._opened, self._kind, self._form = name, kind, None
        self._editor.clear()
        with self._editor, card(name or f"New {self._chain.one}: {kind}"):
            self._name = ui.input("name", value=name).props("dense").classes("w-96 max-w-full")
            self._name.set_enabled(not name)
            self._name.set_visibility(self._chain.named)
            if model is None:
                ui.label("It has no settings.").classes("opacity-70 text-sm")
            else:
                prefix = "" if self._chain.named else f"{self._chain.section}.{kind}."
                example = ExHookServer.model_construct(name="", url="") if self._chain.named else None
                self._form = ModelForm(model, (self._chain.section, kind), settings, {}, {}, prefix, example, ("name",))
            with ui.row().classes("w-full justify-end"):
                if model is not None or not name:
                    ui.button("Save", icon="save", on_click=within(self._editor, self._save)).set_enabled(self._session.may_change)

    async def _save(self) -> None:
        name = self._opened or ((self._name.value or "").strip() if self._chain.named else self._kind)
        verb = "change" if self._opened else "add"
        try:
            definition = json.dumps(self._form.everything() if self._form is not None else {})
            await self._session.call(f"{self._chain.verbs} {verb}", name=name, definition=definition)
        except (ControlError, ValueError) as error:
            self._refuse(error if isinstance(error, ControlError) else ControlError("BAD_REQUEST", str(error)))
            return
        ui.notify(f"{name} is in force", type="positive")
        self._editor.clear()
        await self.refresh()

    def _refuse(self, error: ControlError) -> None:
        """Shows an error beside the field that it names, or as a message."""
        if self._form is None or error.code != "BAD_REQUEST" or self._form.show_errors(str(error)):
            self._session.notify(error)

    async def _move(self, place: int, by: int) -> None:
        names = [row["name"] for row in self._rows]
        names.insert(place + by, names.pop(place))
        await self._session.show_errors(self._session.call(f"{self._chain.verbs} order", names=names))
        await self.refresh()

    async def _remove(self, name: str) -> None:
        if await self._session.show_errors(self._session.call(f"{self._chain.verbs} delete", name=name)) is not None:
            ui.notify(f"{name} is removed", type="positive")
            self._editor.clear()
        await self.refresh()


def _summary(row: dict[str, Any]) -> str:
    """Returns what tells a member from others: its address, or the query or path that it is asked with."""
    settings = row.get("settings", row)
    found = [str(settings[key]) for key in ("url", "server", "path", "endpoint", "user_id_type") if settings.get(key)]
    off = ["disabled"] if row.get("enable") is False else []
    return ", ".join([*off, *found[:1]])


async def _authentication(session: Session) -> None:
    await _Members(session, AUTHENTICATION).refresh()
    with card("Users of the broker's own database"):
        with ui.row().classes("items-center w-full"):
            name = ui.input("User name or client id").props("dense autocomplete=off")
            password = ui.input("Password", password=True).props("dense autocomplete=new-password")
            kind = ui.select(["username", "clientid"], value="username", label="What it is", on_change=lambda: look())
            kind.props("dense").classes("w-32")
            superuser = ui.checkbox("Superuser")
            add = ui.button("Add user", icon="person_add", on_click=lambda: add_one())
        part = ui.input("Name contains", on_change=lambda: look()).props("clearable dense")
        shown = table(USERS, "name", selection="single")
        note = ui.label().classes("opacity-70 text-sm")
        delete = ui.button("Delete user", icon="delete", on_click=lambda: delete_chosen()).props("flat")
        for button in (add, delete):
            button.set_enabled(session.may_change)

    async def look() -> None:
        found = await session.show_errors(session.call("users list", kind=kind.value))
        if found is not None:
            words = (part.value or "").lower()
            rows = [row for row in found["data"] if words in row["name"].lower()]
            shown.selected = []
            shown.rows = [row | {"superuser": "yes" if row["superuser"] else "no"} for row in rows[:USERS_SHOWN]]
            cut = f", the first {USERS_SHOWN} are shown" if len(rows) > USERS_SHOWN else ""
            note.set_text(f"{len(rows)} of {len(found['data'])} users{cut}")

    async def add_one() -> None:
        request = session.call("users add", name=name.value or "", password=password.value or "", kind=kind.value,
                               superuser=superuser.value)  # fmt: skip
        if await session.show_errors(request) is not None:
            ui.notify(f"{name.value} is added", type="positive")
            password.set_value("")
            await look()

    async def delete_chosen() -> None:
        await _of_chosen(shown, "a user", lambda row: session.call("users delete", name=row["name"], kind=kind.value), session)
        await look()

    await look()


async def _authorization(session: Session) -> None:
    await _Members(session, AUTHORIZATION).refresh()
    with card("Rules of the broker's own database"):
        with ui.row().classes("items-center w-full"):
            kind = ui.select(["username", "clientid", "all"], value="all", label="Of").props("dense").classes("w-32")
            name = ui.input("Name, unless of all").props("dense")
            permission = ui.select(["allow", "deny"], value="allow", label="Permission").props("dense").classes("w-28")
            action = ui.select(["publish", "subscribe", "all"], value="all", label="Action").props("dense").classes("w-32")
            topic = ui.input("Topic filter").props("dense")
            add = ui.button("Add rule", icon="add", on_click=lambda: add_one())
        shown = table(RULES, "key", selection="single")
        delete = ui.button("Delete all rules of this name", icon="delete", on_click=lambda: delete_chosen()).props("flat")
        for button in (add, delete):
            button.set_enabled(session.may_change)

    async def look() -> None:
        found = await session.show_errors(session.call("acl list"))
        if found is not None:
            rules = [row | rule for row in found["data"] for rule in row["rules"]]
            shown.selected, shown.rows = [], [rule | {"key": place} for place, rule in enumerate(rules)]

    async def add_one() -> None:
        request = session.call("acl add", kind=kind.value, name=name.value or "", permission=permission.value, action=action.value,
                               topic=topic.value or "")  # fmt: skip
        if await session.show_errors(request) is not None:
            await look()

    async def delete_chosen() -> None:
        await _of_chosen(shown, "a rule", lambda row: session.call("acl delete", kind=row["kind"], name=row["name"]), session)
        await look()

    await look()


async def _of_chosen(shown: ui.table, one: str, request: Callable[[dict[str, Any]], Awaitable[Any]], session: Session) -> None:
    if not shown.selected:
        ui.notify(f"choose {one} first", type="warning")
    for row in shown.selected:
        await session.show_errors(request(row))


async def _exhook(session: Session) -> None:
    await _Members(session, EXHOOK).refresh()
    with card("State"):
        states = table(SERVERS, "name")

    async def look() -> None:
        found = await session.show_errors(session.call("exhook list"))
        if found is not None:
            states.rows = [row | {"hooks": len(row["hooks"])} for row in found["data"]]

    await look()
    ui.timer(REFRESH_S, look)


pages = (
    Page("/authentication", "Authentication", "login", _authentication),
    Page("/authorization", "Authorization", "policy", _authorization),
    Page("/exhook", "ExHook", "webhook", _exhook),
)
