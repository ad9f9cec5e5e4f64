"""Alarms about actions, and about sources: the server cannot be used, rows are late, rows or records were dropped."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardbroker.management.alarms import Alarm, StandingAlarm

__all__ = ["ActionAlarms", "ActionState"]

DOWN_MS = 5_000
"""Time without its server after which an action or a source is down: a server that restarts is no alarm."""
LATE_S, CALM_S = 60.0, 30.0
"""Age of the oldest row that is not written: from the first on an action lags, below the second it does not."""
CALM_MS = 60_000
"""Time without a dropped row after which the alarm ends."""
SHOWN = 5
"""Actions or sources that an alarm names."""


@dataclass(frozen=True, slots=True)
class ActionState:
    """An enabled action or source at one moment."""

    status: str
    reason: str
    lag_seconds: float
    dropped: int
    """Rows since the start of the process; records of a source that could not be taken over."""


class ActionAlarms:
    """The alarms action_down, action_lagging and action_dropped; of sources source_down and source_dropped, as nothing is known of
    the age of what they have not received. noun: action or source."""

    def __init__(self, node: str, noun: str = "action") -> None:
        self._noun, self._units = noun, "rows" if noun == "action" else "records"
        self._down = StandingAlarm(node, f"{noun}_down", "error")
        self._lagging = StandingAlarm(node, f"{noun}_lagging")
        self._dropped = StandingAlarm(node, f"{noun}_dropped", "error")
        self._lost_ms: dict[str, int] = {}
        """Action -> since when it has no server."""
        self._late: set[str] = set()
        self._counts: dict[str, int] | None = None
        """Action -> dropped rows at the last look; None: before the first, since an earlier manager may have reported them."""
        self._lost: dict[str, int] = {}
        """Action -> rows dropped since the alarm began."""
        self._last_ms = 0

    def look(self, actions: Mapping[str, ActionState], now_ms: int) -> Iterator[Alarm]:
        """Yields the alarms that have changed. actions: the enabled ones by id."""
        for look in (self._look_at_servers, self._look_at_lags, self._look_at_drops):
            if (alarm := look(actions, now_ms)) is not None:
                yield alarm

    def _look_at_servers(self, actions: Mapping[str, ActionState], now_ms: int) -> Alarm | None:
        lost = [id for id, state in actions.items() if state.status == "disconnected"]
        self._lost_ms = {id: self._lost_ms.get(id, now_ms) for id in lost}
        down = sorted(id for id, since_ms in self._lost_ms.items() if now_ms - since_ms >= DOWN_MS)
        text = "; ".join(f"{id}: {actions[id].reason}" for id in down[:SHOWN])
        return self._down.look(tuple(down), text or f"all {self._noun}s have their servers", now_ms, self._details(down))

    def _look_at_lags(self, actions: Mapping[str, ActionState], now_ms: int) -> Alarm | None:
        late = {id for id, state in actions.items() if state.lag_seconds >= (CALM_S if id in self._late else LATE_S)}
        self._late = late
        worst = sorted(late, key=lambda id: -actions[id].lag_seconds)
        text = "; ".join(f"{id} is {actions[id].lag_seconds:.0f} s behind" for id in worst[:SHOWN])
        return self._lagging.look(tuple(sorted(late)), text or f"no {self._noun} is behind", now_ms, self._details(worst))

    def _look_at_drops(self, actions: Mapping[str, ActionState], now_ms: int) -> Alarm | None:
        counts = {id: state.dropped for id, state in actions.items()}
        before, self._counts = counts if self._counts is None else self._counts, counts
        grown = {id: count - before.get(id, 0) for id, count in counts.items() if count > before.get(id, 0)}
        if grown:
            self._last_ms = now_ms
            self._lost = {id: self._lost.get(id, 0) + grown.get(id, 0) for id in {*self._lost, *grown}}
        elif now_ms - self._last_ms >= CALM_MS:
            ended, self._lost = sum(self._lost.values()), {}
            return self._dropped.look(False, f"no more {self._units} are dropped; {ended} were", now_ms)
        worst = sorted(self._lost, key=lambda id: -self._lost[id])
        text = "; ".join(f"{id} has dropped {self._lost[id]} {self._units}" for id in worst[:SHOWN])
        return self._dropped.look(tuple(sorted(self._lost)), text, now_ms, self._details(worst))

    def _details(self, ids: list[str]) -> dict[str, object]:
        return {"count": len(ids), f"{self._noun}s": ids[:SHOWN]}
