"""Results for people and for programs."""

import json
from collections.abc import Iterable, Sequence
from statistics import median

from perf.measure import CPU_MIN_S, Result, sound

__all__ = ["COMPARED", "comparison", "json_line", "table"]

COMPARED = (
    ("CPU s per million", "broker_cpu_s_per_million"),
    ("per second", "per_s"),
    ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"),
    ("PSS MB", "pss_mb"),
)
"""Column title and figure of each comparison."""


def json_line(result: Result) -> str:
    return json.dumps(result, separators=(",", ":"))


def title(result: Result) -> str:
    """Such as "p2p 5-5 qos 1"."""
    rate = f" at {result['rate']:g}/s" if result["rate"] else ""
    clients = result["subscribers"] if result["scenario"] == "conn" else f"{result['publishers']}-{result['subscribers']}"
    return f"{result['scenario']} {clients} qos {result['qos']}{rate}"


def table(result: Result) -> str:
    """One run, one figure a line."""
    latency = result["latency"]
    rows: list[tuple[str, str]] = []
    if result["scenario"] == "conn":
        rows.append(("connections", f"{result['connections']:,} in {result['seconds']:.2f} s"))
        rows.append(("rate", f"{result['connections_per_s']:,.0f} per second"))
        rows.append(("failed", f"{result['failed']:,}"))
    else:
        rows.append(("published", f"{result['published']:,} in {result['seconds']:.2f} s"))
        rows.append(("delivered", f"{result['delivered']:,} of {result['expected']:,}"))
        rows.append(("rate", f"{result['delivered_per_s']:,.0f} deliveries per second"))
        faults = ("lost", "duplicates", "disordered", "misrouted", "refused", "disconnected", "stalls")
        rows.append(("faults", ", ".join(f"{result[name]:,} {name}" for name in faults if result[name]) or "none"))
    figures = (("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us"), ("max", "max_us"))
    rows.append(("latency", ", ".join(f"{name} {latency[key] / 1000:.3f} ms" for name, key in figures)))
    if "broker_cpu_s" in result:
        per_million = result["broker_cpu_s_per_million"]
        text = f"{result['broker_cpu_s']:.2f} s" + (f", {per_million:.3f} s per million" if per_million is not None else "")
        rows.append(("broker CPU", text + (" (too short a run to be exact)" if result["broker_cpu_s"] < CPU_MIN_S else "")))
        pss = f"{result['broker_pss_before'] / 1e6:.1f} MB before, {result['broker_pss_after'] / 1e6:.1f} MB after"
        rows.append(("broker PSS", f"{pss}, {result['broker_processes']} processes"))
    if result["own_cpu_s_per_million"] is not None:
        rows.append(("own CPU", f"{result['own_cpu_s']:.2f} s, {result['own_cpu_s_per_million']:.3f} s per million"))
    return "\n".join([title(result), *(f"  {name:<11} {text}" for name, text in rows)])


def comparison(names: Sequence[str], results: Iterable[tuple[str, Result]]) -> str:
    """Medians of all rounds per scenario, and how the first broker compares to the second: its figure divided by the other's."""
    first, second = names
    runs: dict[str, dict[str, list[Result]]] = {}
    for name, result in results:
        runs.setdefault(title(result), {}).setdefault(name, []).append(result)
    lines = [f"{'':<28} {'':<18} {first:>14} {second:>14} {'ratio':>8}"]
    for scenario, by_name in runs.items():
        for column, figure in COMPARED:
            ours, theirs = (_median(by_name.get(name, []), figure) for name in names)
            ratio = f"{ours / theirs:.3f}" if ours is not None and theirs else "-"
            cells = (f"{value:,.3f}" if value is not None else "-" for value in (ours, theirs))
            lines.append(f"{scenario:<28} {column:<18} " + " ".join(f"{cell:>14}" for cell in cells) + f" {ratio:>8}")
            scenario = ""
        for name in names:
            short = [result for result in by_name.get(name, []) if result.get("broker_cpu_s", CPU_MIN_S) < CPU_MIN_S]
            if short:
                lines.append(f"{'':<28} {name}: CPU time too short to be exact in {len(short)} of {len(by_name[name])} runs")
            unsound = [result for result in by_name.get(name, []) if not sound(result)]
            if unsound:
                lines.append(f"{'':<28} {name}: faults in {len(unsound)} of {len(by_name[name])} runs, see --json")
    return "\n".join(lines)


def _median(results: list[Result], figure: str) -> float | None:
    values = [value for result in results if (value := _figure(result, figure)) is not None]
    return median(values) if values else None


def _figure(result: Result, figure: str) -> float | None:
    value: float | None
    if figure == "per_s":
        value = result["connections_per_s" if result["scenario"] == "conn" else "delivered_per_s"]
    elif figure in ("p50_ms", "p99_ms"):
        value = result["latency"][figure.replace("_ms", "_us")] / 1000
    elif figure == "pss_mb":
        value = result["broker_pss_after"] / 1e6 if "broker_pss_after" in result else None
    else:
        value = result.get(figure)
    return value
