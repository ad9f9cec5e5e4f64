"""The actions of a process flows: definitions, journals, cursors and holds, figures, readers behind the live stream.

All is called by the process's own loop. What is written is the work of the runner, in its thread.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shardbroker.connectors.connector import Identity, State
from shardbroker.connectors.errors import ConnectorError, missing_library
from shardbroker.flows.bridge.action import BridgeAction, BridgeServer
from shardbroker.flows.bridge.protocol import SITE_BYTES
from shardbroker.flows.cursors import Cursor
from shardbroker.flows.deferral import Deferral
from shardbroker.flows.feed import JournalFeed
from shardbroker.flows.past import place_since
from shardbroker.flows.rate import Rate
from shardbroker.flows.rule_table import RuleTable
from shardbroker.flows.runner import Runner
from shardbroker.flows.sinks.action import SinkAction
from shardbroker.flows.sinks.complaints import Complaints
from shardbroker.flows.sinks.definitions import (
    ActionDefinition,
    ConnectorDefinition,
    Definitions,
    SourceDefinition,
    limits_of,
    read_definitions,
    settings_of,
)  # fmt: skip
from shardbroker.flows.sinks.intake import Intake, Intakes
from shardbroker.flows.sinks.late import LateReader
from shardbroker.flows.sinks.limits import Limits
from shardbroker.flows.sinks.origin import origin_of
from shardbroker.flows.sinks.row import row_of
from shardbroker.flows.sinks.runner import ConnectorHandle, SinkRunner
from shardbroker.flows.sinks.server import ActionServer
from shardbroker.flows.sources.source import SourceDriver
from shardbroker.flows.sources.sources import Sources
from shardbroker.journal.errors import JournalError
from shardbroker.rules.errors import SqlError
from shardbroker.rules.values import EvaluationError

__all__ = ["CONSUMER", "Sinks"]

CONSUMER = "action."
"""Prefix of the consumers of cursors.mdb, before the id of an action."""
RECORDS_A_TURN = 256
"""Records that readers behind the live stream evaluate before rules have their turn: some 5 ms."""
KNOWN = Cursor(0)
"""Stored for `-<number of the process>` once an action has begun there: journals that are new are read from their begin then."""


class _Entry:
    """An action in force."""

    def __init__(
        self,
        definition: ActionDefinition,
        action: SinkAction,
        server: ActionServer,
        connector: ConnectorHandle,
        driver: Any = None,
    ) -> None:
        self.definition, self.action, self.server, self.connector = definition, action, server, connector
        self.driver = driver
        """Of an action that ships journals (flows/bridge); else None."""
        self.late: dict[str, LateReader] = {}
        self.since_us = 0
        """Records of earlier blocks are left out by late readers: of a rewind."""
        self.rate = Rate()
        self.deferred: dict[str, Deferral] = {}
        """Records that are counted by late readers, by journal."""

    def cursors(self) -> dict[str, Cursor]:
        """Returns journal -> what is done for good."""
        if self.server.synced is not None:
            return self.server.synced
        return self._present()

    def waits_for_sync(self) -> bool:
        """Returns whether what is written is to be made permanent."""
        return self.server.synced is not None and self.server.synced != self._present()

    def _present(self) -> dict[str, Cursor]:
        with self.action.lock:
            return {journal: self.action.cursor(journal) for journal in self.action.journals}


class Sinks:
    """Of process `number` of so many. synced: at durability.level = machine. stored: (consumer, journal) -> cursor, of cursors.mdb.
    is_damaged: whether that was set aside. end_of: where a new action begins. wake: wakes the process out of its sleep.
    sources: those of the process, over the same connectors."""

    def __init__(
        self,
        data_dir: Path,
        node: str,
        number: int,
        processes: int,
        synced: bool,
        table: RuleTable,
        rules: Runner,
        intakes: Intakes,
        stored: Mapping[tuple[str, str], Cursor],
        is_damaged: bool,
        end_of: Callable[[JournalFeed], int],
        wake: Callable[[], None],
        sources: Sources,
    ) -> None:
        self.sources = sources
        self._data_dir, self._node, self._number, self._table, self.wake = data_dir, node, number, table, wake
        self._processes, self._synced = processes, synced
        self._stored = {key: cursor for key, cursor in stored.items() if key[0].startswith(CONSUMER)}
        self._is_damaged, self._end_of = is_damaged, end_of
        self.problems: dict[str, str] = {}
        """By id of an action, or `connector` and the id of a connector."""
        self._rules, self._intakes = rules, intakes
        intakes.other = self._admit_other
        self._runner: SinkRunner | None = None
        self._entries: dict[str, _Entry] = {}
        self._connectors: dict[str, tuple[ConnectorDefinition, ConnectorHandle]] = {}
        self._dirty: dict[str, ActionServer] = {}
        self._turns = 0
        self._origin = ""
        self.site = ""
        """Id of the cluster for bridges; empty: there is none."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    # --- rows of rules --------------------------------------------------------------------------------------------------------

    def _admit_other(self, id: str, values: Any, columns: dict[str, Any]) -> str:
        """Admits a row of a trial; returns why it cannot, or nothing."""
        entry = self._entries.get(id)
        return self.problems.get(id, "no such action") if entry is None else self._admit_tried(entry, values, columns)

    def _admit_tried(self, entry: _Entry, values: Any, columns: dict[str, Any]) -> str:
        if entry.action.limits.by_journal:
            return "rows of a trial cannot be written exactly once"
        row = row_of(values, columns, "0", 0, 0, self._node)
        row.done = _nothing
        with entry.action.lock:
            entry.action.admit_loose(row, time.monotonic())
        self._dirty[entry.action.id] = entry.server
        return ""

    def ring(self) -> None:
        """Admits what is left, and wakes the runner for rows that were admitted; once for many."""
        self._intakes.admit_all()
        for id in self._intakes.taken():
            self._dirty[id] = self._entries[id].server
        if self._dirty and self._runner is not None:
            self._runner.wake_servers(list(self._dirty.values()))
            self._dirty.clear()

    # --- journals -------------------------------------------------------------------------------------------------------------

    def passed(self, feed: JournalFeed) -> None:
        """Notes that the live stream has evaluated all that a feed has read."""
        self._intakes.admit_all()
        cursor = feed.cursor
        if cursor is None:
            return
        for entry in self._entries.values():
            action = entry.action
            with action.lock:
                action.passed_live(feed.name, cursor)
            if entry.driver is not None:
                self._dirty[action.id] = entry.server

    def _open_late(self, entry: _Entry, feed: JournalFeed) -> None:
        resumes = entry.action.resumes_at(feed.name)
        place = feed.follower.place
        near = place is not None and place.segment == resumes.segment
        publishers = feed.publishers if near else None
        entry.late[feed.name] = LateReader(
            entry.action, self._table, self._rules, entry.deferred, feed.directory, self._node, publishers, entry.since_us
        )

    def defer(self, feed: JournalFeed) -> None:
        """Leaves what follows in a journal to the readers of actions that catch up, and takes it back from those that do not."""
        place = feed.follower.place
        if place is None:
            return
        for entry in self._entries.values():
            if not entry.late and not entry.deferred:
                continue
            found = entry.deferred.get(feed.name)
            catches_up = feed.name in entry.late and entry.action.state is State.CONNECTED
            if found is None:
                if catches_up:
                    entry.deferred[feed.name] = Deferral(place.position)
                continue
            behind = entry.action.resumes_at(feed.name).position
            if found.is_open and not catches_up:
                found.end = max(place.position, behind)
            if found.end <= min(place.position, behind):
                del entry.deferred[feed.name]

    def turn(self, feeds: Mapping[str, JournalFeed], complain: Callable[[str, Exception], None]) -> int:
        """Lets readers behind the live stream evaluate some records, in turns; returns how many."""
        for entry in self._entries.values():
            if entry.action.has_late:
                self._open_missing(entry, feeds, complain)
        entries = [entry for entry in self._entries.values() if entry.late and not entry.action.buffer.is_full]
        readers = [(entry, journal) for entry in entries for journal in entry.late]
        if not readers:
            return 0
        self._turns += 1
        first, done = self._turns % len(readers), 0
        for entry, journal in readers[first:] + readers[:first]:
            if done >= RECORDS_A_TURN:
                break
            done += self._turn_of(entry, entry.late[journal], feeds[journal], RECORDS_A_TURN - done, complain)
        return done

    def _open_missing(self, entry: _Entry, feeds: Mapping[str, JournalFeed], complain: Callable[[str, Exception], None]) -> None:
        """Opens a reader for each journal whose live stream the action has left: soon, while publishers are those of that one."""
        for journal in entry.action.journals:
            if journal in entry.late or not entry.action.is_behind(journal):
                continue
            try:
                self._open_late(entry, feeds[journal])
            except (OSError, JournalError) as error:
                complain(f"{entry.action.id} {journal}", error)

    def _turn_of(self, entry: _Entry, reader: LateReader, feed: JournalFeed, records: int, complain: Any) -> int:
        place = feed.follower.place
        try:
            done, has_joined = reader.turn(records, place.position if place is not None else 0)
        except (OSError, JournalError) as error:
            complain(f"{entry.action.id} {reader.journal}", error)
            return 0
        if has_joined:
            entry.late.pop(reader.journal).close()
        if done:
            self._dirty[entry.action.id] = entry.server
        return int(done)

    def open_journals(self, feeds: Mapping[str, JournalFeed]) -> dict[tuple[str, str], Cursor]:
        """Begins journals that have appeared, for all actions; returns cursors to be stored."""
        changed: dict[tuple[str, str], Cursor] = {}
        for entry in self._entries.values():
            known = set(entry.action.journals)
            for feed in feeds.values():
                if feed.name not in known:
                    changed |= self._open(entry, feed)
        return changed

    def _open(self, entry: _Entry, feed: JournalFeed, cursor: Cursor | None = None) -> dict[tuple[str, str], Cursor]:
        """Begins a journal of an action at a cursor, where it was, or at its end; returns what is to be stored."""
        consumer = CONSUMER + entry.action.id
        stored = self._stored.get((consumer, feed.name))
        if cursor is None:
            cursor = stored if stored is not None and feed.is_there(stored) else self._begin_of(consumer, feed, stored is not None)
        place = feed.follower.place
        is_behind = place is not None and cursor.position < place.position
        with entry.action.lock:
            entry.action.open_journal(feed.name, cursor, is_behind)
        self._stored[consumer, feed.name] = cursor
        return {(consumer, feed.name): cursor} if cursor != stored else {}

    def _begin_of(self, consumer: str, feed: JournalFeed, was_stored: bool) -> Cursor:
        """Returns where an action begins: a new one at the end, one that is known at the begin of a journal that is new."""
        if was_stored or self._is_damaged or (consumer, f"-{self._number}") in self._stored:
            return Cursor(0)
        return Cursor(self._end_of(feed))

    # --- definitions ----------------------------------------------------------------------------------------------------------

    def load(
        self, content: Mapping[str, Any], feeds: Mapping[str, JournalFeed]
    ) -> tuple[dict[tuple[str, str], Cursor], list[tuple[str, str]]]:
        """Takes over the definitions of flows.json; returns the cursors to be stored and those to be removed.

        An action that is what it was stays, with its rows; a changed one reads again what is not done.
        """
        found = read_definitions(content)
        self.problems = dict(found.problems)
        if (found.connectors or found.actions) and self._runner is None:
            self._runner = SinkRunner(self.wake)
        before = self._connectors
        self._connectors = self._connected(found, before)
        replaced = [handle for id, (_, handle) in before.items() if self._connectors.get(id, (None, None))[1] is not handle]
        ended, begun, changed = self._replace(found, feeds)
        handles = {id: handle for id, (_, handle) in self._connectors.items()}
        for id, handle in handles.items():
            if hasattr(handle.connector, "sources"):
                handle.connector.sources = {f"$source:{one.id}" for one in found.sources.values() if one.connector == id}
        sources = self.sources.replace(found, handles, self._runner, lambda source: self._make_source(source, found))
        for handle in handles.values():
            handle.users = sum(entry.connector is handle for entry in self._entries.values()) + self.sources.users_of(handle)
        old = [handle for _, handle in before.values()]
        new = [handle for _, handle in self._connectors.values() if not any(handle is one for one in old)]
        if self._runner is not None:
            for entry in begun:
                entry.action.keeps_failed = bool(entry.definition.fallbacks)
            pairs = [(entry.server, entry.definition.fallbacks) for entry in begun]
            self._runner.call(self._runner.apply, [entry.server for entry in ended], pairs, replaced, new, sources)
        wanted = {CONSUMER + id for id in (*self._entries, *self.problems)}
        removed = [key for key in self._stored if key[0] not in wanted]
        for key in removed:
            del self._stored[key]
        return changed, removed

    def _connected(
        self, found: Definitions, before: Mapping[str, tuple[ConnectorDefinition, ConnectorHandle]]
    ) -> dict[str, tuple[ConnectorDefinition, ConnectorHandle]]:
        connectors = {}
        for id, definition in found.connectors.items():
            known = before.get(id)
            if known is not None and known[0] == definition:
                connectors[id] = known
                continue
            try:
                connector = self._connect(definition)
                if hasattr(connector, "identity"):
                    connector.identity = Identity(self._node, self._origin_of(), self._number, self._processes, self._synced)
                if hasattr(connector, "site"):
                    connector.site = self.site or self._origin_of()[:SITE_BYTES]
                connectors[id] = definition, ConnectorHandle(id, connector)
            except Exception as error:  # of a driver: one connector is not used, the process works
                self.problems[f"connector {id}"] = _problem(error)
        return connectors

    def _connect(self, definition: ConnectorDefinition) -> Any:
        """Raises ConnectorError, ValueError."""
        connector = _module_of(definition.type).connect(definition.settings, definition.key)
        if hasattr(connector, "data_dir"):
            connector.data_dir = self._data_dir
        return connector

    def _replace(
        self, found: Definitions, feeds: Mapping[str, JournalFeed]
    ) -> tuple[list[_Entry], list[_Entry], dict[tuple[str, str], Cursor]]:
        """Makes entries of new and changed actions; returns the former, the new ones, and cursors to be stored."""
        before, self._entries = self._entries, {}
        ended, begun = [], []
        changed: dict[tuple[str, str], Cursor] = {}
        for id, definition in found.actions.items():
            known = before.pop(id, None)
            connector = self._connectors.get(definition.connector)
            if known is not None and known.definition == definition and connector is not None and known.connector is connector[1]:
                self._entries[id] = known
                continue
            if known is not None:
                self._keep_cursors(known)
                ended.append(known)
            entry = self._made(definition, connector[1] if connector is not None else None, found)
            if entry is not None:
                self._entries[id] = entry
                if known is not None:
                    _take_deferred(entry, known, feeds)
                begun.append(entry)
                changed |= self._begin(entry, feeds)
        for id, known in before.items():
            if id in self.problems:
                self._keep_cursors(known)
            ended.append(known)
        for known in ended:
            _close_late(known)
        self._renew_intakes()
        return ended, begun, changed

    def _renew_intakes(self) -> None:
        self._intakes.of.clear()
        self._intakes.of.update({id: Intake(entry.action) for id, entry in self._entries.items()})

    def _keep_cursors(self, entry: _Entry) -> None:
        for journal, cursor in entry.cursors().items():
            self._stored[CONSUMER + entry.action.id, journal] = cursor

    def _begin(self, entry: _Entry, feeds: Mapping[str, JournalFeed]) -> dict[tuple[str, str], Cursor]:
        changed: dict[tuple[str, str], Cursor] = {}
        for feed in feeds.values():
            changed |= self._open(entry, feed)
        marker = CONSUMER + entry.action.id, f"-{self._number}"
        if marker not in self._stored:
            self._stored[marker] = changed[marker] = KNOWN
        return changed

    def _made(self, definition: ActionDefinition, connector: ConnectorHandle | None, found: Definitions) -> _Entry | None:
        """Returns a new entry; None if there is a problem."""
        id = definition.id
        if connector is None:
            self.problems[id] = self._problem_of_connector(definition, found)
            return None
        try:
            driver = _module_of(definition.type).make(definition.settings, connector.connector, id)
            ships = hasattr(driver, "attach")
            by_journal = ships or bool(getattr(driver, "stores_cursor", False))
            if by_journal:
                driver.cursor_key = f"{self._origin_of()}/{self._node}/{id}"
        except Exception as error:  # of a driver, too
            self.problems[id] = _problem(error)
            return None
        assert self._runner is not None
        limits = limits_of(definition.settings.resource_opts, by_journal)
        if hasattr(driver, "limits"):
            limits = driver.limits(limits)
        if ships:
            return self._shipping(definition, limits, driver, connector)
        action = SinkAction(id, limits)
        server = ActionServer(action, driver, Complaints(id, self._runner.write), self._runner.failed, self.wake)
        return _Entry(definition, action, server, connector)

    def _shipping(self, definition: ActionDefinition, limits: Limits, driver: Any, connector: ConnectorHandle) -> _Entry:
        """Returns a new entry of an action that ships journals."""
        assert self._runner is not None
        action = BridgeAction(definition.id, limits)
        complaints = Complaints(definition.id, self._runner.write)
        moves = {"moved": driver.moved, "leave": driver.leave}
        server = BridgeServer(action, driver, complaints, self._runner.failed, self.wake, **moves)
        driver.attach(action, self._data_dir / "journal", server.lost)
        driver.follow(self._table.shipped(definition.id))
        return _Entry(definition, action, server, connector, driver)

    def follow_rules(self) -> None:
        """Looks which topics are shipped, and which rules have one action only, after rules have changed."""
        for rule in self._table.rules.values():
            only = self._entries.get(rule.sinks[0]) if rule.sinks and len(rule.actions) == 1 else None
            rule.deferred = only.deferred if only is not None else {}
        for id, entry in self._entries.items():
            if entry.driver is not None:
                entry.driver.follow(self._table.shipped(id))

    def _make_source(self, definition: SourceDefinition, found: Definitions) -> SourceDriver:
        """Raises any exception of a driver, and ValueError without a connector."""
        connector = self._connectors.get(definition.connector)
        if connector is None:
            raise ValueError(self._problem_of_connector(definition, found))
        driver: SourceDriver = _module_of(definition.type).make_source(definition.settings, connector[1].connector, definition.id)
        return driver

    def _problem_of_connector(self, definition: ActionDefinition | SourceDefinition, found: Definitions) -> str:
        id = definition.connector
        if id in found.disabled:
            return f"connector: {id} is not enabled"
        problem = self.problems.get(f"connector {id}")
        if problem is not None:
            return f"connector {id}: {problem}"
        return f"connector: must be a connector of type {definition.type}, got {definition.settings.connector!r}"

    def _origin_of(self) -> str:
        self._origin = self._origin or origin_of(self._data_dir / "flows")
        return self._origin

    # --- cursors, holds, figures ----------------------------------------------------------------------------------------------

    def cursors(self) -> Iterator[tuple[tuple[str, str], Cursor]]:
        """Yields the cursors that have changed, and has a driver sync for which others wait."""
        for id, entry in self._entries.items():
            if entry.waits_for_sync():
                self._dirty[id] = entry.server
            for journal, cursor in entry.cursors().items():
                if self._stored.get((CONSUMER + id, journal)) != cursor:
                    self._stored[CONSUMER + id, journal] = cursor
                    yield (CONSUMER + id, journal), cursor

    def held(self) -> dict[str, tuple[dict[str, int], int]]:
        """Returns id -> positions of what is not done, and most bytes of each journal; also of actions that have a problem."""
        held = {}
        for id in (*self._entries, *(id for id in self.problems if not id.startswith("connector "))):
            entry, prefix = self._entries.get(id), CONSUMER + id
            most = entry.definition.settings.resource_opts.max_buffer_bytes if entry is not None else 1 << 30
            own = {name: cursor.position for (key, name), cursor in self._stored.items() if key == prefix and name.isdecimal()}
            held[id] = own, most
        return held

    def figures(self, feeds: Mapping[str, JournalFeed]) -> dict[str, dict[str, Any]]:
        """Returns the figures of actions and connectors. Called once a second."""
        actions = {id: self._figures_of(entry, feeds) for id, entry in self._entries.items()}
        for id, problem in self.problems.items():
            if not id.startswith("connector "):
                actions[id] = {"status": "disconnected", "error": problem}
        connectors = {}
        for id, (_, handle) in self._connectors.items():
            health = handle.connector.health
            is_lost = health.state.value == "disconnected"
            connectors[id] = {"status": health.state.value, "error": health.last_error if is_lost else ""}
        for id, problem in self.problems.items():
            if id.startswith("connector "):
                connectors[id.removeprefix("connector ")] = {"status": "disconnected", "error": problem}
        return {"actions": actions, "connectors": connectors, "sources": self.sources.figures()}

    def _figures_of(self, entry: _Entry, feeds: Mapping[str, JournalFeed]) -> dict[str, Any]:
        action = entry.action
        with action.lock:
            figures = action.figures.named()
            cursors = {journal: action.cursor(journal).position for journal in action.journals}
            oldest_ms = action.oldest_ms()
        entry.rate.tick(figures["matched"])
        lag, now_ms = 0, time.time_ns() // 1_000_000
        for journal, position in cursors.items():
            feed = feeds.get(journal)
            if feed is not None and feed.follower.place is not None:
                lag += max(feed.follower.place.position - position, 0)
        behind_us = [reader.feed.behind_us for reader in entry.late.values() if reader.feed.behind_us]
        since_ms = min([*(us // 1000 for us in behind_us), *([oldest_ms] if oldest_ms is not None else [])], default=now_ms)
        return {
            **figures,
            "rate": round(entry.rate.now, 2),
            "rate_last5m": round(entry.rate.last5m, 2),
            "rate_max": round(entry.rate.max, 2),
            "status": action.state.value,
            "error": action.last_error if action.state.value in ("disconnected", "connecting") else "",
            "lag_records": lag,
            "lag_seconds": max(now_ms - since_ms, 0) / 1000,
            "cursor": cursors,
        }

    # --- orders ---------------------------------------------------------------------------------------------------------------

    def order(self, verb: str, id: str) -> str:
        """Carries out `stop`, `start`, `restart`, `reset`; returns a problem, or nothing."""
        entry = self._entries.get(id)
        if entry is None or self._runner is None:
            return self.problems.get(id, "no such action")
        if verb == "reset":
            with entry.action.lock:
                entry.action.figures.reset()
            entry.rate = Rate(entry.action.figures.matched)
        elif verb == "stop":
            self._runner.call(entry.server.stop)
        else:
            self._runner.call(entry.server.resume if verb == "start" else entry.server.restart)
        return ""

    def rewind(self, id: str, at: object, feeds: Mapping[str, JournalFeed]) -> tuple[str, dict[tuple[str, str], Cursor]]:
        """Lets an action begin again at a time in Unix µs, at the `earliest` record or the `latest`.

        Returns a problem, or nothing, and the cursors to be stored. Rows that wait are dropped: those behind are read again.
        """
        entry = self._entries.get(id)
        if entry is None or self._runner is None:
            return self.problems.get(id, "no such action"), {}
        if entry.action.limits.by_journal:
            return "rewind: must be an action without exactly_once or aggregation: its sink takes no row twice", {}
        if at not in ("earliest", "latest") and (type(at) is not int or at < 0):
            return f"at: must be a time in Unix µs, earliest or latest, got {at!r:.100}", {}
        made = self._made(entry.definition, entry.connector, Definitions())
        if made is None:
            return self.problems[id], {}
        made.since_us = at if isinstance(at, int) else 0
        made.action.keeps_failed = entry.action.keeps_failed
        with entry.action.lock:
            made.action.figures = entry.action.figures.without_waiting()
        made.rate = Rate(made.action.figures.matched)
        _close_late(entry)
        self._entries[id] = made
        _take_deferred(made, entry, feeds)
        self._renew_intakes()
        changed: dict[tuple[str, str], Cursor] = {}
        for feed in feeds.values():
            changed |= self._open(made, feed, _place_at(feed, at))
        self._runner.call(self._runner.apply, [entry.server], [(made.server, made.definition.fallbacks)], [], [])
        return "", changed

    def probe(
        self,
        kind: str,
        settings: object,
        action: object,
        answer: Callable[[str], bytes],
        work: Callable[[Any], Awaitable[None]] | None = None,
        source: object = None,
    ) -> None:
        """Checks the settings of a connector, and of an action or a source unless it is None; `answer` makes the answer, which the
        runner has then. work: is done with the connector next."""
        if self._runner is None:
            self._runner = SinkRunner(self.wake)
        try:
            connector = self._connect(ConnectorDefinition(f"{kind}:probe", kind, settings_of(kind, "connector", settings)))
            driver = None
            if action is not None:
                driver = _module_of(kind).make(settings_of(kind, "action", action), connector, f"{kind}:probe")
            elif source is not None:
                driver = _module_of(kind).make_source(settings_of(kind, "source", source), connector, f"{kind}:probe")
        except Exception as error:
            self._runner.answers.append(answer(_problem(error)))
            return
        runner = self._runner
        runner.call(lambda: runner.keep(runner.probe(connector, driver, answer, work)))

    def connector(self, id: str) -> Any:
        """Returns a connector, to be used in the loop of the runner; None if it is not defined or has a problem."""
        found = self._connectors.get(id)
        return None if found is None else found[1].connector

    def positions(self, id: str) -> dict[str, int]:
        """Returns journal -> position up to which an action is done; empty if it is not defined or has a problem."""
        entry = self._entries.get(id)
        return {} if entry is None else {journal: cursor.position for journal, cursor in entry.cursors().items()}

    @property
    def runner(self) -> SinkRunner | None:
        return self._runner

    def close(self, wait_s: float) -> None:
        """Ends all, after so long at most for batches under way; what is done is in `cursors`."""
        for entry in self._entries.values():
            _close_late(entry)
        if self._runner is not None:
            self._runner.close(wait_s)


def _module_of(kind: str) -> Any:
    """Returns the module of the drivers of a type. Raises ValueError if its library is missing."""
    try:
        return import_module(f"shardbroker.flows.drivers.{kind}")
    except ImportError as error:
        raise ValueError(f"type: {kind} needs {missing_library(error)}") from None


def _problem(error: Exception) -> str:
    if isinstance(error, ConnectorError | EvaluationError | SqlError | ValueError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _place_at(feed: JournalFeed, at: object) -> Cursor:
    if at == "latest":
        return Cursor(feed.end())
    place = place_since(feed.directory, at) if isinstance(at, int) else None
    return Cursor(0) if place is None else Cursor(place.position, place.segment, place.offset)


def _take_deferred(entry: _Entry, former: _Entry, feeds: Mapping[str, JournalFeed]) -> None:
    """Leaves to an entry what the former one of the action has not counted; the live stream counts what follows."""
    entry.deferred = former.deferred
    for journal, deferral in entry.deferred.items():
        place = feeds[journal].follower.place
        if deferral.is_open and place is not None:
            deferral.end = max(place.position, former.action.resumes_at(journal).position)


def _close_late(entry: _Entry) -> None:
    for reader in entry.late.values():
        reader.close()
    entry.late.clear()


def _nothing() -> None:
    """Of a row whose end is of no interest."""
