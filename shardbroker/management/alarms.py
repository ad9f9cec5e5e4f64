"""Alarms: a log line and a $SYS message when an alarm begins, changes and ends.

Topics and fields are EMQX's: $SYS/brokers/<node>/alarms/activate and .../deactivate.
"""

import json
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from shardbroker.control.losses import LOSSES, losses
from shardbroker.logs.phrases import Line, log_line
from shm.counters import Counters

__all__ = ["Alarm", "AlarmList", "LossAlarm", "MemoryAlarm", "MemoryLevel", "StandingAlarm", "overload_level"]

LOSS_WINDOW_MS = 10_000
"""Window over which the rate of lost messages is averaged."""
LOSS_CALM_MS = 60_000
"""Time below half of the alarm's initial rate after which it ends."""
OVER_MAX = 1000
"""Past alarms that are still listed, as in EMQX."""


class Alarm(NamedTuple):
    """One change: a line for the log, and a message below $SYS."""

    level: str
    line: Line
    topic: str
    payload: str

    def event(self) -> tuple[str, dict[str, Any], int]:
        """Returns it for rules: the event, its columns, Unix ms."""
        fields = json.loads(self.payload)
        columns = {"name": fields["name"], "message": fields["message"], "details": fields.get("details", {})}
        columns["activated_at"] = at_ms = fields["activate_at"]
        if self.topic.endswith("/activate"):
            return "sys.alarm_activated", columns, at_ms
        columns["deactivated_at"] = fields["deactivate_at"]
        return "sys.alarm_deactivated", columns, fields["deactivate_at"]


class StandingAlarm:
    """An alarm that begins, may change, and ends; each change is reported once, from one check to the next."""

    def __init__(self, node: str, name: str, severity: str = "warning") -> None:
        self._prefix = f"$SYS/brokers/{node}/alarms"
        self._name = name
        self._severity = severity
        self._level: object = None
        self._began_ms = 0

    def look(self, level: object, text: str, now_ms: int, details: dict[str, object] | None = None) -> Alarm | None:
        """Returns the alarm to report if `level` has changed; a false level is the end, and `text` then has the outcome."""
        before, self._level = self._level, level
        if before == level or not (before or level):
            return None
        if not level:
            lasted_s = (now_ms - self._began_ms) / 1000
            fields = {"name": self._name, "activate_at": self._began_ms, "deactivate_at": now_ms, "message": text}
            line = log_line("alarm deactivated", name=self._name, lasted=f"{lasted_s:.1f}s", message=text)
            return Alarm(self._severity, line, f"{self._prefix}/deactivate", json.dumps(fields))
        if not before:
            self._began_ms = now_ms
        fields = {"name": self._name, "activate_at": self._began_ms, "message": text}
        if details:
            fields["details"] = details
        line = log_line("alarm activated", name=self._name, message=text)
        return Alarm(self._severity, line, f"{self._prefix}/activate", json.dumps(fields))


class MemoryLevel(IntEnum):
    """Reaction of workers to their memory; worker/memory.pxd has the same numbers."""

    CALM = 0
    PAUSE = 1
    REFUSE = 2


def overload_level(counters: Counters, workers: int) -> int:
    """Returns the highest level of all workers."""
    return max(int(counters.of(worker)["overload.level.count"]) for worker in range(workers))


TEXTS = {
    MemoryLevel.CALM: "",
    MemoryLevel.PAUSE: "; the publishers that fill queues fastest are suspended",
    MemoryLevel.REFUSE: "; new sessions, subscriptions and QoS 0 for offline clients are refused, the fastest publishers suspended",
}


class MemoryAlarm:
    """The alarm for short memory."""

    def __init__(self, node: str) -> None:
        self._alarm = StandingAlarm(node, "high_memory_usage")

    def look(self, level: int, taken_bytes: int, now_ms: int) -> Alarm | None:
        """Checks the memory. `level`: the highest of all workers; `taken_bytes`: the sum over all."""
        text = f"workers use {taken_bytes >> 20} MB{TEXTS[MemoryLevel(level)]}"
        return self._alarm.look(MemoryLevel(level), text, now_ms, {"level": level})


class LossAlarm:
    """The alarm for lost messages: an average over LOSS_WINDOW_MS of `alarm.lost_messages` a second or more."""

    def __init__(self, node: str) -> None:
        self._alarm = StandingAlarm(node, "messages_lost")
        self._looks: deque[tuple[int, Mapping[str, int]]] = deque()
        self._began: Mapping[str, int] | None = None
        self._lively_ms = 0

    def look(self, counters: Mapping[str, int], limit: float, now_ms: int) -> Alarm | None:
        """Checks the losses. `counters` of all processes by name; `limit` a second, 0: no alarm."""
        self._looks.append((now_ms, counters))
        while len(self._looks) > 1 and self._looks[1][0] <= now_ms - LOSS_WINDOW_MS:
            self._looks.popleft()
        recent = losses(counters, self._looks[0][1])
        rate = sum(recent.values()) * 1000 / LOSS_WINDOW_MS
        if limit and rate >= limit / 2:
            self._lively_ms = now_ms
        if self._began is None:
            if not limit or rate < limit:
                return None
            self._began = self._looks[0][1]
            reason = next(iter(recent))
            counter, meaning = LOSSES[reason]
            text = f"{rate:.0f} messages a second are lost, mostly {reason} ({counter}: {meaning})"
            text += f"; in 10 s: {_shares(recent)}"
            return self._alarm.look(True, text, now_ms, {"rate": rate, "reason": reason, "losses": recent})
        if limit and now_ms - self._lively_ms < LOSS_CALM_MS:
            return None
        lost, self._began = losses(counters, self._began), None
        return self._alarm.look(False, f"{sum(lost.values())} messages were lost: {_shares(lost)}", now_ms)


def _shares(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in lost.items())


class AlarmList:
    """The active and the past alarms, for requests. The list is lost when the manager ends."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lasting: dict[str, dict[str, Any]] = {}
        self._over: deque[dict[str, Any]] = deque(maxlen=OVER_MAX)

    def note(self, alarm: Alarm) -> None:
        """Records one change."""
        fields = json.loads(alarm.payload)
        if "deactivate_at" in fields:
            begun = self._lasting.pop(fields["name"], {})
            self._over.appendleft({**begun, **fields})
        else:
            self._lasting[fields["name"]] = fields

    def rows(self, activated: bool, now_ms: int) -> list[dict[str, Any]]:
        """Returns the alarms, newest first."""
        found = reversed(self._lasting.values()) if activated else self._over
        return [
            {
                "node": self._node,
                "name": one["name"],
                "message": one["message"],
                "details": one.get("details", {}),
                "activate_at": one["activate_at"],
                "deactivate_at": one.get("deactivate_at"),
                "duration": one.get("deactivate_at", now_ms) - one["activate_at"],
            }
            for one in found
        ]

    def clear(self) -> int:
        """Removes the past alarms; returns their number."""
        count = len(self._over)
        self._over.clear()
        return count
