"""The alarm about memory: a log line and a $SYS message when it begins, when it gets worse and when it ends.

Topics and fields are EMQX's: $SYS/brokers/<node>/alarms/activate and .../deactivate.
"""

import json
from enum import IntEnum
from typing import NamedTuple

__all__ = ["Alarm", "MemoryAlarm", "MemoryLevel"]

NAME = "high_memory_usage"


class MemoryLevel(IntEnum):
    """What workers do about their memory; worker/memory.pxd has the same numbers."""

    CALM = 0
    PAUSE = 1
    REFUSE = 2


TEXTS = {
    MemoryLevel.PAUSE: "the publishers that fill queues fastest are not read",
    MemoryLevel.REFUSE: "no new sessions and subscriptions, no QoS 0 for absent clients; the greediest publishers are not read",
}


class Alarm(NamedTuple):
    """One change: a line for the log, and a message below $SYS."""

    level: str
    line: str
    topic: str
    payload: str


class MemoryAlarm:
    """Tells changes from one look to the next."""

    def __init__(self, node: str) -> None:
        self._prefix = f"$SYS/brokers/{node}/alarms"
        self._level = MemoryLevel.CALM
        self._began_ms = 0

    def look(self, level: int, taken_bytes: int, now_ms: int) -> Alarm | None:
        """What is to be told, if anything has changed. `level`: the highest of all workers; `taken_bytes`: of all of them."""
        before, self._level = self._level, MemoryLevel(level)
        if self._level == before:
            return None
        taken = f"workers take {taken_bytes >> 20} MB"
        if self._level == MemoryLevel.CALM:
            lasted_s = (now_ms - self._began_ms) / 1000
            fields = {"name": NAME, "activate_at": self._began_ms, "deactivate_at": now_ms, "message": taken}
            line = f"alarm {NAME} ended after {lasted_s:.1f} s: {taken}"
            return Alarm("warning", line, f"{self._prefix}/deactivate", json.dumps(fields))
        if before == MemoryLevel.CALM:
            self._began_ms = now_ms
        text = f"{taken}; {TEXTS[self._level]}"
        fields = {"name": NAME, "activate_at": self._began_ms, "message": text, "details": {"level": int(self._level)}}
        return Alarm("warning", f"alarm {NAME}: {text}", f"{self._prefix}/activate", json.dumps(fields))
