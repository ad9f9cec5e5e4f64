"""Messages that the broker keeps: retained ones, and those that are published later. List, details, delete."""

import base64
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, size
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import timed

__all__ = ["pages", "readable"]

RETAINED = {"topic": "Topic", "qos": "QoS", "payload_size": "Bytes", "from_clientid": "From", "publish_at": "Published at"}
DELAYED = {"topic": "Topic", "qos": "QoS", "payload_size": "Bytes", "from_clientid": "From", "publish_at": "Received at",
           "expected_at": "Published at", "delayed_remaining": "In s"}  # fmt: skip
SHOWN_MAX = 20_000
"""Characters of a payload that are shown."""


async def _retained(session: Session) -> None:
    with card("Retained messages"):
        with ui.row().classes("items-center w-full"):
            topic = ui.input("Filter", value="#").props("clearable dense")
            ui.button("Search", icon="search", on_click=lambda: search())

        async def open_one(row: dict[str, Any]) -> None:
            await _show_one(session, "retained", {"topic": row["topic"]}, table)

        table = CursorTable(session, "retained list", RETAINED, lambda row: timed(row, "publish_at", "expires_at"), open_one)

    async def search() -> None:
        await table.show(topic=topic.value or "#")

    topic.on("keydown.enter", search)
    await search()


async def _delayed(session: Session) -> None:
    with card("Delayed messages"):
        ui.button("Refresh", icon="refresh", on_click=lambda: refresh()).props("flat dense")

        async def open_one(row: dict[str, Any]) -> None:
            await _show_one(session, "delayed", {"msgid": row["msgid"]}, table)

        table = CursorTable(session, "delayed list", DELAYED, lambda row: timed(row, "publish_at", "expected_at"), open_one)
        ui.label("Published to $delayed/SECONDS/TOPIC. A click on a row shows the message.").classes("opacity-70 text-sm")

    async def refresh() -> None:
        await table.show()

    await refresh()


async def _show_one(session: Session, kind: str, which: dict[str, str], table: CursorTable) -> None:
    """kind: `retained` or `delayed`, which verbs begin with; which: their parameter."""
    known = await session.show_errors(session.call(f"{kind} show", **which))
    if known is None:
        return
    topic = known["topic"]

    async def delete() -> None:
        if await session.show_errors(session.call(f"{kind} delete", **which)):
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


pages = (Page("/retained", "Retained", "push_pin", _retained), Page("/delayed", "Delayed", "schedule_send", _delayed))
