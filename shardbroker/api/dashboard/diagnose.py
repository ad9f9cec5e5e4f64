"""Diagnosis: alarms, clients with high rates, slow subscriptions, metrics of topics."""

from collections.abc import Callable
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, number, size, table
from shardbroker.api.dashboard.session import Session
from shardbroker.api.shapes import moment, timed

__all__ = ["page"]

REFRESH_S = 3.0
"""Between two refreshes; while the page is open, workers count messages by client."""
LOUD = {"clientid": "Client id", "worker": "Worker", "messages_in": "In /s", "messages_out": "Out /s", "bytes_in": "Bytes in /s",
        "bytes_out": "Bytes out /s"}  # fmt: skip
SLOW = {"clientid": "Client id", "topic": "Topic", "timespan": "ms", "last_update_at": "Last seen"}
COUNTED = {"topic": "Topic or filter", "in": "In", "in_rate": "In /s", "out": "Out", "out_rate": "Out /s", "dropped": "Dropped"}
ALARMS = {"name": "Alarm", "message": "Message", "activate_at": "Since", "deactivate_at": "Until"}
ALARMS_SHOWN = 20
"""Active alarms, and as many that have ended."""

Row = dict[str, Any]


async def _fill(session: Session) -> None:
    with card("Alarms"):
        alarms = table(ALARMS, "key")
        over = ui.button("Forget those that are over", on_click=lambda: clear("alarms clear")).props("flat")
        over.set_enabled(session.may_change)
    with card("Loudest clients"):
        loud = table(LOUD, "key")
    with card("Slow subscriptions"):
        with ui.row().classes("items-center w-full"):
            state = ui.label().classes("opacity-70 text-sm")
            measure = ui.button("Measure", on_click=lambda: turn()).props("flat dense")
            measure.set_enabled(session.may_change)
            forget = ui.button("Forget", on_click=lambda: clear("slow-subs clear")).props("flat dense")
            forget.set_enabled(session.may_change)
        slow = table(SLOW, "key")
    with card("Topics"):
        with ui.row().classes("items-center w-full"):
            topic = ui.input("Topic or filter").props("dense").classes("w-64")
            ui.button("Count", icon="add", on_click=lambda: change("add", topic.value or "")).set_enabled(session.may_change)
            drop = ui.button("Do not count", on_click=lambda: drop_chosen()).props("flat")
            drop.set_enabled(session.may_change)
        counted = table(COUNTED, "key", selection="single")

    async def fill(shown: ui.table, verb: str, shape: Callable[[Row], Row], **params: Any) -> None:
        found = await session.show_errors(session.call(verb, **params))
        if found is not None:
            shown.rows = [shape(row) | {"key": place} for place, row in enumerate(found["data"])]

    async def look() -> None:
        await fill(loud, "clients loudest", _loud)
        await fill(slow, "slow-subs list", lambda row: timed(row, "last_update_at"))
        await fill_counted()
        shown: list[Row] = []
        for activated in (True, False):
            found = await session.show_errors(session.call("alarms list", activated=activated, limit=ALARMS_SHOWN))
            shown += found["data"] if found else []
        alarms.rows = [timed(row, "activate_at", "deactivate_at") | {"key": place} for place, row in enumerate(shown)]

    async def fill_counted() -> None:
        found = await session.show_errors(session.call("topic-metrics list"))
        if found is not None:
            counted.rows = [_counted(row) for row in found["data"]]

    async def look_at_state() -> None:
        found = await session.show_errors(session.call("config get", key="slow_subs"))
        if found is not None:
            values = {row["key"].partition(".")[2]: row["value"].strip('"') for row in found["data"]}
            on = values["enable"] == "true"
            state.set_text(f"{values['stats_type']}, longer than {values['threshold']}" if on else "not measured")
            measure.set_text("Stop measuring" if on else "Measure")

    async def turn() -> None:
        value = "false" if measure.text == "Stop measuring" else "true"
        await session.show_errors(session.call("config set", key="slow_subs.enable", value=value))
        await look_at_state()

    async def clear(verb: str) -> None:
        await session.show_errors(session.call(verb))
        await look()

    async def change(what: str, name: str) -> None:
        if await session.show_errors(session.call(f"topic-metrics {what}", topic=name)):
            await fill_counted()

    async def drop_chosen() -> None:
        for row in counted.selected:
            await change("delete", row["topic"])
        counted.selected = []

    await look_at_state()
    await fill_counted()
    ui.timer(REFRESH_S, look)


def _loud(row: Row) -> Row:
    rates = {name: number(row[name]) for name in ("messages_in", "messages_out")}
    return row | rates | {name: size(row[name]) for name in ("bytes_in", "bytes_out")}


def _counted(row: Row) -> Row:
    return {
        "key": row["topic"], "topic": row["topic"], "in": row["messages.in.count"], "in_rate": row["messages.in.rate"],
        "out": row["messages.out.count"], "out_rate": row["messages.out.rate"], "dropped": row["messages.dropped.count"],
        "since": moment(row["create_at"]),
    }  # fmt: skip


page = Page("/diagnose", "Diagnose", "troubleshoot", _fill)
