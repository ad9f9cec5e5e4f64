"""Results as tables and as JSON."""

import json
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from perf.measure import CPU_MIN_S, Result, sound
from perf.plan import ARRIVALS, HELD

__all__ = [
    "COMPARED", "COMPARED_HELD", "FIGURES", "SUMMARY", "comparison", "figure", "json_line", "middle", "summarized",
    "summary", "table", "title",
]  # fmt: skip

COMPARED = (
    ("CPU s per million", "broker_cpu_s_per_million"),
    ("per second", "per_s"),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
    ("PSS MB", "pss_mb"),
)
"""Column title and figure of each comparison."""
COMPARED_HELD = (("PSS KB per connection", "pss_kb_per_connection"), ("connect CPU s per M", "broker_connect_cpu_s_per_million"))
"""The same for held connections."""
PER_CLIENT_MIN = 100
"""With fewer clients, memory per client is not significant."""
QUEUE_USUAL = 1_000
"""Default queue limit of brokers for one subscriber: mqtt.max_mqueue_len, mosquitto's max_queued_messages."""
SUMMARY = (
    ("clients", "clients", 0),
    ("in/s", "in_per_s", 0),
    ("out/s", "out_per_s", 0),
    ("p50 ms", "p50_ms", 3),
    ("p95 ms", "p95_ms", 3),
    ("p99 ms", "p99_ms", 3),
    ("max ms", "max_ms", 3),
    ("CPU s/M", "broker_cpu_s_per_million", 3),
    ("lost", "lost", 0),
    ("twice", "duplicates", 0),
)
"""Columns of the summary: title, figure and decimals. Messages a second to the broker and from it (of reconnect and takeover:
connections), latency, CPU seconds of the broker for a million of them, and messages that were lost or arrived more than once."""
OVER_ROUNDS: dict[str, Callable[[list[float]], float]] = {"max_ms": max, "lost": sum, "duplicates": sum}
"""Figure of several runs, where it is not their median."""
FIGURES = (("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us"), ("max", "max_us"))


def json_line(result: Result) -> str:
    return json.dumps(result, separators=(",", ":"))


def title(result: Result) -> str:
    """Returns a title such as "p2p 5-5 qos 1"."""
    rate = f" at {result['rate']:,g}/s" if result["rate"] else ""
    counts = [result[kind] for kind in ("publishers", "subscribers") if result[kind]] or [result["others"]]
    others = f" +{result['others']}" if result["others"] and result["subscribers"] else ""
    placement = "" if result.get("placement", "any") == "any" else f" on {result['placement']} workers"
    return f"{result['scenario']} {'-'.join(map(str, counts))}{others} qos {result['qos']}{rate}{placement}"


def table(result: Result) -> str:
    """Returns one run as text, one figure a line."""
    rows: list[tuple[str, str]] = []
    if result["scenario"] in ARRIVALS:
        rows.append(("connections", f"{result['connections']:,} in {result['seconds']:.2f} s"))
        rows.append(("rate", f"{result['connections_per_s']:,.0f} per second"))
        rows.append(("failed", f"{result['failed']:,}"))
    else:
        rows += _traffic(result)
    if result["latency"]["count"]:
        rows.append(("latency", _latency(result["latency"])))
    if result.get("opening"):
        refused = f", {result['failed']:,} failed: {result['reason']}" if result["failed"] else ""
        rate = f"in {result['connect_s']:.2f} s, {result['opened'] / max(1e-6, result['connect_s']):,.0f} per second"
        rows.append(("connected", f"{result['opened']:,} {rate}{refused}"))
        rows.append(("connecting", _latency(result["opening"])))
    if result.get("changing"):
        rows.append(("changes", f"{result['changes']:,}, {result['changes_per_s']:,.0f} per second"))
        rows.append(("changing", _latency(result["changing"])))
    if "change_ratio" in result:
        low, high = result["change_ratio_quartiles"]
        rates = f"{result['changing_per_s']:,.0f} deliveries per second, {result['pausing_per_s']:,.0f} without changes"
        rows.append(("slices", rates))
        ratio = f"{result['change_ratio']:.3f}, half of {result['change_ratios']} between {low:.3f} and {high:.3f}"
        rows.append(("ratio", ratio))
    if "broker_cpu_s" in result:
        rows += _broker(result)
    if result["own_cpu_s_per_million"] is not None:
        rows.append(("own CPU", f"{result['own_cpu_s']:.2f} s, {result['own_cpu_s_per_million']:.3f} s per million"))
    if result.get("opened", 0) >= PER_CLIENT_MIN:
        connecting = result["own_connect_cpu_s"]
        rows.append(("", f"connecting {connecting:.2f} s, {connecting * 1e6 / result['opened']:.1f} s per million"))
    if result["interrupted"]:
        rows.append(("ended", "before its time, from outside"))
    return "\n".join([title(result), summary([("", [("", [result])])]), "", *(f"  {name:<11} {text}" for name, text in rows)])


