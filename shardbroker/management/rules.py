"""Rules of the configuration, and those that are made while the broker runs: checked, kept over restarts, put in force.

    <data_dir>/flows.json       the rules made at run time; replaced and synced by each change
    <runtime_dir>/flows.json    all rules in force, which the processes flows read

A change is in force once it is answered: rules are loaded first, then workers journal what FROM names. So a rule sees each message
that is published after the answer. Changes that arrive meanwhile are put in force together: each writes all rules.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shardbroker.config.flows import DEFINITIONS, RULES_MAX, Rule, RuleEngine
from shardbroker.control import ControlError
from shardbroker.logs.phrases import Line, log_line
from shardbroker.management.feed import Feed
from shardbroker.management.flows_calls import FlowsCalls
from shardbroker.stores.files import replace_file, stamp_of
from shm.routes import RouteTableFull
from shm.topology import Topology

__all__ = ["Definition", "Rules"]

Definition = dict[str, Any]
"""`id`, `name`, `sql`, `from`, `enable`, `description`, `actions`, `metadata`, `origin`, `created_ms`, `changed_ms`."""
CONFIGURATION, RUNTIME = "configuration", "runtime"
"""Origins of a rule."""
TOGETHER_MAX = 100
"""Changes that are put in force together: the processes flows evaluate nothing while they compile them, 1 ms each."""


class _Change:
    """A change of one rule that waits for its turn. apply: makes it, in the rules before it, or raises ControlError."""

    def __init__(self, id: str, apply: Callable[[dict[str, Definition]], Definition | None]) -> None:
        self.id, self.apply = id, apply
        self.done: asyncio.Future[Definition | None] = asyncio.get_running_loop().create_future()

    def fail(self, error: ControlError) -> None:
        self.done.set_exception(error)
        self.done.exception()  # the caller may be gone


class Rules:
    """configured, engine: of the settings. start_processes: has the supervisor start the processes flows if there are rules."""

    def __init__(
        self,
        topology: Topology,
        configured: Mapping[str, Rule],
        engine: RuleEngine,
        feed: Feed,
        start_processes: Callable[[], Awaitable[Any]],
        complain: Callable[[Line], None],
    ) -> None:
        self.flows = FlowsCalls(topology)
        self._feed, self._start_processes, self._complain = feed, start_processes, complain
        self._kept, self._in_force = topology.data_dir / DEFINITIONS, topology.runtime_dir / DEFINITIONS
        self._has_journal = topology.settings.durability.level != "none"
        self._settings_rules, self._engine = configured, engine
        self._rules: dict[str, Definition] = {}
        """Made at run time."""
        self._configured: dict[str, Definition] = {}
        self._generation = 0
        self._problem = ""
        self._turn = asyncio.Lock()
        self._configuring: asyncio.Task[None] | None = None
        self._waiting: list[_Change] = []
        self._changing: asyncio.Task[None] | None = None
        self._texts: dict[str, tuple[Definition, bytes]] = {}
        """Rule -> definition and its JSON: most are those of the change before."""
        self._loaded: tuple[int, dict[str, Definition]] | None = None
        """Generation and rules that the processes flows have loaded; None: unknown."""

    @property
    def route_count(self) -> int:
        """Routes of all rules."""
        return self._feed.route_count

    def resume(self) -> None:
        """Puts all rules in force, before the broker serves; none if the file cannot be read, which is kept as it is."""
        try:
            self._read_kept()
            self._configured = _configured(self._settings_rules)
            if not self._configured and not self._kept.exists():
                return
            if self._rules and not self._has_journal:
                raise ValueError("rules need a journal: durability.level must be process or machine, got none")
            filters, events = _fed(self._all().values())  # before anything is in force: a damaged rule moves no cursor
            self._write_in_force()
            self._feed.set_filters(filters)
            self._feed.send_events(events)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, RouteTableFull, ControlError) as error:
            self._rules, self._configured = {}, {}
            self._problem = str(error) if isinstance(error, ControlError) else f"{self._kept}: {error}"
            self._complain(log_line("rules not loaded", reason=self._problem))

    def _read_kept(self) -> None:
        try:
            content = json.loads(self._kept.read_bytes())
        except FileNotFoundError:
            return
        self._rules = {one["id"]: {"origin": RUNTIME, **one} for one in content["rules"]}
        self._generation = int(content["generation"])

    def _all(self) -> dict[str, Definition]:
        """Returns all rules by id; of two with the same id, that of the configuration."""
        return {**self._rules, **self._configured}

    def all(self) -> list[Definition]:
        """Returns all rules by id."""
        rules = self._all()
        return [rules[id] for id in sorted(rules)]

    def find(self, id: str) -> Definition:
        """Returns a rule. Raises ControlError NOT_FOUND."""
        rule = self._configured.get(id) or self._rules.get(id)
        if rule is None:
            raise ControlError("NOT_FOUND", f"no rule {id!r}")
        return rule

    def configure(self, rules: Mapping[str, Rule], engine: RuleEngine) -> None:
        """Puts the rules of a new configuration in force; see settled(). What is wrong is logged, and the rules before stay."""
        if rules == self._settings_rules and engine == self._engine:
            return
        changed, self._engine = engine != self._engine, engine
        if rules != self._settings_rules or (changed and self._all()):
            self._settings_rules = rules
            self._configuring = asyncio.get_running_loop().create_task(self._configure())

    async def settled(self) -> None:
        """Returns once the rules of the configuration are in force."""
        if self._configuring is not None:
            await self._configuring

    async def _configure(self) -> None:
        async with self._turn:
            before = self._configured
            try:
                self._configured = _configured(self._settings_rules)
                await self._put_in_force(self._rules, ())
            except ControlError as error:
                self._configured = before
                await self._take_back(self._rules)
                self._complain(log_line("rules not loaded", reason=str(error)))

    # --- changes --------------------------------------------------------------------------------------------------------------

    async def create(self, definition: Definition) -> Definition:
        """Makes a rule; returns it when it is in force. Raises ControlError."""
        id = definition["id"]
        rule = _stamped(definition, _now_ms())

        def apply(rules: dict[str, Definition]) -> Definition:
            if id in rules or id in self._configured:
                raise ControlError("BAD_REQUEST", f"id: must be new, got {id}")
            if len(rules) + len(self._configured) >= RULES_MAX:
                raise ControlError("EXCEED_LIMIT", f"rules: must be at most {RULES_MAX}")
            rules[id] = rule
            return rule

        made: Definition = await self._changed(id, apply)
        return made

    async def update(self, id: str, changes: dict[str, Any]) -> Definition:
        """Changes fields of a rule, which continues at its position; returns it when that is in force. Raises ControlError."""

        def apply(rules: dict[str, Definition]) -> Definition:
            before = self._own(id, rules)
            rules[id] = rule = _stamped({**before, **changes}, before["created_ms"])
            return rule

        made: Definition = await self._changed(id, apply)
        return made

    async def delete(self, id: str) -> None:
        """Removes a rule. Raises ControlError."""

        def apply(rules: dict[str, Definition]) -> None:
            self._own(id, rules)
            del rules[id]

        await self._changed(id, apply)

    def _own(self, id: str, rules: dict[str, Definition]) -> Definition:
        """Returns a rule that was made at run time. Raises ControlError."""
        if id in self._configured:
            raise ControlError("BAD_REQUEST", f"rule {id} is in the configuration (rules.{id}): change it there, and reload")
        if id not in rules:
            raise ControlError("NOT_FOUND", f"no rule {id!r}")
        return rules[id]

    async def _changed(self, id: str, apply: Callable[[dict[str, Definition]], Any]) -> Any:
        """Returns what `apply` has returned, once that is in force. Raises ControlError."""
        change = _Change(id, apply)
        self._waiting.append(change)
        if self._changing is None or self._changing.done():
            self._changing = asyncio.get_running_loop().create_task(self._make_changes())
        return await asyncio.shield(change.done)

    async def _make_changes(self) -> None:
        while self._waiting:
            async with self._turn:
                changes = self._take_waiting()
                try:
                    await self._change(changes)
                except Exception as error:  # those that wait are made all the same
                    problem = error if isinstance(error, ControlError) else ControlError("INTERNAL_ERROR", f"{error!r:.300}")
                    self._complain(log_line("rules not loaded", reason=str(problem)))
                    for change in changes:
                        if not change.done.done():
                            change.fail(problem)

    def _take_waiting(self) -> list[_Change]:
        """Returns the next changes, with no rule among them twice."""
        taken: dict[str, _Change] = {}
        for change in self._waiting[:TOGETHER_MAX]:
            if change.id in taken:
                break
            taken[change.id] = change
        del self._waiting[: len(taken)]
        return list(taken.values())

    async def _change(self, changes: list[_Change]) -> None:
        before, after = self._rules, dict(self._rules)
        made: list[tuple[_Change, Definition | None]] = []
        for change in changes:
            try:
                self._check_changeable()
                made.append((change, change.apply(after)))
            except ControlError as error:
                change.fail(error)
        if not made:
            return
        try:
            problems = await self._put_in_force(after, [change.id for change, _ in made])
        except ControlError as error:
            await self._take_back(before)
            for change, _ in made:
                change.fail(error)
            return
        for change, result in made:
            if change.id in problems:
                change.fail(ControlError("BAD_REQUEST", problems[change.id]))
            else:
                change.done.set_result(result)

    def _check_changeable(self) -> None:
        if not self._has_journal:
            raise ControlError("BAD_REQUEST", "rules need a journal: durability.level must be process or machine, got none")
        if self._problem:
            raise ControlError("NOT_AVAILABLE", f"rules cannot be changed before this is mended: {self._problem}")

    async def _put_in_force(self, made: dict[str, Definition], changed: Iterable[str]) -> dict[str, str]:
        """Returns the problems of changed rules, which are what they were then. Raises ControlError."""
        before = self._rules
        self._store(made)
        try:
            await self._start_processes()
            found = await self._load()
            problems = {id: found[id] for id in changed if id in found}
            if problems:
                right = {id: rule for id, rule in made.items() if id not in problems}
                self._store({**right, **{id: before[id] for id in problems if id in before}})
                await self._load()
            await self._feed.set(*_fed(self._all().values()))
        except RouteTableFull as error:
            raise ControlError("EXCEED_LIMIT", str(error)) from None
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", str(error)) from None
        return problems

    async def _load(self) -> dict[str, str]:
        """Has the processes flows load what is stored; returns the problems. Raises ControlError."""
        rules, stamp, change = self._all(), stamp_of(self._in_force), None
        if self._loaded is not None and stamp is not None:
            base, before = self._loaded
            changed = [rule for id, rule in rules.items() if before.get(id) is not rule]
            removed = [id for id in before if id not in rules]
            change = {"base": base, "changed": changed, "removed": removed, "stamp": stamp}
            change["engine"] = self._engine.model_dump()
        self._loaded = None
        problems = await self.flows.load(self._generation, change)
        self._loaded = self._generation, rules
        return problems

    async def _take_back(self, before: dict[str, Definition]) -> None:
        """What was refused, or could not be put in force, is not kept either."""
        self._store(before)
        try:
            await self._load()
            await self._feed.set(*_fed(self._all().values()))
        except (ControlError, RouteTableFull, OSError) as error:  # a process loads the file when it is back
            self._complain(log_line("rules not loaded", reason=str(error)))

    def _store(self, rules: dict[str, Definition]) -> None:
        before = self._rules, self._generation
        self._rules, self._generation = rules, self._generation + 1
        try:
            if rules or self._kept.exists():
                self._write(self._kept, rules, sync=True)
            self._write_in_force()
        except OSError as error:
            self._rules, self._generation = before
            raise ControlError("NOT_AVAILABLE", f"rules not written: {error}") from None

    def _write_in_force(self) -> None:
        engine = b'"engine": %b, ' % json.dumps(self._engine.model_dump()).encode()
        self._write(self._in_force, self._all(), sync=False, engine=engine)

    def _write(self, path: Path, rules: dict[str, Definition], sync: bool, engine: bytes = b"") -> None:
        texts = b", ".join([self._text_of(id, rule) for id, rule in rules.items()])
        replace_file(path, b'{"generation": %d, %b"rules": [%b]}' % (self._generation, engine, texts), sync=sync)
        if len(self._texts) > 2 * RULES_MAX:
            self._texts.clear()

    def _text_of(self, id: str, rule: Definition) -> bytes:
        known = self._texts.get(id)
        if known is None or known[0] is not rule:
            known = self._texts[id] = rule, json.dumps(rule).encode()
        return known[1]


def _stamped(definition: Definition, created_ms: int) -> Definition:
    """Returns a checked rule, with the time of its change. Raises ControlError BAD_REQUEST."""
    return {**definition, "from": _checked(definition), "origin": RUNTIME, "created_ms": created_ms, "changed_ms": _now_ms()}


def _checked(definition: Definition) -> list[str]:
    """Returns the names behind FROM. Raises ControlError BAD_REQUEST."""
    from shardbroker.rules.definition import check_metadata, checked_sources  # most brokers have no rules

    try:
        check_metadata(definition.get("metadata", {}))
        return checked_sources(definition["sql"], definition["actions"])
    except ValueError as error:
        raise ControlError("BAD_REQUEST", str(error)) from None


def _configured(rules: Mapping[str, Rule]) -> dict[str, Definition]:
    """Returns the rules of the configuration, which preflight has checked. Raises ControlError, with the key."""
    found = {}
    for id, rule in rules.items():
        definition: Definition = {"id": id, **rule.model_dump(), "origin": CONFIGURATION, "created_ms": None, "changed_ms": None}
        try:
            found[id] = {**definition, "from": _checked(definition)}
        except ControlError as error:
            raise ControlError(error.code, f"rules.{id}.{error}") from None
    return found


def _fed(rules: Iterable[Definition]) -> tuple[set[str], set[str]]:
    """Returns the topic filters and the events of enabled rules."""
    from shardbroker.rules.definition import EVENTS
    from shardbroker.rules.events import event_of

    names = {name for rule in rules if rule["enable"] for name in rule["from"]}
    named = {name for name in names if name.startswith(EVENTS)}
    return names - named, {event.name for event in map(event_of, named) if event is not None}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
