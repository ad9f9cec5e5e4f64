"""One run: the load processes, the broker's resources meanwhile, and one flat result."""

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

from perf.fleet import Part, check_room, run_parts
from perf.plan import ARRIVALS, HELD, Plan
from perf.share import Share
from perf.usage import Usage, measure

__all__ = ["CPU_MIN_S", "FAULTS", "Result", "compare_slices", "run_plan", "sound"]

Result = dict[str, Any]
Look = Callable[[dict[str, float]], None]
CPU_MIN_S = 0.2
"""Least CPU time of a run, seconds: below it, the clock's grain of 10 ms a process is an error of several per cent."""
SERIES_MAX = 600
"""Points of a run's course; above that number, every other one is dropped."""
SLICES_BEFORE = 4
"""Slices at the start of a run that are not compared: the load grows."""
SUMMED = (
    "opened", "failed", "published", "acknowledged", "delivered", "unique", "gaps", "expected", "duplicates", "disordered",
    "misrouted", "refused", "disconnected", "changes", "connections", "bytes", "own_cpu_s", "own_connect_cpu_s",
)  # fmt: skip
TOLD = (
    "publishers", "subscribers", "others", "qos", "payload", "rate", "window", "inflight", "version", "processes", "topics",
    "placement",
)  # fmt: skip
FAULTS = ("lost", "duplicates", "disordered", "misrouted", "refused", "disconnected", "failed", "stalls")


class Course:
    """Records the course of a run, and passes snapshots to a display."""

    def __init__(self, share: Share, look: Look | None) -> None:
        self.share = share
        self.look = look
        self.points: list[list[float]] = []
        self.began = self.last = time.monotonic()
        self.step = 0.2
        self.running = False

    def start(self) -> None:
        self.began, self.running = time.monotonic(), True

    def __call__(self) -> None:
        now = time.monotonic()
        snapshot = self.share.snapshot() | {"elapsed": now - self.began, "running": self.running}
        if self.running and now - self.last >= self.step * 0.9:
            self.last = now
            self.points.append([round(now - self.began, 2), snapshot["published"], snapshot["delivered"], snapshot["changes"]])
            if len(self.points) > SERIES_MAX:
                self.points = self.points[1::2]
                self.step *= 2
        if self.look:
            self.look(snapshot)


def run_plan(plan: Plan, host: str, port: int, broker_pid: int | None = None, look: Look | None = None) -> Result:
    """Runs a plan and returns a JSON-ready result: the plan's numbers, the load's, and with `broker_pid` the broker's. `look` gets
    progress.

    Raises PlanError, LoadError, OSError, psutil.NoSuchProcess.
    """
    check_room(plan)
    share = Share(plan.processes, plan.publishers)
    course = Course(share, look)
    usages: list[Usage] = []

    def take() -> None:
        if broker_pid:
            usages.append(measure(broker_pid))

    def start() -> None:
        take()
        course.start()

    take()
    began = time.time()
    parts = run_parts(plan, host, port, share, start, take, course)
    result: Result = {"scenario": plan.scenario, "time": began} | {name: getattr(plan, name) for name in TOLD}
    result |= _merged(plan, parts)
    done = result["connections"] if plan.scenario in ARRIVALS else result["delivered"] or result["published"]
    if usages:
        result |= _of_broker(plan, usages, done, result)
    result["own_cpu_s_per_million"] = result["own_cpu_s"] * 1e6 / done if done else None
    result["course"] = course.points
    return result


