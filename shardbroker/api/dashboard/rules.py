"""Rules: list with figures, and an editor that shows the result while one types."""

import json
from datetime import UTC, datetime
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, asked, card, number
from shardbroker.api.dashboard.lists import CursorTable
from shardbroker.api.dashboard.session import Session
from shardbroker.config.persistence import key_of
from shardbroker.config.sinks.ids import checked_id, checked_source_id
from shardbroker.config.sinks.proposals import ROWS
from shardbroker.control import ControlError

__all__ = ["page"]

REFRESH_S = 2.0
"""Between two refreshes of the figures."""
TYPED_S = 0.5
"""Between two looks at what was typed: a trial takes 0.2 s."""
LAST = 100
"""Messages and events of a trial over the past."""
COLUMNS = {
    "id": "Id", "status": "Status", "origin": "Origin", "sources": "FROM", "matched": "Matched", "rate": "A second",
    "passed": "Passed", "failed": "Failed", "actions_failed": "Failed actions",
}  # fmt: skip
EXAMPLE = {"topic": "t/a", "payload": '{"temp": 31}', "clientid": "sensor-1", "qos": 1}
"""Columns of the first trial."""
SQL = 'SELECT payload.temp AS temp, clientid\nFROM "t/#"\nWHERE payload.temp > 30'
ACTIONS = [{"function": "republish", "args": {"topic": "alarms/${clientid}", "payload": "${temp}", "qos": 1}}]


async def _fill(session: Session) -> None:
    editor: _Editor
    with card("Rules"):
        with ui.row().classes("items-center w-full"):
            like = ui.input("Id contains", on_change=lambda: look()).props("dense clearable").classes("w-56")
            ui.button("New rule", icon="add", on_click=lambda: editor.begin()).props("flat")
        table = CursorTable(session, "rules list", COLUMNS, _row, lambda row: editor.open(row["id"]))
        ui.label("Click a row to change it.").classes("opacity-70 text-sm")

    async def look() -> None:
        await table.show(like_id=like.value)

    editor = _Editor(session, table)
    await look()
    action, source = asked("action"), asked("source")
    try:
        if source:
            editor.begin_from(":".join(checked_source_id(source)))
        else:
            editor.begin_for(*checked_id(action))
    except ValueError:
        editor.begin()
    ui.timer(REFRESH_S, table.again)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    metrics = row["metrics"]
    return row | {
        "status": f"{row['status']}: {row['problem']}" if row["problem"] else row["status"],
        "sources": ", ".join(row["from"]),
        "rate": number(metrics.get("matched.rate", 0)),
        "actions_failed": number(metrics.get("actions.failed", 0)),
        **{name: number(row[name]) for name in ("matched", "passed", "failed")},
    }


