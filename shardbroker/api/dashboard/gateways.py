"""Gateways: state, listeners, counts, and their clients."""

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, number, table
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session

__all__ = ["page"]

REFRESH_S = 2.0
GATEWAYS = {"name": "Gateway", "status": "Status", "current_connections": "Connections", "max_connections": "At most",
            "messages_in": "Messages in", "messages_out": "Messages out", "errors": "Errors"}  # fmt: skip
LISTENERS = {"id": "Listener", "bind": "Address", "running": "Open", "current_connections": "Connections",
             "max_connections": "At most", "problem": "Problem"}  # fmt: skip
CLIENTS = {"clientid": "Client id", "username": "User name", "conn_state": "State", "ip_address": "Address",
           "listener": "Listener", "worker": "Worker"}  # fmt: skip


async def _fill(session: Session) -> None:
    with card("Gateways"):
        gateways = table(GATEWAYS, "name", selection="single")
        with ui.row().classes("items-center w-full"):
            buttons = [
                ui.button("Start", icon="play_arrow", on_click=lambda: enable(True)),
                ui.button("Stop", icon="stop", on_click=lambda: enable(False)).props("flat"),
            ]
        for button in buttons:
            button.set_enabled(session.may_change)
    with card("Listeners"):
        listeners = table(LISTENERS, "id")
    with card("Clients"):
        choice = ui.select([], label="Gateway", on_change=lambda: show_clients()).props("dense").classes("w-64")
        clients = CursorTable(session, "gateways clients", CLIENTS, lambda row: {"key": row["clientid"], **row}, lambda row: None)

    async def look() -> None:
        found = await session.show_errors(session.call("gateways list"))
        if found is None:
            return
        rows = []
        for row in found["data"]:
            shown = await session.show_errors(session.call("gateways show", name=row["name"]))
            rows.append(row | {name: number(count) for name, count in (shown or {}).get("figures", {}).items()})
        gateways.rows = rows
        listeners.rows = [one | {"running": "yes" if one["running"] else "no"} for row in rows for one in row["listeners"]]
        if not choice.options:
            choice.set_options([row["name"] for row in rows], value=rows[0]["name"] if rows else None)

    async def show_clients() -> None:
        if choice.value is not None:
            await clients.show(name=choice.value)

    async def enable(wanted: bool) -> None:
        if not gateways.selected:
            ui.notify("choose a gateway first", type="warning")
        for row in gateways.selected:
            if await session.show_errors(session.call("gateways enable", name=row["name"], enable=wanted)):
                ui.notify(f"{row['name']} {'starts' if wanted else 'stops'}", type="positive")
        await look()

    await look()
    ui.timer(REFRESH_S, look)


page = Page("/gateways", "Gateways", "router", _fill)