def _merged(plan: Plan, parts: list[Part]) -> Result:
    merged: Result = {name: sum(part[name] or 0 for part in parts) for name in SUMMED if name in parts[0]}
    merged["stalls"] = max((part.get("stalls", 0) for part in parts), default=0)
    merged["interrupted"] = any(part["interrupted"] for part in parts)
    began = min(part["started_ns"] for part in parts)
    seconds = max(0, max(part["last_ns"] for part in parts) - began) / 1e9
    merged["seconds"] = seconds
    reason = next((part["reason"] for part in parts if part.get("reason")), "")
    if reason:
        merged["reason"] = reason
    if plan.scenario in ARRIVALS:
        merged["connections_per_s"] = merged["connections"] / seconds if seconds else 0.0
    else:
        _count(plan, merged, seconds)
    if "connect_s" in parts[0]:
        merged["connect_s"] = max(part["connect_s"] for part in parts)
    if plan.change_slice:
        merged |= compare_slices(parts[0]["slices"])
    for name in ("latency", "opening", "changing"):
        if name in parts[0]:
            histogram = parts[0][name]
            for part in parts[1:]:
                histogram.merge(part[name])
            if histogram.count or name == "latency":
                merged[name] = histogram.summary()
                merged[f"{name}_curve"] = histogram.curve()
    return merged


def compare_slices(slices: list[tuple[bool, int, int]]) -> Result:
    """Returns medians of the deliveries a second in slices with changes and in those without, and of the ratios of neighbours: each
    slice with changes to the mean of the one before and the one behind it, so that a drift of the machine affects both alike."""
    rates = [(pausing, count * 1e9 / ns) for pausing, ns, count in slices[SLICES_BEFORE:]]
    threes = zip(rates, rates[1:], rates[2:], strict=False)
    ratios = [2 * rate / (before + behind) for (_, before), (pausing, rate), (_, behind) in threes if not pausing]
    if not ratios:
        return {}
    quartiles = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "pausing_per_s": median(rate for pausing, rate in rates if pausing),
        "changing_per_s": median(rate for pausing, rate in rates if not pausing),
        "change_ratio": median(ratios), "change_ratio_quartiles": [quartiles[0], quartiles[2]], "change_ratios": len(ratios),
    }  # fmt: skip


def _count(plan: Plan, merged: Result, seconds: float) -> None:
    """Adds expected and lost messages, and rates."""
    gaps, unique = merged.pop("gaps"), merged.pop("unique")
    if plan.scenario == "sub":
        merged["expected"], merged["lost"] = merged["delivered"] + gaps, gaps
    else:
        if plan.scenario != "retained":
            merged["expected"] = merged["published"] * plan.receivers
        merged["lost"] = max(0, merged["expected"] - unique)
        # fanin with several processes: the second copy arrived in another process than the first one.
        merged["duplicates"] += max(0, unique - merged["expected"]) if plan.receivers else 0
    merged["delivered_per_s"] = merged["delivered"] / seconds if seconds else 0.0
    merged["published_per_s"] = merged["published"] / seconds if seconds else 0.0
    merged["changes_per_s"] = merged["changes"] / seconds if seconds else 0.0


def _of_broker(plan: Plan, usages: list[Usage], done: int, result: Result) -> Result:
    """Returns the broker's figures. `usages`: before the clients connected, before the run, after it."""
    idle, before, after = usages
    used = after.cpu_s - before.cpu_s
    figures: Result = {
        "broker_cpu_s": used,
        "broker_cpu_s_per_million": used * 1e6 / done if done else None,
        "broker_pss_idle": idle.pss,
        "broker_pss_before": before.pss,
        "broker_pss_after": after.pss,
        "broker_processes": after.processes,
    }
    opened = result.get("opened")
    if opened:
        figures["broker_connect_cpu_s_per_million"] = (before.cpu_s - idle.cpu_s) * 1e6 / opened
        figures["broker_pss_per_connection"] = max(0, before.pss - idle.pss) / opened
    if plan.scenario in HELD and not result["delivered"]:
        figures["broker_cpu_s_per_million"] = None  # nothing was delivered
    return figures


def sound(result: Result) -> bool:
    """Returns whether every message arrived once, in order, at its subscribers, and every client was served."""
    return not any(result.get(name) for name in FAULTS)
