"""Cluster: its nodes and their load, the links of this node, etcd, and the evacuation of this node."""

import functools
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, number, size
from shardbroker.api.dashboard.session import Session
from shardbroker.control import ControlError

__all__ = ["page"]

REFRESH_S = 2.0
"""Between two refreshes."""
CORE_EVERY = 5
"""Refreshes between two requests to etcd."""
PAGE_ROWS = 50
"""Nodes of one page of a table."""
HEAD = {"cluster": "Cluster", "running": "Nodes running", "linked": "Linked peers", "epoch": "Epoch", "isolated": "Isolated"}
NODES = {
    "name": "Node", "state": "State", "version": "Version", "uptime": "Up for", "connections": "Clients", "sessions": "Sessions",
    "received": "In /s", "sent": "Out /s", "load1": "Load",
}  # fmt: skip
LINKS = {
    "name": "Peer", "link": "Signals", "data": "Messages", "routes": "Routes", "lag": "Routes behind", "spool": "Spool",
    "retained": "Retained messages", "access": "Users and rules", "error": "Last error",
}  # fmt: skip
LINK_STATES = ("link", "data", "retained", "access")
"""Columns of the links that have a badge."""
CORE = {"name": "Member", "state": "State", "version": "Version", "size": "Database", "alarms": "Alarms", "client": "Address"}
GOOD, WARNING, BAD, QUIET = "green-9", "deep-orange-10", "negative", "grey-8"
COLORS = {
    "running": GOOD, "turns clients away": WARNING, "joining": WARNING, "stopped": BAD,
    "up": GOOD, "synced": GOOD, "syncing": WARNING, "none": QUIET, "hello": WARNING, "suspect": WARNING, "down": BAD,
    "leader": GOOD, "follower": GOOD, "learner": WARNING, "connected": GOOD, "connecting": WARNING, "lost": BAD, "refused": BAD,
}  # fmt: skip
"""Of badges with white text, which is to be read."""
BADGE = """<q-td :props="props"><q-badge :color="props.row.colors[props.col.name]">{{ props.value }}</q-badge></q-td>"""
ALONE = (
    "This broker runs alone. Brokers on several machines can be linked: a client publishes on any node, subscribers on all nodes "
    "receive it, and sessions can follow their clients. Each node needs a name, the same cookie, and either etcd or the addresses "
    "of all nodes. docs/cluster.md has the steps; the settings begin with:"
)
FIRST_SETTINGS = """[node]
name = "n1@10.0.0.1"

[cluster]
enable = true
link.bind = "10.0.0.1:5370"
cookie_file = "/etc/shardbroker/cookie\""""
SPOOL = "Messages of QoS 1 and 2 for a node that is not reachable wait in the spool, on the disk of this node."
REPLICATED = (
    "Retained messages, and users and rules with bans, accounts and API keys, are synced if the peer and this node have the same, "
    "syncing while they are compared or sent, and none if the peer is not linked or its version takes none."
)
START = (
    "New clients are turned away and connected ones are disconnected. Sessions of absent clients move to other nodes, if this "
    "cluster moves sessions. It lasts until it is stopped, also over a restart."
)
STOP = "This node accepts clients again. Sessions that have moved stay where they are until their clients connect."

Row = dict[str, Any]


