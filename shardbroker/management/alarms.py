"""Alarms: a log line and a $SYS message when one begins, when it changes and when it ends.

Topics and fields are EMQX's: $SYS/brokers/<node>/alarms/activate and .../deactivate.
"""

import json
from enum import IntEnum
from typing import NamedTuple

__all__ = ["Alarm", "MemoryAlarm", "MemoryLevel", "StandingAlarm"]


class Alarm(NamedTuple):
    """One change: a line for the log, and a message below $SYS."""

    level: str
    line: str
    topic: str
    payload: str


class StandingAlarm:
    """Something that begins, may change, and ends; told from one look to the next, each change once."""

    def __init__(self, node: str, name: str, severity: str = "warning") -> None:
        self._prefix = f"$SYS/brokers/{node}/alarms"
        self._name = name
        self._severity = severity
        self._level: object = None
        self._began_ms = 0

    def look(self, level: object, text: str, now_ms: int, details: dict[str, object] | None = None) -> Alarm | None:
        """What is to be told, if `level` has changed; anything false is the end, and `text` then says how it ended."""
        before, self._level = self._level, level
        if before == level or not (before or level):
            return None
        if not level:
            lasted_s = (now_ms - self._began_ms) / 1000
            fields = {"name": self._name, "activate_at": self._began_ms, "deactivate_at": now_ms, "message": text}
            line = f"alarm {self._name} ended after {lasted_s:.1f} s: {text}"
            return Alarm(self._severity, line, f"{self._prefix}/deactivate", json.dumps(fields))
        if not before:
            self._began_ms = now_ms
        fields = {"name": self._name, "activate_at": self._began_ms, "message": text}
        if details:
            fields["details"] = details
        return Alarm(self._severity, f"alarm {self._name}: {text}", f"{self._prefix}/activate", json.dumps(fields))


class MemoryLevel(IntEnum):
    """What workers do about their memory; worker/memory.pxd has the same numbers."""

    CALM = 0
    PAUSE = 1
    REFUSE = 2


TEXTS = {
    MemoryLevel.CALM: "",
    MemoryLevel.PAUSE: "; the publishers that fill queues fastest are not read",
    MemoryLevel.REFUSE: "; no new sessions and subscriptions, no QoS 0 for absent clients; the greediest publishers are not read",
}


class MemoryAlarm:
    """Memory is short."""

    def __init__(self, node: str) -> None:
        self._alarm = StandingAlarm(node, "high_memory_usage")

    def look(self, level: int, taken_bytes: int, now_ms: int) -> Alarm | None:
        """`level`: the highest of all workers; `taken_bytes`: of all of them."""
        text = f"workers take {taken_bytes >> 20} MB{TEXTS[MemoryLevel(level)]}"
        return self._alarm.look(MemoryLevel(level), text, now_ms, {"level": level})
