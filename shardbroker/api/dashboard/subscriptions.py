"""Subscriptions, and topic filters with a subscription."""

from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session

__all__ = ["page"]

COLUMNS = {
    "clientid": "Client id",
    "topic": "Filter",
    "qos": "QoS",
    "nl": "No Local",
    "rap": "Retain As Published",
    "rh": "Retain Handling",
}


async def _fill(session: Session) -> None:
    def ignore(row: dict[str, Any]) -> None:
        """A click on a row has no effect."""

    with card("Subscriptions"):
        with ui.row().classes("items-center w-full"):
            client_id = ui.input("Client id").props("clearable dense")
            topic = ui.input("Filter").props("clearable dense")
            matched = ui.input("Gets messages of topic").props("clearable dense")
            ui.button("Search", icon="search", on_click=lambda: search())
        table = CursorTable(session, "subscriptions list", COLUMNS, dict, ignore)
    with card("Topics"):
        topics = CursorTable(session, "topics list", {"topic": "Filter", "destinations": "Workers"}, _topic, ignore)

    async def search() -> None:
        await table.show(clientid=client_id.value, topic=topic.value, match_topic=matched.value)
        await topics.show(topic=topic.value)

    for field in (client_id, topic, matched):
        field.on("keydown.enter", search)
    await search()


def _topic(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"destinations": ", ".join(row["destinations"])}


page = Page("/subscriptions", "Subscriptions", "rss_feed", _fill)
