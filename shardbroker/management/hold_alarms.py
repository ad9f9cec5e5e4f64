"""Alarms about holds of journals (journal/holds.py): nearly full, and exceeded, so that segments went that a consumer needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shardbroker.journal.holds import read_holds
from shardbroker.journal.layout import all_segment_paths, journals_below, segment_start
from shardbroker.management.alarms import Alarm, StandingAlarm

__all__ = ["HoldAlarms", "HoldUse", "hold_uses"]

FULL_SHARE, ROOM_SHARE = 0.8, 0.6
"""Share of max_bytes that a consumer needs of a journal: from the first on its hold is nearly full, below the second it is not."""
CALM_MS = 60_000
"""Time without a removed segment that was held, after which the alarm may end."""
SHOWN = 5
"""Holds that an alarm names."""
LAST = (1 << 64) - 1
"""End of the newest segment, which is open."""


@dataclass(frozen=True, slots=True)
class HoldUse:
    """What one consumer needs of one journal."""

    consumer: str
    journal: str
    bytes: int
    """Size of the segments with records that it needs."""
    max_bytes: int
    missing: int = 0
    """Records before the oldest segment that it needs, too."""

    @property
    def share(self) -> float:
        """Share of its limit."""
        return self.bytes / max(self.max_bytes, 1)

    def details(self) -> dict[str, object]:
        """Returns the fields for an alarm."""
        return {name: getattr(self, name) for name in ("consumer", "journal", "bytes", "max_bytes", "missing")}


def hold_uses(data_dir: Path, now_ms: int) -> list[HoldUse]:
    """Returns the use of all holds that can be read, by consumer and journal. It waits for the disk. Raises OSError."""
    holds = read_holds(data_dir)
    if not holds:
        return []
    found: list[HoldUse] = []
    for journal in journals_below(data_dir / "journal"):
        paths = all_segment_paths(journal)
        starts = [segment_start(path) for path in paths]
        spans = [(end, _size(path)) for path, (_, end) in zip(paths, pairwise([*starts, LAST]), strict=True)]
        for hold in holds:
            needed = hold.needed_from(journal.name, now_ms)
            if needed is None or not spans:
                continue
            held = sum(size for end, size in spans if end > needed)
            found.append(HoldUse(hold.consumer, journal.name, held, hold.max_bytes, max(starts[0] - needed, 0)))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # retention has removed it just now
        return 0


class HoldAlarms:
    """The alarms hold_nearly_full and hold_exceeded."""

    def __init__(self, node: str) -> None:
        self._nearly = StandingAlarm(node, "hold_nearly_full")
        self._exceeded = StandingAlarm(node, "hold_exceeded", "error")
        self._full: set[tuple[str, str]] = set()
        self._removed: int | None = None
        """Segments counted by the last check; None: before the first, since an earlier manager may have reported them."""
        self._began = 0
        self._active = False
        self._last_ms = 0

    def look(self, uses: Sequence[HoldUse], removed: int, now_ms: int) -> Iterator[Alarm]:
        """Yields the alarms that have changed. removed: the counter journal.hold_exceeded of all workers."""
        for alarm in (self._look_at_room(uses, now_ms), self._look_at_removed(uses, removed, now_ms)):
            if alarm is not None:
                yield alarm

    def _look_at_room(self, uses: Sequence[HoldUse], now_ms: int) -> Alarm | None:
        def is_full(use: HoldUse) -> bool:
            return use.share >= (ROOM_SHARE if (use.consumer, use.journal) in self._full else FULL_SHARE)

        full = sorted((use for use in uses if is_full(use)), key=lambda use: -use.share)
        self._full = {(use.consumer, use.journal) for use in full}
        text = "; ".join(
            f"{use.consumer} needs {use.bytes} bytes of journal {use.journal}, {use.share:.0%} of what its hold keeps"
            for use in full[:SHOWN]
        )
        details: dict[str, object] = {"count": len(full), "holds": [use.details() for use in full[:SHOWN]]}
        return self._nearly.look(tuple(sorted(self._full)), text or "all holds have room", now_ms, details)

    def _look_at_removed(self, uses: Sequence[HoldUse], removed: int, now_ms: int) -> Alarm | None:
        short = sorted((use for use in uses if use.missing), key=lambda use: -use.missing)
        grown = removed > self._removed if self._removed is not None else bool(removed and short)
        if grown:
            if not self._active:
                self._active, self._began = True, self._removed or 0
            self._last_ms = now_ms
        elif not short and now_ms - self._last_ms >= CALM_MS:
            self._active = False
        self._removed = removed
        count = removed - self._began
        if not self._active:
            return self._exceeded.look(False, f"consumers have gone on; {count} segments that they needed were removed", now_ms)
        text = f"{count} segments that consumers needed were removed, as their holds exceeded max_bytes"
        text += "".join(f"; {use.consumer} lacks {use.missing} records of journal {use.journal}" for use in short[:SHOWN])
        level = (True, *sorted((use.consumer, use.journal) for use in short))
        details: dict[str, object] = {"segments": count, "holds": [use.details() for use in short[:SHOWN]]}
        return self._exceeded.look(level, text, now_ms, details)
