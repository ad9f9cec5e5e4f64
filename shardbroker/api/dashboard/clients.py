"""Clients: search, details, kick."""

from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import timed

__all__ = ["page"]

COLUMNS = {
    "clientid": "Client id", "username": "User name", "conn_state": "State", "ip_address": "Address", "listener": "Listener",
    "proto_ver": "MQTT", "keepalive": "Keepalive", "worker": "Worker", "connected_at": "Connected since",
}  # fmt: skip
VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
SUBSCRIPTIONS_SHOWN = 200
"""Subscriptions shown of one client."""


async def _fill(session: Session) -> None:
    with card("Clients"):
        with ui.row().classes("items-center w-full"):
            client_id = ui.input("Client id contains").props('clearable dense data-testid="search"')
            username = ui.input("User name contains").props("clearable dense")
            state = ui.select({"": "all", "connected": "connected", "disconnected": "disconnected"}, value="", label="State")
            state.props("dense").classes("w-36")
            ui.button("Search", icon="search", on_click=lambda: search())

        async def open_one(row: dict[str, Any]) -> None:
            await _show_one(session, row["clientid"], table)

        table = CursorTable(session, "clients list", COLUMNS, _row, open_one)

    async def search() -> None:
        await table.show(like_clientid=client_id.value, like_username=username.value, conn_state=state.value)

    for field in (client_id, username):
        field.on("keydown.enter", search)
    await search()


async def _show_one(session: Session, client_id: str, table: CursorTable) -> None:
    known = await session.show_errors(session.call("clients show", clientid=client_id))
    if known is None:
        return
    found = await session.show_errors(session.rows("subscriptions list", clientid=client_id, limit=SUBSCRIPTIONS_SHOWN))

    async def kick() -> None:
        if await session.show_errors(session.call("clients kick", clientids=[client_id])):
            ui.notify(f"{client_id} is kicked", type="positive")
            dialog.close()
            await table.again()

    with ui.dialog() as dialog, ui.card().classes("min-w-[36rem] max-w-full"):
        ui.label(client_id).classes("text-lg font-medium break-all")
        with ui.grid(columns="auto 1fr auto 1fr").classes("gap-x-6 gap-y-1 text-sm w-full"):
            for name, value in _row(known).items():
                if name != "clientid" and value not in (None, ""):
                    ui.label(name.replace("_", " ")).classes("opacity-70")
                    ui.label(str(value)).classes("break-all")
        if found and found["data"]:
            columns = [
                {"name": name, "label": name, "field": name, "align": "left"} for name in ("topic", "qos", "nl", "rap", "rh")
            ]
            ui.table(columns=columns, rows=found["data"], row_key="topic", pagination=8).classes("w-full").props("flat dense")
        with ui.row().classes("w-full justify-end"):
            ui.button("Close", on_click=dialog.close).props("flat")
            button = ui.button("Kick", icon="person_off", color="negative", on_click=kick)
            button.set_enabled(session.may_change)
    dialog.on("hide", dialog.delete)
    dialog.open()


def _row(row: dict[str, Any]) -> dict[str, Any]:
    shown = timed(row, "created_at", "connected_at", "disconnected_at", "expires_at")
    return shown | {"proto_ver": VERSIONS.get(row["proto_ver"], "")}


page = Page("/clients", "Clients", "devices", _fill)
