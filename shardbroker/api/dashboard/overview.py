"""Overview: connections, rates, latency, each worker's load and rings."""

import time
from collections import deque
from typing import Any

from nicegui import ui

from shardbroker.api.dashboard.frame import Page, card, columns, number, size
from shardbroker.api.dashboard.session import Session

__all__ = ["page"]

REFRESH_S = 2.0
"""Between two refreshes."""
POINTS = 300
"""Samples in the chart: ten minutes."""
FIGURES = {
    "connections": "Connections", "sessions": "Sessions", "subscriptions": "Subscriptions", "retained": "Retained",
    "received": "Messages in /s", "sent": "Messages out /s", "lost": "Lost /s", "bytes_in": "Bytes in /s",
    "bytes_out": "Bytes out /s", "hop": "Ring hop p99", "pass": "Loop pass p99",
}  # fmt: skip
GAUGES = {"connections": "connections.count", "sessions": "sessions.count", "retained": "retained.count"}
WORKERS = {
    "worker": "Worker", "core": "Core", "state": "State", "cpu": "CPU", "memory": "Memory", "connections": "Connections",
    "subscriptions": "Subscriptions", "received": "In /s", "sent": "Out /s", "lost": "Lost /s", "queued": "Waiting",
    "ring": "Fullest ring",
}  # fmt: skip


async def _fill(session: Session) -> None:
    labels: dict[str, ui.label] = {}
    with ui.element("div").classes("w-full grid gap-3").style("grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr))"):
        for name, title in FIGURES.items():
            with ui.card().classes("gap-0 py-3"):
                ui.label(title).classes("text-xs opacity-70")
                labels[name] = ui.label("…").classes("text-2xl font-medium").props(f'data-testid="{name}"')
                if name == "lost":
                    labels["losses"] = ui.label().classes("text-xs text-negative").props('data-testid="losses"')
    points: dict[str, deque[list[float]]] = {"received": deque(maxlen=POINTS), "sent": deque(maxlen=POINTS)}
    for row in session.monitor.history():
        for name, series in points.items():
            series.append([row["time_stamp"], round(row[name] / row["interval_s"], 1)])
    with card("Messages a second"):
        chart = ui.echart(_chart(points)).classes("w-full h-64")
    with card("Workers"):
        table = ui.table(columns=columns(WORKERS), rows=[], row_key="worker").classes("w-full").props("flat dense")

    async def look() -> None:
        figures = await session.show_errors(session.monitor.figures())
        if figures is None:
            return
        for name, text in _texts(figures).items():
            labels[name].set_text(text)
        now_ms = time.time_ns() // 1_000_000
        for name, series in points.items():
            series.append([now_ms, round(figures["totals"][name], 1)])
        for shown, series in zip(chart.options["series"], points.values(), strict=True):
            shown["data"] = list(series)
        chart.update()
        table.rows = [_row(worker) for worker in figures["workers"]]

    await session.show_errors(session.monitor.figures())
    ui.timer(REFRESH_S, look)


def _texts(figures: dict[str, Any]) -> dict[str, str]:
    totals, gauges = figures["totals"], figures["totals"]["gauges"]
    texts = {name: number(gauges[ours]) for name, ours in GAUGES.items()}
    texts["subscriptions"] = number(gauges["subscriptions.count"] + gauges["subscriptions.shared.count"])
    texts |= {name: number(totals[name]) for name in ("received", "sent", "lost")}
    texts["losses"] = ", ".join(f"{reason} {number(rate)}" for reason, rate in totals["losses"].items())
    texts |= {name: size(totals[name]) for name in ("bytes_in", "bytes_out")}
    texts["hop"] = _duration(figures["latencies"]["ring.hop_us"]["p99"])
    texts["pass"] = _duration(figures["latencies"]["pass_us"]["p99"])
    return texts


def _duration(microseconds: int | None) -> str:
    if microseconds is None:
        return "…"
    return f"{microseconds} µs" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def _row(worker: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: worker[name] for name in ("worker", "core", "state", "connections", "subscriptions", "queued")},
        "cpu": f"{worker['cpu_percent']:.0f} %",
        "memory": size(worker["memory_bytes"]),
        "received": number(worker["received"]),
        "sent": number(worker["sent"]),
        "lost": number(worker["lost"]),
        "ring": f"{worker['ring_percent']:.1f} %",
    }


def _chart(points: dict[str, deque[list[float]]]) -> dict[str, Any]:
    grey = {"color": "#8889"}
    return {
        "animation": False,
        "grid": {"left": 60, "right": 20, "top": 35, "bottom": 25},
        "legend": {"top": 0, "textStyle": {"color": "#888"}},
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "time", "axisLine": {"lineStyle": grey}},
        "yAxis": {"type": "value", "min": 0, "splitLine": {"lineStyle": {"color": "#8883"}}},
        "series": [
            {"name": name, "type": "line", "showSymbol": False, "areaStyle": {"opacity": 0.15}, "data": list(series)}
            for name, series in points.items()
        ],
    }


page = Page("/", "Overview", "speed", _fill)
