"""Accounts of the dashboard and the REST API, and keys of programs."""

import time
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, table
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import timed

__all__ = ["page"]

ACCOUNTS = {"name": "User name", "role": "Role", "description": "Description"}
KEYS = {"name": "Name", "api_key": "Key", "role": "Role", "valid": "State", "expired_at": "Until", "description": "Description"}
ROLES = ["administrator", "viewer"]
DAY_MS = 86_400_000


async def _fill(session: Session) -> None:
    await _accounts(session)
    await _keys(session)


async def _accounts(session: Session) -> None:
    with card("Users"):
        with ui.row().classes("items-center w-full"):
            name = ui.input("User name").props("dense autocomplete=off")
            password = ui.input("Password", password=True).props("dense autocomplete=new-password")
            role = ui.select(ROLES, value="viewer", label="Role").props("dense").classes("w-40")
            description = ui.input("Description").props("dense")
            add = ui.button("Add user", icon="person_add", on_click=lambda: change("admins add", password=password.value or "",
                            role=role.value, description=description.value or ""))  # fmt: skip
        shown = table(ACCOUNTS, "name", selection="single")
        with ui.row().classes("items-center w-full"):
            buttons = [
                ui.button("Set password", icon="password", on_click=lambda: set_password()),
                ui.button("Set role", on_click=lambda: of_chosen("admins update", role=role.value)).props("flat"),
                ui.button("Delete user", icon="delete", on_click=lambda: of_chosen("admins delete")).props("flat"),
            ]
            ui.label("Password and role are those of the fields above.").classes("opacity-70 text-sm")
        for button in (add, *buttons):
            button.set_enabled(session.may_change)

    async def look() -> None:
        found = await session.show_errors(session.call("admins list"))
        if found is not None:
            shown.selected, shown.rows = [], found["data"]

    async def change(verb: str, **params: Any) -> None:
        if await session.show_errors(session.call(verb, name=params.pop("name", name.value or ""), **params)) is not None:
            ui.notify(f"{verb}: done", type="positive")
            password.set_value("")
            await look()

    async def set_password() -> None:
        await of_chosen("admins passwd", password=password.value or "")

    async def of_chosen(verb: str, **params: Any) -> None:
        if not shown.selected:
            ui.notify("choose a user first", type="warning")
        for row in [*shown.selected]:
            await change(verb, name=row["name"], **params)

    await look()


async def _keys(session: Session) -> None:
    with card("API keys"):
        with ui.row().classes("items-center w-full"):
            name = ui.input("Name of the key").props("dense autocomplete=off")
            role = ui.select(ROLES, value="administrator", label="Role of the key").props("dense").classes("w-40")
            days = ui.number("Days; empty: for good", min=1, max=36500).props("dense").classes("w-52")
            note = ui.input("What it is for").props("dense")
            create = ui.button("Create key", icon="key", on_click=lambda: add())
        shown = table(KEYS, "name", selection="single")
        with ui.row().classes("items-center w-full"):
            buttons = [
                ui.button("Enable", on_click=lambda: of_chosen("api-keys update", enable=True)).props("flat"),
                ui.button("Disable", on_click=lambda: of_chosen("api-keys update", enable=False)).props("flat"),
                ui.button("Delete key", icon="delete", on_click=lambda: of_chosen("api-keys delete")).props("flat"),
            ]
        for button in (create, *buttons):
            button.set_enabled(session.may_change)

    async def look() -> None:
        found = await session.show_errors(session.call("api-keys list"))
        if found is not None:
            shown.selected, shown.rows = [], [_key(row) for row in found["data"]]

    async def add() -> None:
        until = int(time.time() * 1000 + days.value * DAY_MS) if days.value else None
        given = {"name": name.value or "", "role": role.value, "description": note.value or "", "expired_at": until}
        made = await session.show_errors(session.call("api-keys add", **given))
        if made is not None:
            _show_secret(made)
            await look()

    async def of_chosen(verb: str, **params: Any) -> None:
        if not shown.selected:
            ui.notify("choose a key first", type="warning")
        for row in [*shown.selected]:
            await session.show_errors(session.call(verb, name=row["name"], **params))
        await look()

    await look()


def _key(row: dict[str, Any]) -> dict[str, Any]:
    state = "expired" if row["expired"] else "valid" if row["enable"] else "disabled"
    return timed(row, "expired_at") | {"valid": state}


def _show_secret(made: dict[str, Any]) -> None:
    with ui.dialog().props("persistent") as dialog, ui.card().classes("max-w-full"):
        ui.label(made["name"]).classes("text-lg font-medium")
        ui.label("The secret is shown this once only.").classes("opacity-70 text-sm")
        for title, value in (("Key", made["api_key"]), ("Secret", made["api_secret"])):
            ui.label(f"{title}: {value}").classes("font-mono text-sm break-all").props(f'data-testid="{title.lower()}"')
        with ui.row().classes("w-full justify-end"):
            ui.button("Close", on_click=dialog.close).props("flat")
    dialog.on("hide", dialog.delete)
    dialog.open()


page = Page("/accounts", "Users and keys", "manage_accounts", _fill)
