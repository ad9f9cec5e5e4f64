"""A table that is read page by page with a cursor, at a cost independent of the number of rows."""

from collections.abc import Callable
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import table
from shardbroker.api.dashboard.session import Session

__all__ = ["CursorTable"]

PAGE = 50
"""Rows of a page."""
ASKS_MAX = 30
"""Calls for one page: a filtered one may be empty without being the last."""

NODE = {"name": "node", "label": "Node", "field": "node", "align": "left"}

Row = dict[str, Any]


class CursorTable:
    """Rows of all nodes. `columns`: field -> title. `on_click` receives the row. show(**filters) starts at the first page.

    The name of the node is a column once a row of another node was there.
    """

    def __init__(
        self, session: Session, verb: str, columns: dict[str, str], shape: Callable[[Row], Row], on_click: Callable[[Row], Any]
    ) -> None:
        self._session, self._verb, self._shape = session, verb, shape
        self._filters: dict[str, Any] = {}
        self._cursors: list[str | None] = [None]
        """Cursors of the pages up to this one; the last is that of the next page."""
        self._table = table(columns, "key")
        self._table.on("rowClick", lambda event: on_click(event.args[1]))
        with ui.row().classes("items-center"):
            self._back = ui.button("Back", icon="chevron_left", on_click=self.back).props("flat dense")
            self._more = ui.button("Next", icon="chevron_right", on_click=self.forward).props("flat dense")
            self._note = ui.label().classes("opacity-70 text-sm")
        self._place = 0

    async def show(self, **filters: Any) -> None:
        """Shows the first page of matching rows; empty filters are ignored."""
        self._filters = {name: value for name, value in filters.items() if value not in ("", None)}
        self._cursors, self._place = [None], 0
        await self.again()

    async def again(self) -> None:
        """Reloads the current page."""
        rows: list[Row] = []
        missing: dict[str, str] = {}
        cursor = self._cursors[self._place]
        for _ in range(ASKS_MAX):
            request = self._session.rows(self._verb, limit=PAGE - len(rows), cursor=cursor, **self._filters)
            found = await self._session.show_errors(request)
            if found is None:
                break
            rows += found["data"]
            missing |= {one["node"]: one["reason"] for one in found["missing"]}
            cursor = found["cursor"]
            if cursor is None or len(rows) >= PAGE:
                break
        del self._cursors[self._place + 1 :]
        if cursor is not None:
            self._cursors.append(cursor)
        self._table.rows = [{**self._shape(row), "key": number} for number, row in enumerate(rows)]
        self._back.set_enabled(self._place > 0)
        self._more.set_enabled(len(self._cursors) > self._place + 1)
        if self._table.columns[-1] != NODE and any(row["node"] != self._session.app.state.node for row in rows):
            self._table.columns = [*self._table.columns, NODE]
        texts = [f"page {self._place + 1}, {len(rows)} rows" if rows else "nothing here"]
        texts += [f"rows of {node} are missing: {reason}" for node, reason in missing.items()]
        self._note.set_text("; ".join(texts))

    async def forward(self) -> None:
        self._place += 1
        await self.again()

    async def back(self) -> None:
        self._place -= 1
        await self.again()
