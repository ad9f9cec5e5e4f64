"""`shardbroker top`: the activity of each worker, live in a terminal, with keys to sort and filter. q or Ctrl-C ends it."""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardbroker.cli.keys import ESCAPE, Keys
from shardbroker.cli.locate import running_data_dir
from shardbroker.cli.render import console
from shardbroker.control import Control, ControlError
from shardbroker.control.figures import Window

__all__ = ["View", "main", "screen"]

CLIENTS, CLIENTS_MAX = 5, 50
"""Busiest clients shown by default, and at most."""
INTERVAL_S, SHORTEST_S = 2.0, 0.2
"""Refresh interval by default, and the shortest one."""
BAR = 10
"""Characters of a bar."""
COLUMNS = (
    "worker", "core", "weight", "pid", "state", "cpu", "memory", "clients", "subs", "in/s", "out/s", "lost/s", "waiting", "ring",
)  # fmt: skip
WIDE = 120
"""Characters of a terminal that shows all columns; a narrower one, from 80 on, leaves out these, and has shorter bars."""
WIDE_ONLY = ("weight", "pid", "subs")
NARROW_BAR = 4
"""Characters of the bar of the CPU there; that of the ring is left out."""
SORTS = {
    "worker": "worker", "cpu": "cpu_percent", "memory": "memory_bytes", "clients": "connections", "in/s": "received",
    "out/s": "sent", "lost/s": "lost", "waiting": "queued", "ring": "ring_percent",
}  # fmt: skip
"""Column -> figure of a worker. All but the number of the worker begin with the highest."""
SORTS_OF_CLIENTS = {"in/s": "messages_in", "out/s": "messages_out"}
"""Those that sort the busiest clients too, which are otherwise in the order of all their messages."""
FILTER_MAX = 64
"""Characters of a filter."""
HINT = "q quit  s sort  / filter  h help"
KEYS = "s to sort, / to filter, h for help, q to end"
HELP = """\
q, Ctrl-C  quit
s, S       sort by the next, the previous column: marked in the head of the table
/          show the busiest clients whose client id contains a text: type it, Enter keeps it, Escape removes it
h, ?       this help; any key leaves it
"""
BUSY, FULL = 60.0, 90.0
"""Percent above which a bar is yellow, and red."""


def main(argv: list[str]) -> int:
    """Runs `shardbroker top ARGV...`; returns the exit code: 0 well, 1 refused, 2 wrong usage, 3 no broker."""
    parser = argparse.ArgumentParser(
        prog="shardbroker top", description=f"Shows the activity of each worker of a running broker. Keys: {KEYS}."
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="of the broker; default: that of `serve`, else of the service")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file that the broker was started with")
    parser.add_argument(
        "--interval", type=_interval, default=INTERVAL_S, metavar="SECONDS", help=f"refresh interval, {INTERVAL_S:g}"
    )
    parser.add_argument(
        "--clients", type=_clients, default=CLIENTS, metavar="N", help=f"busiest clients to show, {CLIENTS}; 0: none"
    )
    parser.add_argument("--once", action="store_true", help="print once and exit, for scripts")
    arguments = parser.parse_args(argv)
    data_dir = running_data_dir(arguments.data_dir, arguments.config)
    try:
        with Control(data_dir, by=f"top:{os.getuid()}") as control:
            _watch(control, arguments.interval, arguments.once, arguments.clients)
    except ControlError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 3 if error.code == "BROKER_DOWN" else 1
    except KeyboardInterrupt:
        pass
    return 0


def _interval(text: str) -> float:
    value = float(text)
    if not value >= SHORTEST_S:
        raise argparse.ArgumentTypeError(f"must be {SHORTEST_S:g} or more, got {text}")
    return value


def _clients(text: str) -> int:
    value = int(text)
    if not 0 <= value <= CLIENTS_MAX:
        raise argparse.ArgumentTypeError(f"must be 0 to {CLIENTS_MAX}, got {text}")
    return value


def _loudest(control: Control, clients: int) -> list[dict[str, Any]]:
    """Returns the busiest clients. A request starts the count: workers count only while requests arrive."""
    rows: list[dict[str, Any]] = control.call("clients loudest", limit=clients)["data"] if clients else []
    return rows


def _watch(control: Control, interval_s: float, once: bool, clients: int) -> None:
    window = Window()
    window.feed(control.call("load"))
    time.sleep(min(interval_s, 1.0))
    if once:
        loud = _loudest(control, clients)
        window.feed(control.call("load"))
        console().print(screen(control.call("status"), window.figures() or {}, loud))
        return
    view = View()
    with Keys() as keys, Live(screen=True, auto_refresh=False) as live:
        loud = []  # the first measuring window ends after the second refresh
        while True:
            window.feed(control.call("load"))
            status, figures = control.call("status"), window.figures() or {}
            until = time.monotonic() + interval_s
            while True:
                shown = Text(HELP) if view.helps else screen(status, figures, loud, view, clients, live.console.width)
                live.update(shown, refresh=True)
                typed = keys.wait(until - time.monotonic())
                if typed is None or (typed and not view.take(typed)):
                    return
                if not typed:
                    break
            loud = _loudest(control, CLIENTS_MAX if clients and view.filter else clients)


