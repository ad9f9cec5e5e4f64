"""Samples of the counters: current rates, and those of the last hour."""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any

from shardbroker.control import AsyncControl, ControlError
from shardbroker.control.figures import Window
from shardbroker.control.losses import losses

__all__ = ["INTERVAL_S", "Monitor"]

INTERVAL_S = 5.0
"""Between two samples."""
KEPT = 720
"""Samples of one hour."""
FRESH_S = 1.0
"""Shortest time of a rate; more frequent calls return the same one."""
COUNTED = {
    "received": "messages.received",
    "sent": "messages.sent",
    "received_bytes": "bytes.received",
    "sent_bytes": "bytes.sent",
    "connected": "client.connected",
    "disconnected": "client.disconnected",
}
"""Counters whose increase a sample contains."""
GAUGES = {"connections": "connections.count", "sessions": "sessions.count", "subscriptions": "subscriptions.count",
          "retained": "retained.count", "routes": "routes.count"}  # fmt: skip

Sample = tuple[float, dict[str, int]]
"""time.monotonic() and the counters at that time."""


class Monitor:
    """The one monitor of the process; run() takes the samples."""

    def __init__(self, control: AsyncControl) -> None:
        self._control = control
        self._history: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._last: Sample | None = None
        self._recent: deque[Sample] = deque(maxlen=2)
        self._turn = asyncio.Lock()
        self._window = Window()
        self._looked_s = 0.0

    async def figures(self) -> dict[str, Any] | None:
        """Returns figures of each worker since the previous call, at least FRESH_S ago; concurrent callers share one request.
        Raises ControlError."""
        async with self._turn:
            now = time.monotonic()
            if now - self._looked_s >= FRESH_S:
                self._window.feed(await self._control.call("load"))
                self._looked_s = now
            return self._window.figures()

    async def run(self) -> None:
        """Takes samples until it is cancelled; none while the broker does not respond."""
        while True:
            with suppress(ControlError):
                await self._take()
            await asyncio.sleep(INTERVAL_S)

    def history(self) -> list[dict[str, Any]]:
        """Returns the samples, the oldest first."""
        return list(self._history)

    async def current(self) -> dict[str, Any]:
        """Returns rates per second since the previous sample, at least FRESH_S ago. Raises ControlError."""
        async with self._turn:
            now = time.monotonic()
            if not self._recent or now - self._recent[-1][0] >= FRESH_S:
                self._recent.append((now, await self._control.call("metrics")))
            (before_s, before), (after_s, after) = self._recent[0], self._recent[-1]
            span_s = max(after_s - before_s, FRESH_S)
            rates = {f"{name}_msg_rate" if name in ("received", "sent") else f"{name}_rate":
                     round((after[ours] - before[ours]) / span_s, 2) for name, ours in COUNTED.items()}  # fmt: skip
            by_reason = losses(after, before)
            rates["dropped_msg_rate"] = round(sum(by_reason.values()) / span_s, 2)
            return {
                **rates,
                "loss_rates": {reason: round(count / span_s, 2) for reason, count in by_reason.items()},
                **{name: after[ours] for name, ours in GAUGES.items()},
                "live_connections": after["connections.count"],
            }

    async def _take(self) -> None:
        now, counters = time.monotonic(), await self._control.call("metrics")
        if self._last is not None:
            before = self._last[1]
            row = {name: max(0, counters[ours] - before[ours]) for name, ours in COUNTED.items()}
            by_reason = losses(counters, before)
            lost = {"dropped": sum(by_reason.values()), "losses": by_reason}
            gauges = {name: counters[ours] for name, ours in GAUGES.items()}
            self._history.append(
                {"time_stamp": time.time_ns() // 1_000_000, "interval_s": round(now - self._last[0], 2), **row, **lost, **gauges}
            )
        self._last = now, counters
        if not self._recent or now - self._recent[-1][0] >= FRESH_S:
            self._recent.append(self._last)