class _Editor:
    """One rule, and its trial over one message or event."""

    def __init__(self, session: Session, table: CursorTable) -> None:
        from shardbroker.rules.events import BRIDGE, EVENTS

        self._session, self._table = session, table
        self._events = {event.name: event for event in EVENTS if event is not BRIDGE}
        self._opened = ""
        self._tried: tuple[str, str] | None = None
        with ui.grid().classes("w-full grid-cols-1 lg:grid-cols-2 gap-4 items-stretch"):
            with card("Rule"):
                with ui.row().classes("items-center w-full"):
                    self._id = ui.input("Id").props("dense").classes("w-40")
                    self._name = ui.input("Name").props("dense").classes("w-48")
                    self._enable = ui.switch("Enabled", value=True)
                self._description = ui.input("Description").props("dense").classes("w-full")
                self._sql = ui.codemirror(language="SQL", line_wrapping=True).classes("w-full h-40").props('data-testid="sql"')
                ui.label('Actions: a JSON array of ids such as "pgsql:messages", and of objects with function and args').classes(
                    "opacity-70 text-sm"
                )
                self._actions = ui.codemirror(language="JSON", line_wrapping=True).classes("w-full h-32")
                with ui.row().classes("items-center w-full justify-end"):
                    self._delete_button = ui.button("Delete", icon="delete", color="negative", on_click=self._delete).props("flat")
                    self._save_button = ui.button("Save", icon="save", on_click=self._save)
            with card("Trial"):
                names = {name: event.title for name, event in self._events.items()}
                self._event = (
                    ui.select(names, value="message.publish", label="Columns of", on_change=self._take_event)
                    .props("dense")
                    .classes("w-64")
                )
                self._context = ui.codemirror(language="JSON", line_wrapping=True).classes("w-full h-40")
                ui.label("Result").classes("opacity-70 text-sm")
                self._result = ui.label().classes("font-mono text-xs whitespace-pre-wrap break-all w-full")
                self._result.props('data-testid="result"')
                self._past_button = ui.button(f"Try on the last {LAST} messages", icon="history", on_click=self._try_past)
                self._past_button.props("flat")
                self._past = ui.label().classes("font-mono text-xs whitespace-pre-wrap break-all w-full max-h-64 overflow-auto")
                self._past.props('data-testid="past"')
        self._save_button.set_enabled(session.may_change)
        self._past_button.set_enabled(session.may_change)
        if session.may_change:
            ui.timer(TYPED_S, self._try)
        else:
            self._result.set_text("Only administrators try rules.")

    def begin(self) -> None:
        """Shows a new rule, as an example."""
        self._show({"id": "", "name": "", "description": "", "enable": True, "sql": SQL, "actions": ACTIONS})
        self._event.set_value("message.publish")
        self._context.set_value(_pretty(EXAMPLE))

    def begin_for(self, type: str, name: str) -> None:
        """Shows a new rule whose rows an action gets."""
        self.begin()
        self._id.set_value(name)
        self._sql.set_value(ROWS)
        self._actions.set_value(_pretty([f"{type}:{name}"]))

    def begin_from(self, id: str) -> None:
        """Shows a new rule over what a source receives."""
        self.begin()
        self._id.set_value(id.rpartition(":")[2])
        self._sql.set_value(f'SELECT *\nFROM "$sources/{id}"')

    async def open(self, id: str) -> None:
        """Shows a rule of the broker."""
        row = await self._session.show_errors(self._session.call("rules show", id=id))
        if row is None:
            return
        self._show(row)
        if row["origin"] == "configuration":
            self._save_button.set_enabled(False)
            self._delete_button.set_enabled(False)
            where = f"of {preset}: change that" if (preset := key_of(id)) else "in the configuration: change it there"
            ui.notify(f"{id} is {where}, and reload", type="info")

    def _show(self, row: dict[str, Any]) -> None:
        self._opened = row["id"]
        self._id.set_value(row["id"])
        self._id.set_enabled(not row["id"])
        self._name.set_value(row["name"])
        self._description.set_value(row["description"])
        self._enable.set_value(row["enable"])
        self._sql.set_value(row["sql"])
        self._actions.set_value(_pretty(row["actions"]))
        self._save_button.set_enabled(self._session.may_change)
        self._delete_button.set_enabled(self._session.may_change and bool(row["id"]))

    def _take_event(self) -> None:
        from shardbroker.rules.events import PUBLISH, example

        event = self._events[self._event.value]
        self._context.set_value(_pretty(example(event)))
        if not self._opened:
            source = "t/#" if event is PUBLISH else event.topics[0]
            self._sql.set_value(f'SELECT *\nFROM "{source}"')

    async def _try(self) -> None:
        """Shows the result of what was typed, if it has changed."""
        from shardbroker.rules.sandbox import try_rule

        typed = (self._sql.value or "", self._context.value or "")
        if typed == self._tried:
            return
        self._tried = typed
        try:
            self._session.check(changes=True)
        except ControlError as error:
            self._session.notify(error)
            return
        try:
            context = json.loads(typed[1] or "{}")
        except (ValueError, RecursionError) as error:
            self._result.set_text(f"columns: must be a JSON object, got {error}")
            return
        if not isinstance(context, dict):
            self._result.set_text("columns: must be a JSON object")
            return
        tested = await try_rule(typed[0], context)
        if typed == self._tried:  # not typed on meanwhile
            self._result.set_text(f"{tested.error}: {tested.detail}" if tested.error else _pretty(tested.result))

    async def _try_past(self) -> None:
        """Shows what the rule makes of what journals have."""
        self._past.set_text("")
        found = await self._session.show_errors(self._session.call("rules past", sql=self._sql.value or "", last=LAST))
        if found is None:
            return
        lines = [f"{found['matched']} of {found['read']} match FROM, {len(found['data'])} results or failures"]
        for row in reversed(found["data"]):
            time = datetime.fromtimestamp(row["occurred_at"] / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
            shown = row.get("result") or f"failed: {row['error']}"
            lines.append(f"{time}  {row['topic'] or row['event']}  {shown}")
        self._past.set_text("\n".join(lines))

    async def _save(self) -> None:
        given = {
            "sql": self._sql.value or "",
            "actions": self._actions.value or "[]",
            "name": self._name.value or "",
            "description": self._description.value or "",
            "enable": bool(self._enable.value),
        }
        verb, id = ("rules update", self._opened) if self._opened else ("rules create", self._id.value or "")
        row = await self._session.show_errors(self._session.call(verb, id=id, **given))
        if row is not None:
            ui.notify(f"{id} is in force" if row["status"] == "running" else f"{id} is {row['status']}", type="positive")
            self._show(row)
            await self._table.again()

    async def _delete(self) -> None:
        id = self._opened
        try:
            await self._session.call("rules delete", id=id)
        except ControlError as error:
            self._session.notify(error)
            return
        ui.notify(f"{id} is deleted", type="positive")
        self.begin()
        await self._table.again()


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


page = Page("/rules", "Rules", "rule", _fill)
