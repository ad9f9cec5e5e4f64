"""Plugins and hooks: state, loading, cost of callbacks."""

from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, number, table
from shardbroker.api.dashboard.session import Session

__all__ = ["page"]

REFRESH_S = 2.0
"""Between two refreshes of the cost of callbacks."""
PLUGINS = {"name": "Plugin", "state": "State", "workers": "Workers", "source": "From", "problem": "Problem"}
HOOKS = {
    "point": "Point", "callback": "Callback", "priority": "Priority", "calls": "Calls", "errors": "Errors", "seconds": "Time",
    "mean": "Mean", "slowest": "Slowest",
}  # fmt: skip


async def _fill(session: Session) -> None:
    with card("Plugins"):
        plugins = table(PLUGINS, "name", selection="single")
        with ui.row().classes("items-center w-full"):
            settings = ui.textarea("Settings: NAME=VALUE, one a line").props("dense autogrow").classes("w-96")
            buttons = [
                ui.button("Load", icon="play_arrow", on_click=lambda: change("plugins load", setting=_pairs(settings.value))),
                ui.button("Unload", icon="stop", on_click=lambda: change("plugins unload")).props("flat"),
            ]
        for button in buttons:
            button.set_enabled(session.may_change)
    with card("Hooks"):
        every = ui.checkbox("Points without callbacks, too", on_change=lambda: look_at_hooks())
        hooks = table(HOOKS, "key")

    async def look() -> None:
        found = await session.show_errors(session.call("plugins list"))
        if found is not None:
            plugins.rows = found["data"]
        await look_at_hooks()

    async def look_at_hooks() -> None:
        found = await session.show_errors(session.call("hooks list"))
        if found is not None:
            hooks.rows = [_row(row) for row in found["data"] if every.value or row["callback"]]

    async def change(verb: str, **params: Any) -> None:
        if not plugins.selected:
            ui.notify("choose a plugin first", type="warning")
        for row in plugins.selected:
            done = await session.show_errors(session.call(verb, name=row["name"], **params))
            if done is not None:
                points = ", ".join(done["points"]) or "no hooks"
                ui.notify(f"{done['name']}: {points}, in {done['workers']} workers", type="positive")
        await look()

    await look()
    ui.timer(REFRESH_S, look_at_hooks)


def _pairs(text: str | None) -> dict[str, str]:
    """Returns the pairs of lines with name=value."""
    parts = [line.partition("=") for line in (text or "").splitlines()]
    return {name.strip(): value for name, _, value in parts if name.strip()}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    mean = row["seconds"] / row["calls"] if row["calls"] else 0.0
    return row | {
        "key": f"{row['point']} {row['callback']}",
        "calls": number(row["calls"]),
        "seconds": f"{row['seconds']:.3f} s",
        "mean": f"{mean * 1e6:.0f} µs",
        "slowest": f"{row['slowest'] * 1e3:.1f} ms",
    }


page = Page("/plugins", "Hooks and plugins", "extension", _fill)
