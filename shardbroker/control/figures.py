"""Rates and latencies between two results of the verb `load`."""

from bisect import bisect_left
from typing import Any

from shardbroker.control.losses import losses

__all__ = ["Window"]

RATES = {
    "received": "messages.received",
    "sent": "messages.sent",
    "bytes_in": "bytes.received",
    "bytes_out": "bytes.sent",
    "connects": "client.connected",
}
"""Rate per second -> its counter."""
FRACTIONS = {"p50": 0.5, "p99": 0.99}

Load = dict[str, Any]


class Window:
    """Takes results of `load`; figures() covers the time between the last two."""

    def __init__(self) -> None:
        self._before: Load | None = None
        self._after: Load | None = None

    def feed(self, load: Load) -> None:
        """Takes the newest result."""
        self._before, self._after = self._after, load

    def figures(self) -> dict[str, Any] | None:
        """Returns `totals`, `workers` and latencies in microseconds, or None before the second result."""
        if self._before is None or self._after is None:
            return None
        before, after = self._before, self._after
        span_s = max((after["at_ns"] - before["at_ns"]) / 1e9, 1e-3)
        known = {worker["worker"]: worker for worker in before["workers"]}
        return {
            "totals": {**_rates(before["totals"], after["totals"], span_s), "gauges": after["totals"]},
            "workers": [_worker(known.get(one["worker"], one), one, span_s, after["ring_bytes"]) for one in after["workers"]],
            "latencies": {name: _latencies(before["histograms"][name], after["histograms"][name]) for name in after["histograms"]},
        }


def _rates(before: dict[str, int], after: dict[str, int], span_s: float) -> dict[str, Any]:
    """Returns RATES, `lost`, and `losses` by reason. Counters survive the restart of a process."""
    by_reason = {reason: count / span_s for reason, count in losses(after, before).items()}
    rates = {name: max(0.0, (after[ours] - before[ours]) / span_s) for name, ours in RATES.items()}
    return {**rates, "lost": sum(by_reason.values()), "losses": by_reason}


def _worker(before: Load, after: Load, span_s: float, ring_bytes: int) -> dict[str, Any]:
    same = before["pid"] == after["pid"]
    fills = after["rings"].values()
    return {
        **{name: after[name] for name in ("worker", "core", "weight", "pid", "state", "memory_bytes")},
        "cpu_percent": 100 * (after["cpu_s"] - before["cpu_s"]) / span_s if same else 0.0,
        "connections": after["counters"]["connections.count"],
        "subscriptions": after["counters"]["subscriptions.count"] + after["counters"]["subscriptions.shared.count"],
        "queued": after["counters"]["mqueue.count"] + after["counters"]["inflight.count"],
        "ring_percent": 100 * max(fills, default=0) / ring_bytes,
        **_rates(before["counters"], after["counters"], span_s),
    }


def _latencies(before: list[list[int]], after: list[list[int]]) -> dict[str, int | None]:
    """Returns percentiles of the values recorded in between: the upper bound of the bucket that contains each."""
    old = {greatest: count for greatest, count in before}
    bounds, sums, total = [], [], 0
    for greatest, count in after:
        total += count - old.get(greatest, 0)
        bounds.append(greatest)
        sums.append(total)
    return {name: bounds[bisect_left(sums, share * total)] if total > 0 else None for name, share in FRACTIONS.items()}
