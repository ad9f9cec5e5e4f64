"""Messages counted by topic (`topic_metrics.topics`): workers count, and this module adds up the counts and derives rates.

A restarted worker begins at 0; its earlier counts are kept, except for the last SAMPLE_S.
"""

import time
from collections import deque
from typing import Any

from shardbroker.management.workers import Workers

__all__ = ["SAMPLE_S", "TopicMetrics"]

SAMPLE_S = 5.0
"""Seconds between two samples, over which a rate is taken."""
NAMES = (
    "messages.qos0.in", "messages.qos1.in", "messages.qos2.in", "messages.qos0.out", "messages.qos1.out", "messages.qos2.out",
    "messages.dropped",
)  # fmt: skip
"""In the order of the workers' answers."""

Counts = list[int]


class _Topic:
    def __init__(self, now_ms: int) -> None:
        self.create_ms = now_ms
        self.reset_ms = 0
        self.totals: Counts = [0] * len(NAMES)
        self.samples: deque[tuple[float, Counts]] = deque(maxlen=2)

    def row(self, topic: str) -> dict[str, Any]:
        """Returns the counts and rates under EMQX's names."""
        counts = _named(self.totals)
        rates = dict.fromkeys(counts, 0.0)
        if len(self.samples) == 2:
            (before_s, before), (after_s, after) = self.samples
            gone = _named([new - old for old, new in zip(before, after, strict=True)])
            rates = {name: round(value / (after_s - before_s), 2) for name, value in gone.items()}
        return {
            "topic": topic, "create_at": self.create_ms, "reset_at": self.reset_ms or None,
            **{f"{name}.{kind}": values[name] for name in counts for kind, values in (("count", counts), ("rate", rates))},
        }  # fmt: skip


class TopicMetrics:
    """The topic metrics of the manager."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._topics: dict[str, _Topic] = {}
        self._seen: dict[tuple[int, str], Counts] = {}
        """By worker and topic: the counts of its last answer."""

    def configure(self, topics: list[str]) -> None:
        """Sets the topics to count."""
        now_ms = time.time_ns() // 1_000_000
        self._topics = {topic: self._topics.get(topic) or _Topic(now_ms) for topic in topics}
        self._seen = {key: counts for key, counts in self._seen.items() if key[1] in self._topics}

    async def sample(self) -> None:
        """Takes a sample; called every SAMPLE_S."""
        if self._topics:
            await self._call()
            now_s = time.monotonic()
            for topic in self._topics.values():
                topic.samples.append((now_s, list(topic.totals)))

    async def rows(self) -> list[dict[str, Any]]:
        """Returns current counts, and rates between the last two samples."""
        if self._topics:
            await self._call()
        return [topic.row(name) for name, topic in self._topics.items()]

    def reset(self, name: str) -> bool:
        """Resets the counts of a topic; False if it is not counted."""
        topic = self._topics.get(name)
        if topic is None:
            return False
        topic.reset_ms = time.time_ns() // 1_000_000
        topic.totals = [0] * len(NAMES)
        topic.samples.clear()
        return True

    async def _call(self) -> None:
        for worker, found in enumerate(await self._workers.call_available("topic counts")):
            for name, counts in (found or {}).items():
                topic = self._topics.get(name.decode())
                if topic is None:
                    continue
                key = worker, name.decode()
                before = self._seen.get(key)
                if before is None or any(new < old for old, new in zip(before, counts, strict=True)):
                    before = [0] * len(NAMES)
                topic.totals = [total + new - old for total, old, new in zip(topic.totals, before, counts, strict=True)]
                self._seen[key] = counts


def _named(counts: Counts) -> dict[str, int]:
    return {"messages.in": sum(counts[:3]), "messages.out": sum(counts[3:6]), **dict(zip(NAMES, counts, strict=True))}
