"""Alarms about the disk, made from the counters of each worker (docs/durability-operation.md explains them to operators)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

from shardbroker.management.alarms import Alarm, StandingAlarm

__all__ = ["DiskAlarms", "DiskStage"]

SLOW_SHARE, WELL_SHARE = 0.5, 0.2
"""Fraction of its time that a worker spends on writing: from the first on the disk is too slow, below the second it is not."""
SLOW_LOOKS = 3
"""Checks in a row that must find the disk too slow before the alarm: a burst does not count."""

LIMIT_CALM_MS = 60_000
"""Time without a refused retained message after which its alarm ends."""

Totals = Sequence[Mapping[str, int]]
"""Counters of each worker, as Counters.of()."""


class DiskStage(IntEnum):
    """Reaction of a worker to the state of its journal; worker/disk.pxd has the same numbers."""

    WELL = 0
    WAITS = 1
    LIMIT = 2
    WITHOUT = 3
    AGAIN = 4


class DiskAlarms:
    """The alarms journal_not_written, retained_not_written, retained_limit, journal_slow.

    `goes_on`: durability.on_disk_error = continue. `first`: no earlier manager has checked and reported what is already counted.
    """

    def __init__(self, node: str, data_dir: Path, goes_on: bool, first: bool = False) -> None:
        self._journals = data_dir / "journal"
        self._retained = data_dir / "retained"
        self._goes_on = goes_on
        self._refusal = StandingAlarm(node, "journal_not_written", "error")
        self._retaining = StandingAlarm(node, "retained_not_written", "error")
        self._slowness = StandingAlarm(node, "journal_slow")
        self._limits = StandingAlarm(node, "retained_limit")
        unknown = 0 if first else -1
        self._counted_dropped = unknown
        self._limited_ms = -LIMIT_CALM_MS
        self._refused = self._given_up = self._not_captured = self._retained_dropped = unknown
        self._stage = DiskStage.WELL
        self._write_ms: list[int] = []
        self._looked_ms = 0
        self._slow_looks = 0
        self._slow = False

    def look(self, workers: Totals, now_ms: int) -> Iterator[Alarm]:
        """Yields the alarms that have changed since the last check."""
        looks = (self._look_journals, self._look_limits, self._look_retained, self._look_speed)
        for alarm in (look(workers, now_ms) for look in looks):
            if alarm is not None:
                yield alarm

    def _look_journals(self, workers: Totals, now_ms: int) -> Alarm | None:
        stages = [DiskStage(one["journal.stage.count"]) for one in workers]
        refused = sum(one["journal.refused"] for one in workers)
        given_up = sum(one["journal.given_up"] for one in workers)
        missed = sum(one["journal.not_captured"] for one in workers)
        if self._stage == DiskStage.WELL and self._refused < 0:
            self._refused, self._given_up, self._not_captured = refused, given_up, missed  # counted under an earlier manager
        before, self._stage = self._stage, max(stages)
        if self._stage:
            errors = sorted({one["journal.errno.count"] for one in workers if one["journal.errno.count"]})
            no_error = "too slow" if self._stage == DiskStage.LIMIT else "disk accepts writes again"
            why = ", ".join(os.strerror(number) for number in errors) or no_error
            which = ", ".join(str(number) for number, stage in enumerate(stages) if stage)
            pending = sum(one["journal.pending.count"] for one in workers)
            text = f"{self._journals}: {why}; worker {which}: {pending} bytes pending in memory; {self._what(self._stage)}"
            return self._refusal.look(self._stage, text, now_ms, {"stage": self._stage.name.lower()})
        if not before and refused > self._refused >= 0:
            # It began and ended between two checks: reported as just begun, it ends with the next check.
            self._stage = DiskStage.WAITS
            self._refused = refused
            return self._refusal.look(self._stage, f"{self._journals}: the disk refused a write", now_ms)
        text = "all records are written"
        if given_up > self._given_up:
            text = (
                f"journals are complete again with the present state of every session; {given_up - self._given_up} records of "
                f"the time before were dropped, {missed - self._not_captured} messages that match journal.capture among them"
            )
        if before:
            self._refused, self._given_up, self._not_captured = refused, given_up, missed
        return self._refusal.look(DiskStage.WELL, text, now_ms)

    def _what(self, stage: DiskStage) -> str:
        if stage == DiskStage.WAITS and not self._goes_on:
            return "acknowledgements and messages to persistent sessions wait for the disk"
        return {
            DiskStage.WAITS: "nothing else waits for the disk (durability.on_disk_error = continue)",
            DiskStage.LIMIT: "durability.max_pending_bytes reached: publishers to persistent sessions, and clients with one, are "
            "suspended",
            DiskStage.WITHOUT: "durability.max_pending_bytes reached, pending records dropped: changes of sessions are lost "
            "if their worker ends before the alarm does",
            DiskStage.AGAIN: "every session is being written again",
        }.get(stage, "")

    def _look_limits(self, workers: Totals, now_ms: int) -> Alarm | None:
        """Checks for retained messages that were not stored although the disk accepts writes."""
        dropped = sum(one["retained.dropped"] for one in workers)
        if dropped > self._counted_dropped >= 0 and not any(one["retained.errno.count"] for one in workers):
            self._limited_ms = now_ms
        self._counted_dropped = dropped
        at_limit = now_ms - self._limited_ms < LIMIT_CALM_MS
        text = "every retained message was stored for a minute"
        if at_limit:
            text = (
                "messages are delivered but not retained: retainer.max_messages, max_total_bytes or max_payload_size reached, "
                "or the store's map is full"
            )
        return self._limits.look(at_limit, text, now_ms, {"dropped": dropped})

    def _look_retained(self, workers: Totals, now_ms: int) -> Alarm | None:
        error = max(one["retained.errno.count"] for one in workers)
        dropped = sum(one["retained.dropped"] for one in workers)
        if not error:
            lost = max(dropped - self._retained_dropped, 0) if self._retained_dropped >= 0 else 0
            self._retained_dropped = dropped
            return self._retaining.look(0, f"retained messages are stored again; {lost} were dropped", now_ms)
        what = "they are dropped and counted" if self._goes_on else "their acknowledgements wait for the disk"
        text = f"{self._retained}: retained messages cannot be stored: {os.strerror(error)}; {what}"
        return self._retaining.look(error, text, now_ms)

    def _look_speed(self, workers: Totals, now_ms: int) -> Alarm | None:
        spent = [one["journal.write_ms"] for one in workers]
        passed_ms = now_ms - self._looked_ms
        share = 0.0
        if len(self._write_ms) == len(spent) and passed_ms > 0:
            share = max(now - before for now, before in zip(spent, self._write_ms, strict=True)) / passed_ms
        self._write_ms, self._looked_ms = spent, now_ms
        self._slow_looks = self._slow_looks + 1 if share >= SLOW_SHARE else 0
        self._slow = self._slow_looks >= SLOW_LOOKS or (self._slow and share >= WELL_SHARE)
        text = f"a worker spends {share:.0%} of its time waiting for journal writes"
        if self._slow:
            text += "; publishers are slowed down"
        return self._slowness.look(self._slow, text, now_ms)