class _Cluster:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._peers: list[str] = []
        self._looks = 0
        self._alone = card("No cluster").props('data-testid="alone"')
        with self._alone:
            ui.label(ALONE).classes("max-w-3xl")
            ui.label(FIRST_SETTINGS).classes("font-mono text-xs whitespace-pre-wrap break-words w-full p-3 rounded bg-gray-500/10")
        self._joined = ui.column().classes("w-full gap-4")
        with self._joined:
            self._head = self._figures()
            with card("Nodes"):
                self._nodes = _table(NODES, "state")
            with card("Links of this node"):
                self._links = _table(LINKS, *LINK_STATES)
                for text in (SPOOL, REPLICATED):
                    ui.label(text).classes("text-sm opacity-80")
            self._core = card("etcd")
            with self._core:
                self._core_state = ui.badge("").props('data-testid="core"')
                self._core_text = ui.label().classes("text-sm break-words w-full")
                self._members = _table(CORE, "state")
        for part in (self._alone, self._joined, self._core):
            part.set_visibility(False)
        self._evacuation = _Evacuation(session)

    @staticmethod
    def _figures() -> dict[str, ui.label]:
        labels = {}
        with ui.element("div").classes("w-full grid gap-3").style("grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr))"):
            for name, title in HEAD.items():
                with ui.card().classes("gap-0 py-3"):
                    ui.label(title).classes("text-xs opacity-80")
                    labels[name] = ui.label("…").classes("text-xl font-medium break-all").props(f'data-testid="{name}"')
        return labels

    async def look(self) -> None:
        """Shows the state of this moment."""
        try:
            found: Row | None = await self._session.call("cluster status")
        except ControlError as error:
            if error.code != "NOT_AVAILABLE":
                self._session.notify(error)
                return
            found = None
        self._alone.set_visibility(found is None)
        self._joined.set_visibility(found is not None)
        peers = []
        if found is not None:
            self._show(found)
            await self._show_core(found.get("core"))
            peers = [peer["name"] for peer in found["peers"]]
        await self._evacuation.look(peers)
        self._looks += 1

    def _show(self, found: Row) -> None:
        running = sum(node["state"] == "running" for node in found["nodes"])
        linked = sum(peer["link"] == "up" for peer in found["peers"])
        texts = {
            "cluster": found["cluster"], "running": f"{running} of {len(found['nodes'])}",
            "linked": f"{linked} of {len(found['peers'])}", "epoch": str(found["epoch"]),
            "isolated": "yes" if found["isolated"] else "no",
        }  # fmt: skip
        for name, text in texts.items():
            self._head[name].set_text(text)
        _show_rows(self._nodes, [_node(row, place, found["self"]) for place, row in enumerate(found["nodes"])])
        _show_rows(self._links, [_link(row, place) for place, row in enumerate(found["peers"])])

    async def _show_core(self, core: Row | None) -> None:
        self._core.set_visibility(core is not None)
        if core is None:
            return
        self._core_state.set_text(core["state"])
        self._core_state.props(f"color={COLORS.get(core['state'], QUIET)}")
        whose = "run by nodes of this cluster" if core["mode"] == "managed" else "elsewhere"
        parts = [f"etcd {core['version']}".rstrip(), whose, core["endpoint"], core["error"], *core.get("alarms", ())]
        self._core_text.set_text(", ".join(part for part in parts if part))
        if self._looks % CORE_EVERY == 0 and core["state"] == "connected":
            try:
                members = (await self._session.call("cluster core status"))["data"]
            except ControlError as error:
                self._core_text.set_text(f"{self._core_text.text}; members are not known: {error}")
                return
            _show_rows(self._members, [_member(row, place) for place, row in enumerate(members)])


