"""Retained messages: list, details, delete."""

import base64
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, size
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import timed

__all__ = ["page", "readable"]

COLUMNS = {"topic": "Topic", "qos": "QoS", "payload_size": "Bytes", "from_clientid": "From", "publish_at": "Published at"}
SHOWN_MAX = 20_000
"""Characters of a payload that are shown."""


async def _fill(session: Session) -> None:
    with card("Retained messages"):
        with ui.row().classes("items-center w-full"):
            topic = ui.input("Filter", value="#").props("clearable dense")
            ui.button("Search", icon="search", on_click=lambda: search())

        async def open_one(row: dict[str, Any]) -> None:
            await _show_one(session, row["topic"], table)

        table = CursorTable(session, "retained list", COLUMNS, lambda row: timed(row, "publish_at", "expires_at"), open_one)

    async def search() -> None:
        await table.show(topic=topic.value or "#")

    topic.on("keydown.enter", search)
    await search()


async def _show_one(session: Session, topic: str, table: CursorTable) -> None:
    known = await session.show_errors(session.call("retained show", topic=topic))
    if known is None:
        return

    async def delete() -> None:
        if await session.show_errors(session.call("retained delete", topic=topic)):
            ui.notify(f"{topic} is deleted", type="positive")
            dialog.close()
            await table.again()

    payload = base64.b64decode(known["payload"])
    with ui.dialog() as dialog, ui.card().classes("min-w-[32rem] max-w-full"):
        ui.label(topic).classes("text-lg font-medium break-all")
        ui.label(f"QoS {known['qos']}, {size(len(payload))}, from {known['from_clientid'] or 'unknown'}").classes(
            "opacity-70 text-sm"
        )
        ui.label(readable(payload)).classes("font-mono text-sm whitespace-pre-wrap break-all max-h-96 overflow-auto w-full")
        with ui.row().classes("w-full justify-end"):
            ui.button("Close", on_click=dialog.close).props("flat")
            button = ui.button("Delete", icon="delete", color="negative", on_click=delete)
            button.set_enabled(session.may_change)
    dialog.on("hide", dialog.delete)
    dialog.open()


def readable(payload: bytes) -> str:
    """Returns a payload as text if it is UTF-8, else in hexadecimal."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = payload.hex(" ")
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(payload)} bytes)"


page = Page("/retained", "Retained", "push_pin", _fill)
