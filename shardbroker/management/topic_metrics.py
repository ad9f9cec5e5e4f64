"""Messages counted by topic (`topic_metrics.topics`): workers count, this sums up and knows the rates.

A worker that is started again begins at 0; what it had counted before is not lost but for the last SAMPLE_S.
"""

import time
from collections import deque
from typing import Any

from shardbroker.management.workers import Workers

__all__ = ["SAMPLE_S", "TopicMetrics"]

SAMPLE_S = 5.0
"""Between two samples, over which a rate is."""
NAMES = (
    "messages.qos0.in", "messages.qos1.in", "messages.qos2.in", "messages.qos0.out", "messages.qos1.out", "messages.qos2.out",
    "messages.dropped",
)  # fmt: skip
"""In the order in which workers tell them."""

Counts = list[int]


class _Topic:
    def __init__(self, now_ms: int) -> None:
        self.create_ms = now_ms
        self.reset_ms = 0
        self.totals: Counts = [0] * len(NAMES)
        self.samples: deque[tuple[float, Counts]] = deque(maxlen=2)

    def row(self, topic: str) -> dict[str, Any]:
        """As EMQX names them."""
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
    """One in the manager."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._topics: dict[str, _Topic] = {}
        self._seen: dict[tuple[int, str], Counts] = {}
        """Of each worker and topic, what it has told last."""

    def configure(self, topics: list[str]) -> None:
        """Counts these and no others."""
        now_ms = time.time_ns() // 1_000_000
        self._topics = {topic: self._topics.get(topic) or _Topic(now_ms) for topic in topics}
        self._seen = {key: counts for key, counts in self._seen.items() if key[1] in self._topics}

    async def sample(self) -> None:
        """Every SAMPLE_S."""
        if self._topics:
            await self._ask()
            now_s = time.monotonic()
            for topic in self._topics.values():
                topic.samples.append((now_s, list(topic.totals)))

    async def rows(self) -> list[dict[str, Any]]:
        """Counts of now, rates of the last two samples."""
        if self._topics:
            await self._ask()
        return [topic.row(name) for name, topic in self._topics.items()]

    def reset(self, name: str) -> bool:
        """Begins at 0; False if it is not counted."""
        topic = self._topics.get(name)
        if topic is None:
            return False
        topic.reset_ms = time.time_ns() // 1_000_000
        topic.totals = [0] * len(NAMES)
        topic.samples.clear()
        return True

    async def _ask(self) -> None:
        for worker, found in enumerate(await self._workers.ask_all("topic counts")):
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