class _Evacuation:
    """The evacuation of this node, with what begins and ends it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._peers: list[str] = []
        self._stops = "node evacuate stop"
        with card("Empty this node"):
            with ui.row().classes("items-center gap-3"):
                self._state = ui.badge("").props('data-testid="evacuation"')
                self._may = ui.badge("may be stopped", color=GOOD).props('data-testid="may-be-stopped"')
            self._message = ui.label().classes("break-words w-full").props('data-testid="message"')
            self._bars = {name: _bar(title) for name, title in (("connected", "Clients"), ("sessions", "Sessions"))}
            with ui.row():
                self._start = ui.button("Empty this node", icon="logout", on_click=self._ask_start)
                self._stop = ui.button("Accept clients again", icon="login", on_click=self._ask_stop)
        for button in (self._start, self._stop):
            button.set_enabled(session.may_change)
        self._may.set_visibility(False)
        self._stop.set_visibility(False)

    async def look(self, peers: list[str]) -> None:
        """Shows the state of this moment; `peers`: names of the other nodes."""
        self._peers = peers
        found = await self._session.show_errors(self._session.call("node evacuate status"))
        if found is None:
            return
        is_on = found["status"] == "enabled"
        is_rebalance = found.get("process") == "rebalance"
        self._stops = f"node {'rebalance' if is_rebalance else 'evacuate'} stop"
        state = ("rebalance: " if is_rebalance else "") + found.get("state", "").replace("_", " ")
        self._state.set_text(state if is_on else "accepts clients")
        self._state.props(f"color={WARNING if is_on else GOOD}")
        self._message.set_text(found["message"] if is_on else "Before a broker is stopped for long, it can be emptied.")
        self._may.set_visibility(is_on and found["may_be_stopped"])
        self._start.set_visibility(not is_on)
        self._stop.set_visibility(is_on)
        for name, (box, bar, label) in self._bars.items():
            box.set_visibility(is_on)
            if is_on:
                before, left = found["stats"][f"initial_{name}"], found["stats"][f"current_{name}"]
                bar.set_value(max(0.0, 1 - left / before) if before else 1.0)
                label.set_text(f"{number(left)} left of {number(before)}")

    def _ask_start(self) -> None:
        with ui.dialog() as dialog, ui.card().classes("w-[34rem] max-w-full"):
            ui.label(f"Empty {self._session.app.state.node}").classes("text-lg font-medium break-all")
            ui.label(START).classes("text-sm")
            with ui.element("div").classes("w-full grid grid-cols-1 sm:grid-cols-2 gap-x-4"):
                given: dict[str, Any] = {
                    "conn_rate": ui.number("Clients a second", value=500, min=1, precision=0),
                    "sess_rate": ui.number("Sessions a second", value=500, min=1, precision=0),
                    "wait": ui.input("Accept clients for", value="60s"),
                    "wait_takeover": ui.input("Wait for clients to move", value="60s"),
                }
            redirect = ui.input("Server Reference for MQTT 5.0 clients", placeholder="10.0.0.2:1883 10.0.0.3:1883")
            redirect.classes("w-full")
            targets = ui.select(self._peers, label="Sessions move to (empty: all nodes)", multiple=True)
            targets.props("use-chips").classes("w-full")
            targets.set_visibility(bool(self._peers))

            async def start() -> None:
                params = {name: field.value for name, field in given.items() if field.value not in (None, "")}
                params |= {name: int(params[name]) for name in ("conn_rate", "sess_rate") if name in params}
                asked = {"redirect_to": redirect.value or None, "migrate_to": targets.value or None}
                await self._change(dialog, "node evacuate start", "This node is being emptied", **params, **asked)

            _buttons(dialog, "Turn clients away", start)

    def _ask_stop(self) -> None:
        with ui.dialog() as dialog, ui.card().classes("w-[28rem] max-w-full"):
            ui.label(f"Accept clients at {self._session.app.state.node}").classes("text-lg font-medium break-all")
            ui.label(STOP).classes("text-sm")
            accept = functools.partial(self._change, dialog, self._stops, "This node accepts clients")
            _buttons(dialog, "Accept clients", accept)

    async def _change(self, dialog: ui.dialog, verb: str, done: str, **params: Any) -> None:
        if await self._session.show_errors(self._session.call(verb, **params)) is not None:
            ui.notify(done, type="positive")
            dialog.close()
        await self.look(self._peers)


def _buttons(dialog: ui.dialog, text: str, act: Any) -> None:
    """Adds the buttons of a question, and opens it."""
    with ui.row().classes("w-full justify-end"):
        ui.button("Cancel", on_click=dialog.close).props("flat")
        ui.button(text, on_click=act).props('data-testid="confirm"')
    dialog.on("hide", dialog.delete)
    dialog.open()


def _bar(title: str) -> tuple[ui.element, ui.linear_progress, ui.label]:
    with ui.column().classes("w-full gap-1") as box:
        with ui.row().classes("w-full justify-between text-sm"):
            ui.label(title)
            label = ui.label()
        bar = ui.linear_progress(0.0, show_value=False).props(f'aria-label="{title}"')
    return box, bar, label


def _table(columns: dict[str, str], *badges: str) -> ui.table:
    shown = [{"name": name, "label": label, "field": name, "align": "left"} for name, label in columns.items()]
    table = ui.table(columns=shown, rows=[], row_key="key", pagination=PAGE_ROWS).classes("w-full")
    table.props("flat dense wrap-cells hide-pagination")
    for name in badges:
        table.add_slot(f"body-cell-{name}", BADGE)
    return table


def _show_rows(table: ui.table, rows: list[Row]) -> None:
    """Shows rows, with buttons for further pages if there are more than fit one."""
    table.rows = rows
    if len(rows) > PAGE_ROWS:
        table.props(remove="hide-pagination")


def _node(row: Row, place: int, own: str) -> Row:
    state = "turns clients away" if row["accepts_clients"] is False else row["state"]
    if row["state"] == "running" and row.get("lease") == "joining":
        state = "joining"
    return {
        "key": place, "name": f"{row['name']} (this node)" if row["name"] == own else row["name"], "state": state,
        "colors": {"state": COLORS.get(state, QUIET)}, "version": row["version"] or "", "uptime": _span(row["uptime_ms"]),
        "connections": _known(row["connections"]), "sessions": _known(row["sessions"]), "received": _known(row["received_rate"]),
        "sent": _known(row["sent_rate"]), "load1": "" if row["load1"] is None else f"{row['load1']:.2f}",
    }  # fmt: skip


def _link(row: Row, place: int) -> Row:
    colors = {name: COLORS.get(row[name], QUIET) for name in LINK_STATES}
    return {
        "key": place, "name": row["name"], "link": row["link"], "data": row["data"], "colors": colors,
        "routes": row["routes"].replace("_", " "), "lag": number(row["lag"]), "spool": size(row["spool_bytes"]),
        "retained": row["retained"], "access": row["access"], "error": row["error"],
    }  # fmt: skip


def _member(row: Row, place: int) -> Row:
    alarms = row.get("alarms") or ()
    return {
        "key": place, "name": row["name"], "state": row["state"], "colors": {"state": COLORS.get(row["state"], BAD)},
        "version": row.get("version", ""), "size": size(row.get("database_bytes") or 0),
        "alarms": alarms if isinstance(alarms, str) else ", ".join(alarms), "client": row.get("client", ""),
    }  # fmt: skip


def _known(value: float | None) -> str:
    return "" if value is None else number(value)


def _span(ms: int | None) -> str:
    """Returns a time in its largest unit, or an empty text."""
    if ms is None:
        return ""
    seconds = ms // 1000
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit}\N{NO-BREAK SPACE}{name}"
    return f"{seconds}\N{NO-BREAK SPACE}s"


async def _fill(session: Session) -> None:
    cluster = _Cluster(session)
    await cluster.look()
    ui.timer(REFRESH_S, cluster.look)


page = Page("/cluster", "Cluster", "device_hub", _fill)