def summary(sections: Iterable[tuple[str, Sequence[tuple[str, list[Result]]]]]) -> str:
    """Returns an aligned table: a line for the title of each section, below it a row for each (label, runs)."""
    rows: list[list[str]] = [["", *(name for name, _, _ in SUMMARY)]]
    headings: dict[int, str] = {}
    for heading, labelled in sections:
        headings[len(rows)] = heading
        for label, results in labelled:
            rows.append([label, *summarized(results)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        if headings.get(number):
            lines.append(headings[number])
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells if widths[0] else cells[1:]))
    return "\n".join(lines)


def summarized(results: list[Result]) -> list[str]:
    """Returns the figures of SUMMARY of one or several runs as text."""
    return [_shown(middle(results, name), decimals) for _, name, decimals in SUMMARY]


def _shown(value: float | None, decimals: int) -> str:
    if value is None:
        return "-"
    return f"{value:,.{decimals}f}"


def _traffic(result: Result) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if result["published"]:
        acknowledged = f", {result['acknowledged']:,} acknowledged" if result["qos"] else ""
        rate = f", {result['published_per_s']:,.0f} per second" if not result["expected"] else ""
        rows.append(("published", f"{result['published']:,} in {result['seconds']:.2f} s{rate}{acknowledged}"))
    if result["expected"] or result["delivered"]:
        rows.append(("delivered", f"{result['delivered']:,} of {result['expected']:,}"))
        rows.append(("rate", f"{result['delivered_per_s']:,.0f} deliveries per second"))
    faults = ("lost", "duplicates", "disordered", "misrouted", "refused", "disconnected", "stalls")
    rows.append(("faults", ", ".join(f"{result[name]:,} {name}" for name in faults if result[name]) or "none"))
    waiting = result["publishers"] * result["window"] // max(1, result["subscribers"])
    if result["scenario"] == "fanin" and result["lost"] and result["qos"] and waiting > QUEUE_USUAL:
        rows.append(("", f"the window lets {waiting:,} messages wait for a subscriber; beyond its queue limit a broker drops them"))
        rows.append(("", "(mqtt.max_mqueue_len, counted as delivery.dropped.queue_full): use a smaller --window or a higher limit"))
    return rows


def _broker(result: Result) -> list[tuple[str, str]]:
    per_million = result["broker_cpu_s_per_million"]
    text = f"{result['broker_cpu_s']:.2f} s" + (f", {per_million:.3f} s per million" if per_million is not None else "")
    rows = [("broker CPU", text + (" (too short a run to be exact)" if result["broker_cpu_s"] < CPU_MIN_S else ""))]
    pss = " MB, ".join(f"{result[f'broker_pss_{when}'] / 1e6:.1f}" for when in ("idle", "before", "after"))
    rows.append(("broker PSS", f"{pss} MB before the clients, with them, after the run; {result['broker_processes']} processes"))
    if result.get("opened", 0) >= PER_CLIENT_MIN and "broker_pss_per_connection" in result:
        cpu = result["broker_connect_cpu_s_per_million"]
        rows.append(("a client", f"{result['broker_pss_per_connection'] / 1e3:.2f} KB, connecting {cpu:.1f} s CPU per million"))
    return rows


def _latency(summary: dict[str, float]) -> str:
    return ", ".join(f"{name} {summary[key] / 1000:.3f} ms" for name, key in FIGURES)