@dataclass
class View:
    """What the keys have chosen."""

    sort: str = "worker"
    filter: str = ""
    types: bool = False
    """The filter is being typed."""
    helps: bool = False

    def take(self, typed: str) -> bool:
        """Takes what was typed; returns False if it ends the program."""
        return all([self._key(key) for key in ([typed] if typed == ESCAPE else typed)])

    def _key(self, key: str) -> bool:
        if self.types:
            self._edit(key)
        elif self.helps:
            self.helps = False
        elif key in "sS":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + (1 if key == "s" else -1)) % len(names)]
        elif key == "/":
            self.types, self.filter = True, ""
        elif key == ESCAPE:
            self.filter = ""
        elif key in "h?":
            self.helps = True
        return key != "q" or self.types

    def _edit(self, key: str) -> None:
        if key in "\r\n":
            self.types = False
        elif key == ESCAPE:
            self.types, self.filter = False, ""
        elif key in "\x7f\b":
            self.filter = self.filter[:-1]
        elif key.isprintable():
            self.filter = (self.filter + key)[:FILTER_MAX]


def screen(
    status: dict[str, Any], figures: dict[str, Any], loudest: list[dict[str, Any]], view: View | None = None,
    clients: int = CLIENTS, width: int = WIDE,
) -> RenderableType:  # fmt: skip
    """Returns the screen: the broker, latencies, the workers, the busiest clients. view: of a terminal with keys."""
    totals = figures["totals"]
    seconds = status["uptime_ms"] // 1000
    head = Text()
    head.append(f"{status['node']}", style="bold")
    head.append(
        f"  {status['version']}  up {seconds // 86400}d {seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    )
    head.append(f"  workers {status['workers_ready']}/{status['workers']}  acceptors {status['acceptors']}")
    kept_to = ",".join(map(str, status["acceptor_cores"]))
    head.append(f" on cores {kept_to}\n" if kept_to else "\n")
    head.append(f"connections {status['connections']}  sessions {status['sessions']}  subscriptions {status['subscriptions']}")
    head.append(f"  routes {status['routes']}  retained {status['retained']}\n")
    head.append(f"in {_number(totals['received'])}/s ({_size(totals['bytes_in'])}/s)  out {_number(totals['sent'])}/s")
    head.append(f" ({_size(totals['bytes_out'])}/s)")
    head.append(f"  lost {_number(totals['lost'])}/s{_reasons(totals['losses'])}  connects {_number(totals['connects'])}/s\n")
    for title, name in (("ring hop", "ring.hop_us"), ("loop pass", "pass_us")):
        found = figures["latencies"][name]
        head.append(f"{title} p50 {_duration(found['p50'])}, p99 {_duration(found['p99'])}    ")
    sort = view.sort if view else "worker"
    wide = width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=wide, padding=(0, 1 if wide else 0))
    kept = [number for number, column in enumerate(COLUMNS) if wide or column not in WIDE_ONLY]
    for column in (COLUMNS[number] for number in kept):
        caption = Text(column, style="reverse" if view and column == sort else "")
        table.add_column(caption, justify="left" if column in ("state", "cpu", "ring") else "right", no_wrap=True)
    for worker in sorted(figures["workers"], key=lambda one: one[SORTS[sort]], reverse=sort != "worker"):
        cells = _row(worker, wide)
        table.add_row(*(cells[number] for number in kept))
    parts: list[RenderableType] = [head, table]
    if view:
        loudest = _chosen(loudest, view)[:clients]
    if loudest:
        parts.append(_loud_table(loudest))
    if view:
        parts.append(_foot(view, bool(loudest)))
    return Group(*parts)


def _chosen(loudest: list[dict[str, Any]], view: View) -> list[dict[str, Any]]:
    found = [row for row in loudest if view.filter in row["clientid"]]
    if of := SORTS_OF_CLIENTS.get(view.sort):
        found.sort(key=lambda row: row[of], reverse=True)
    return found


def _foot(view: View, has_clients: bool) -> Text:
    foot = Text(f"{HINT}    sorted by {view.sort}", style="dim")
    if view.types or view.filter:
        foot = Text(f"filter: {view.filter}{'_' if view.types else ''}")
        foot.append("" if has_clients else "    no busy client with it", style="dim")
    return foot


def _loud_table(loudest: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("loudest client", "worker", "in/s", "out/s", "bytes in/s", "bytes out/s"):
        table.add_column(column, justify="left" if column == "loudest client" else "right", overflow="ellipsis", no_wrap=True)
    for row in loudest:
        rates = [_number(row["messages_in"]), _number(row["messages_out"]), _size(row["bytes_in"]), _size(row["bytes_out"])]
        name = "".join(letter if letter.isprintable() else "?" for letter in row["clientid"])
        table.add_row(Text(name), str(row["worker"]), *rates)
    return table


def _row(worker: dict[str, Any], wide: bool) -> list[RenderableType]:
    return [
        str(worker["worker"]),
        str(worker["core"]),
        str(worker["weight"]),
        str(worker["pid"]),
        Text(worker["state"], style="" if worker["state"] == "ready" else "red"),
        _bar(worker["cpu_percent"], BAR if wide else NARROW_BAR),
        _size(worker["memory_bytes"]),
        str(worker["connections"]),
        str(worker["subscriptions"]),
        _number(worker["received"]),
        _number(worker["sent"]),
        _number(worker["lost"]),
        str(worker["queued"]),
        _bar(worker["ring_percent"], BAR if wide else 0),
    ]


def _reasons(losses: dict[str, float]) -> str:
    return f" ({', '.join(f'{reason} {_number(rate)}' for reason, rate in losses.items())})" if losses else ""


def _bar(percent: float, width: int) -> Text:
    full = min(width, round(percent * width / 100))
    style = "red" if percent >= FULL else "yellow" if percent >= BUSY else "green"
    drawn = Text.assemble(("█" * full, style), ("·" * (width - full), "dim"), " " if width else "")
    return drawn.append(f"{percent:3.0f}%", "" if width else style)


def _number(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.1f}K" if value >= 1e4 else f"{value:.0f}"


def _size(value: float) -> str:
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.0f} B"


def _duration(microseconds: int | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds} µs" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"
