"""$SYS topics with EMQX's names, from the shared counters."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence

from shardbroker import __version__

__all__ = ["SysTopics"]

STATS = {
    "connections.count": "connections/count",
    "sessions.count": "sessions/count",
    "subscriptions.count": "subscriptions/count",
    "subscriptions.shared.count": "subscriptions/shared/count",
    "subscribers.count": "subscribers/count",
    "topics.count": "topics/count",
    "retained.count": "retained/count",
    "inflight.count": "inflight/count",
    "mqueue.count": "mqueue/count",
    "delayed.count": "delayed/count",
    "memory.bytes.count": "memory/bytes/count",
    "overload.level.count": "overload/level/count",
    "journal.pending.count": "journal/pending/count",
}
"""Gauge -> topic below `stats/`; each has a `max` beside its `count`."""


PERCENTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
"""Last level -> fraction of the values that are not above it."""

Buckets = Sequence[tuple[int, int]]
"""Greatest value and count of each bucket of a histogram, ascending, as returned by Counters.buckets()."""


class SysTopics:
    """Makes (topic, payload) pairs; remembers the start time and the highest values seen."""

    def __init__(self, node: str, started_at: float) -> None:
        self._prefix = f"$SYS/brokers/{node}"
        self._node = node
        self._started_at = started_at
        self._max: dict[str, int] = {}
        self._counted: dict[str, dict[int, int]] = {}

    def heartbeat(self) -> Iterator[tuple[str, str]]:
        """Yields the uptime in seconds, and the time."""
        yield f"{self._prefix}/uptime", str(int(time.monotonic() - self._started_at))
        yield f"{self._prefix}/datetime", time.strftime("%Y-%m-%dT%H:%M:%S%z")

    def identity(self) -> Iterator[tuple[str, str]]:
        """Yields the facts that do not change while the broker runs."""
        yield "$SYS/brokers", self._node
        yield f"{self._prefix}/version", __version__
        yield f"{self._prefix}/sysdescr", f"shardbroker on Python {platform.python_version()}"

    def statistics(self, totals: Mapping[str, int], routes: int) -> Iterator[tuple[str, str]]:
        """Yields gauges below stats/, counters below metrics/. `totals` as from Counters.totals(); `routes` in the route table."""
        # Every subscription is one subscriber of its filter, whether it belongs to a shared group or not.
        subscribers = totals["subscriptions.count"] + totals["subscriptions.shared.count"]
        for name, value in {**totals, "topics.count": routes, "subscribers.count": subscribers}.items():
            topic = STATS.get(name)
            if topic is not None:
                self._max[name] = max(value, self._max.get(name, 0))
                yield f"{self._prefix}/stats/{topic}", str(value)
                yield f"{self._prefix}/stats/{topic.removesuffix('count')}max", str(self._max[name])
            elif not name.endswith(".count"):
                yield f"{self._prefix}/metrics/{name.replace('.', '/')}", str(value)

    def latencies(self, name: str, buckets: Buckets) -> Iterator[tuple[str, str]]:
        """Yields percentiles of a histogram below metrics/, of the values since the last round: those since the start hardly
        change."""
        before = self._counted.get(name, {})
        self._counted[name] = dict(buckets)
        new = [(greatest, count - before.get(greatest, 0)) for greatest, count in buckets]
        for word, part in PERCENTILES.items():
            yield f"{self._prefix}/metrics/{name.replace('.', '/')}/{word}", str(_percentile(new, part))


def _percentile(buckets: Buckets, part: float) -> int:
    """Returns the greatest value of the bucket in which this fraction of all values is reached; 0 without values."""
    left = part * sum(count for _, count in buckets)
    for greatest, count in buckets:
        left -= count
        if count and left <= 0:
            return greatest
    return 0