def comparison(names: Sequence[str], results: Iterable[tuple[str, Result]]) -> str:
    """Returns the summary, then medians of all rounds per scenario, and the ratio of the first broker's figure to the second's."""
    first, second = names
    runs: dict[str, dict[str, list[Result]]] = {}
    for name, result in results:
        runs.setdefault(title(result), {}).setdefault(name, []).append(result)
    lines = [summary((scenario, list(by_name.items())) for scenario, by_name in runs.items())]
    lines += ["", f"  {'':<22} {first:>14} {second:>14} {'ratio':>8}"]
    for scenario, by_name in runs.items():
        lines.append(scenario)
        held = any(result["scenario"] in HELD for results_of in by_name.values() for result in results_of)
        for column, name_of in COMPARED_HELD if held else COMPARED:
            ours, theirs = (middle(by_name.get(name, []), name_of) for name in names)
            ratio = f"{ours / theirs:.3f}" if ours is not None and theirs else "-"
            cells = (f"{value:,.3f}" if value is not None else "-" for value in (ours, theirs))
            lines.append(f"  {column:<22} " + " ".join(f"{cell:>14}" for cell in cells) + f" {ratio:>8}")
        for name in names:
            lines += [f"  {name}: {remark}" for remark in _remarks(by_name.get(name, []), held)]
    return "\n".join(lines)


def _remarks(results: list[Result], held: bool) -> list[str]:
    """Returns remarks about runs that are inexact or wrong."""
    remarks = []
    short = [result for result in results if result.get("broker_cpu_s", CPU_MIN_S) < CPU_MIN_S and not held]
    if short:
        remarks.append(f"CPU time too short to be exact in {len(short)} of {len(results)} runs")
    unsound = [result for result in results if not sound(result)]
    if unsound:
        remarks.append(f"faults in {len(unsound)} of {len(results)} runs, see --json")
    busy = [result for result in results if result.get("broker_cpu_s", 0) and result["own_cpu_s"] > result["broker_cpu_s"]]
    if busy and not held:
        share = median(result["own_cpu_s"] / result["broker_cpu_s"] for result in busy)
        remarks.append(f"the load took {share:.1f} times the broker's CPU in {len(busy)} of {len(results)} runs")
    return remarks


def middle(results: list[Result], name: str) -> float | None:
    """Returns a figure of several runs: the median of those that have it, or what OVER_ROUNDS names."""
    values = [value for result in results if (value := figure(result, name)) is not None]
    return OVER_ROUNDS.get(name, median)(values) if values else None


def figure(result: Result, name: str) -> float | None:
    """Returns a figure of a run by its name in the tables, or None if it was not measured."""
    value: float | None
    if name == "per_s":
        value = result["connections_per_s" if result["scenario"] in ARRIVALS else "delivered_per_s"]
    elif name == "clients":
        value = result["publishers"] + result["subscribers"] + result["others"]
    elif name in ("in_per_s", "out_per_s"):
        value = _rate(result, name == "in_per_s")
    elif name == "p95_ms":
        value = _percentile_ms(result, 95)
    elif name in ("p50_ms", "p99_ms", "p999_ms", "max_ms"):
        value = result["latency"][name.replace("_ms", "_us")] / 1000 if result["latency"].get("count") else None
    elif name == "pss_mb":
        value = result["broker_pss_after"] / 1e6 if "broker_pss_after" in result else None
    elif name == "pss_kb_per_connection":
        value = result["broker_pss_per_connection"] / 1e3 if "broker_pss_per_connection" in result else None
    elif name == "opening_p99_ms":
        value = result["opening"]["p99_us"] / 1000 if "opening" in result else None
    else:
        value = result.get(name)
    return value


def _rate(result: Result, to_the_broker: bool) -> float | None:
    """Returns messages a second to the broker or from it, or connections a second; None if the run does not count them."""
    if result["scenario"] in ARRIVALS:
        return float(result["connections_per_s"]) if to_the_broker else None
    if to_the_broker:
        return float(result["published_per_s"]) if result["published"] and result["scenario"] != "retained" else None
    return float(result["delivered_per_s"]) if result["expected"] or result["delivered"] else None


def _percentile_ms(result: Result, percent: float) -> float | None:
    """Returns the latency that so many percent of the messages do not exceed, from the curve of the run."""
    return next((microseconds / 1000 for share, microseconds in result.get("latency_curve", ()) if share >= percent), None)
