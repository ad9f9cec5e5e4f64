"""How far a process is: the feeds of its journals, cursors of what is done, holds for retention, figures for the manager.

The cursor of a journal is that of all rules together. A rule has a position of its own only where it begins: `rule.<id>`. Each
action on another system has its own cursors (flows/sinks/sinks.py).

Cursors and holds are written by a thread: each write is a sync of the disk, for which no message may wait. Only a change of
rules waits for them.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import lmdb

from shardbroker.flows.cursors import Cursor, Cursors
from shardbroker.flows.feed import JournalFeed, journal_names
from shardbroker.flows.figures import Figures
from shardbroker.flows.lanes import Lanes
from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.rule_table import RuleTable
from shardbroker.flows.wire import PROBLEMS_FILE
from shardbroker.journal.holds import HOLDS_DIR, Hold, release_hold, set_hold
from shardbroker.logs.phrases import Line, log_line
from shm.topology import Topology

__all__ = ["HOLD_BYTES", "Held", "Key", "Progress"]

Key = tuple[str, str]
"""Consumer and journal."""
Held = Mapping[str, tuple[Mapping[str, int], int]]
"""Id of an action -> positions by journal, and most bytes of each."""
CONSUMER, ACTION = "rules", "action"
"""Beginnings of the names of holds."""
RULE = "rule."
"""Prefix of the consumers that say where a rule begins."""
HOLD_BYTES = 1 << 30
"""Of each journal that is kept for rules; then the oldest segments go, and their records are counted as dropped."""
HOLD_S = 5.0
"""Between two writes of the hold: each is a sync, and a hold that is late keeps a little more."""
HOLDS_A_SECOND = 4
"""With hundreds of actions, holds are written less often: each is two syncs of the disk."""
NOT_HELD = (1 << 64) - 1
"""Position of a journal that another process reads."""
LIST_S = 1.0
"""Between two looks for new journals, which are few: of a worker that starts for the first time."""
COMPLAIN_S = 10.0
"""Between two lines about the same failure."""


class _Kept(NamedTuple):
    """A hold of this process."""

    positions: dict[str, int]
    max_bytes: int


class Progress:
    """Of process `number`."""

    def __init__(
        self, topology: Topology, number: int, processes: int, table: RuleTable, lanes: Lanes, log: Callable[[str, Line], None]
    ) -> None:
        self._journals, self._data_dir = topology.data_dir / "journal", topology.data_dir
        self._number, self._processes, self._workers = number, processes, topology.workers
        self._table, self._lanes, self._log = table, lanes, log
        paths = topology.runtime_dir / f"flows-{number}.json", topology.runtime_dir / PROBLEMS_FILE.format(number)
        self.figures = Figures(*paths, table, self._other_figures, self.complain)
        """What the manager adds up."""
        self.of_sinks: Callable[[], dict[str, dict[str, Any]]] = dict
        """Returns the figures of actions and connectors, by name of the part."""
        self._cursors = Cursors(topology.data_dir / "flows")
        if self._cursors.set_aside is not None:
            log("error", log_line("cursors damaged", set_aside=self._cursors.set_aside))
        self.is_damaged = self._cursors.set_aside is not None
        self.stored = stored = self._cursors.all()
        """At the start of the process."""
        self._stored = {journal: cursor for (consumer, journal), cursor in stored.items() if consumer == CONSUMER}
        self._starts: dict[str, dict[str, int]] = {}
        """Rule -> journal -> where it begins."""
        for (consumer, journal), cursor in stored.items():
            if consumer.startswith(RULE):
                self._starts.setdefault(consumer.removeprefix(RULE), {})[journal] = cursor.position
        self._feeds: dict[str, JournalFeed] = {}
        self._ends: dict[str, int] | None = None
        self._listed_s = float("-inf")
        self._held_s = float("-inf")
        self._held: dict[str, _Kept | None] = dict.fromkeys(self._holds_before())
        """By the name of the hold; None: of a process before this one."""
        self._writer = ThreadPoolExecutor(1, "cursors")
        self._writing: Future[list[tuple[str, Exception]]] | None = None
        self._unwritten: dict[tuple[str, str], Cursor] = {}
        self._complained: dict[str, float] = {}
        self._find_journals()

    # --- feeds ----------------------------------------------------------------------------------------------------------------

    def feeds(self) -> list[JournalFeed]:
        """Returns the feeds, with those of journals that have appeared."""
        if time.monotonic() - self._listed_s >= LIST_S:
            self._find_journals()
        return list(self._feeds.values())

    def present_feeds(self) -> Mapping[str, JournalFeed]:
        """Returns the feeds by journal, with those of journals that have appeared at this moment."""
        self._find_journals()
        return self._feeds

    @property
    def known_feeds(self) -> Mapping[str, JournalFeed]:
        """The feeds by journal."""
        return self._feeds

    def _find_journals(self) -> None:
        self._listed_s = time.monotonic()
        for name in journal_names(self._journals, self._number, self._processes):
            if name not in self._feeds:
                self._feeds[name] = JournalFeed(self._journals / name, self._stored.get(name))

    def remember_ends(self) -> None:
        """Notes where new rules begin that are defined before the broker serves, but loaded a little later."""
        self._ends = {name: feed.end() for name, feed in self._feeds.items()}

    def end_of(self, feed: JournalFeed) -> int:
        """Returns where new rules and actions begin."""
        return feed.end() if self._ends is None else self._ends.get(feed.name, 0)

    def prepare(self) -> None:
        """Finds all journals, before definitions are taken over."""
        self._wait_for_writer()
        self._find_journals()

    def begin(self, new: list[LoadedRule], changed: dict[Key, Cursor], removed: list[Key], held: Held) -> None:
        """Rules that are new see what follows the present end of the journals; a known one continues at its position.

        changed, removed, held: of actions. Returns once all is on the disk.
        """
        ends: dict[str, int] = {}
        for rule in new:
            if rule.id not in self._starts and self._cursors.set_aside is None:
                ends = ends or {"": 0, **{name: self.end_of(feed) for name, feed in self._feeds.items()}}
                self._starts[rule.id] = ends
                changed |= {(RULE + rule.id, journal): Cursor(position) for journal, position in ends.items()}
            rule.starts = self._starts.get(rule.id, {})
        known = self._table.rules.keys() | self._table.problems.keys()
        gone = [id for id in self._starts if id not in known]
        self._ends = None
        removed = removed + [(RULE + id, journal) for id in gone for journal in self._starts.pop(id)]
        for key in removed:
            self._unwritten.pop(key, None)
        changed, self._unwritten = self._unwritten | changed, {}
        if not (changed or removed) or self._commit(changed, removed):
            self._hold(held)

    # --- what is done ---------------------------------------------------------------------------------------------------------

    def passed(self, feed: JournalFeed) -> None:
        """Everything that `feed` has read is evaluated; it is done once workers have what was published for it."""
        cursor = feed.cursor
        if cursor is None:
            return
        feed.pending.append((cursor, self._lanes.positions()))

    def settle(self, cursors: Iterable[tuple[Key, Cursor]] = (), held: Callable[[], Held] | None = None) -> None:
        """Notes what is done, and has it written unless the write before is still under way.

        cursors: of actions, that have changed. held: what they need; None: holds stay as they are.
        """
        self._unwritten |= dict(cursors)
        for name, feed in self._feeds.items():
            while feed.pending and all(map(self._lanes.is_past, feed.pending[0][1])):
                feed.done, _ = feed.pending.popleft()
                self._unwritten[CONSUMER, name] = feed.done
            if feed.lost > feed.reported:
                self._log("error", log_line("records missing for rules", journal=name, count=feed.lost - feed.reported))
                feed.reported = feed.lost
        if self._writing is not None and not self._writing.done():
            return
        self._wait_for_writer()
        is_due = time.monotonic() - self._held_s >= max(HOLD_S, len(self._held) / HOLDS_A_SECOND)
        holds = self._next_holds(held()) if held is not None and is_due else {}
        if self._unwritten or holds:
            changed, self._unwritten = self._unwritten, {}
            self._writing = self._writer.submit(self._write, changed, holds)

    def note(self, cursors: dict[Key, Cursor]) -> None:
        """Has cursors written with the next ones."""
        self._unwritten |= cursors

    def written(self) -> Mapping[Key, Cursor]:
        """Returns the cursors of all processes, as they are on the disk."""
        return self._cursors.all()

    def _wait_for_writer(self) -> None:
        """Waits for the write that is under way, if any, and takes its result."""
        if self._writing is not None:
            for what, error in self._writing.result():
                self.complain(what, error)
            self._writing = None

    def _write(self, changed: dict[Key, Cursor], holds: dict[str, _Kept | None]) -> list[tuple[str, Exception]]:
        """Called by the thread. Cursors that cannot be committed are committed with later ones. Returns problems."""
        problems: list[tuple[str, Exception]] = []
        try:
            if changed:
                self._cursors.commit(changed, ())
        except lmdb.Error as error:
            self._unwritten = changed | self._unwritten
            return [("cursors", error)]  # a hold does not pass a cursor that is not on the disk
        try:
            self._set_holds(holds)
        except (OSError, ValueError) as error:
            problems.append(("hold", error))
        return problems

    def _commit(self, changed: dict[Key, Cursor], removed: list[Key]) -> bool:
        """Returns whether the cursors are on the disk; otherwise they are committed with later ones."""
        try:
            self._cursors.commit(changed, removed)
        except lmdb.Error as error:
            self._unwritten = changed | self._unwritten
            self.complain("cursors", error)
            return False
        return True

    def _hold(self, held: Held) -> None:
        """Keeps what is not done."""
        try:
            self._set_holds(self._next_holds(held))
        except (OSError, ValueError) as error:
            self.complain("hold", error)

    def _next_holds(self, held: Held) -> dict[str, _Kept | None]:
        """Returns the holds that change; None: it is released.

        One hold of the rules and of each action for each process, in which journals of others are not held.
        """
        self._held_s = time.monotonic()
        others = {name for number in range(self._processes) for name in journal_names(self._journals, number, self._processes)}
        others |= {str(worker) for worker in range(self._workers)}
        not_held = {name: NOT_HELD for name in others if int(name) % self._processes != self._number}
        wanted: dict[str, _Kept] = {}
        if self._table.rules:
            own = {name: feed.done.position for name, feed in self._feeds.items()}
            wanted[f"{CONSUMER}-{self._number}"] = _Kept({**not_held, **own}, HOLD_BYTES)
        for id, (positions, max_bytes) in held.items():
            own = {name: position for name, position in positions.items() if int(name) % self._processes == self._number}
            wanted[f"{ACTION}-{id}-{self._number}"] = _Kept({**not_held, **own}, max_bytes)
        changed: dict[str, _Kept | None] = {name: kept for name, kept in wanted.items() if self._held.get(name) != kept}
        return changed | {name: None for name in self._held if name not in wanted}

    def _holds_before(self) -> list[str]:
        """Returns the holds that earlier processes of this number have left, also of numbers that no longer are."""
        try:
            names = os.listdir(self._data_dir / HOLDS_DIR)
        except OSError:
            return []
        found = [match for name in names if (match := re.fullmatch(rf"({CONSUMER}|{ACTION}-.+)-([0-9]{{1,5}})\.json", name))]
        numbers = {match[0].removesuffix(".json"): int(match[2]) for match in found}
        return [name for name, one in numbers.items() if one == self._number or (not self._number and one >= self._processes)]

    def _set_holds(self, holds: dict[str, _Kept | None]) -> None:
        """Sets holds before it releases others. Raises OSError, ValueError."""
        for name, kept in holds.items():
            if kept is not None:
                set_hold(self._data_dir, Hold(name, kept.positions, kept.max_bytes))
                self._held[name] = kept
        for name, kept in holds.items():
            if kept is None:
                release_hold(self._data_dir, name)
                del self._held[name]

    # --- figures --------------------------------------------------------------------------------------------------------------

    def _other_figures(self, now_us: int) -> dict[str, Any]:
        """Returns the figures besides those of rules."""
        return {"journals": self._of_journals(now_us), **self.of_sinks()}

    def _of_journals(self, now_us: int) -> dict[str, Any]:
        """Returns the figures of the journals."""
        return {
            name: {
                "position": feed.done.position,
                "lag_records": feed.lag_records,
                "lag_seconds": max(now_us - feed.behind_us, 0) / 1e6 if feed.behind_us else 0.0,
                "dropped": feed.lost,
            }
            for name, feed in self._feeds.items()
        }

    def complain(self, what: str, error: Exception) -> None:
        """Writes a line about a failure, unless there was one recently."""
        now_s = time.monotonic()
        if now_s - self._complained.get(what, float("-inf")) >= COMPLAIN_S:
            self._complained[what] = now_s
            self._log("error", log_line("rules held up", part=what, reason=error))

    def close(self, cursors: Iterable[tuple[Key, Cursor]]) -> None:
        """Returns once all that is done is written. cursors: of actions, as above."""
        self._wait_for_writer()
        self.settle(cursors)
        self._wait_for_writer()
        self._writer.shutdown()
        self.figures.write()
        self._cursors.close()
