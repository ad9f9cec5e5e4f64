"""Definitions of the configuration, and those that are made at run time: kept over restarts, changed in turn, put in force.

    <data_dir>/flows.json       what was made at run time, by kind; replaced and synced by each change
    <runtime_dir>/flows.json    what is in force, which the processes flows read

A change is in force once it is answered: definitions are loaded first, then workers journal what FROM names. So a rule sees each
message that is published after the answer. Changes of rules that arrive meanwhile are put in force together: each writes all.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shardbroker.config import Settings
from shardbroker.config.flows import DEFINITIONS
from shardbroker.config.persistence import key_of
from shardbroker.config.sinks.base import PRESETS
from shardbroker.control import ControlError
from shardbroker.logs.phrases import Line, log_line
from shardbroker.management.feed import Feed
from shardbroker.management.flows_calls import FlowsCalls
from shardbroker.stores.files import replace_file, stamp_of
from shm.routes import RouteTableFull
from shm.topology import Topology

__all__ = ["CONFIGURATION", "RULES", "RUNTIME", "Definition", "Definitions", "Kind", "Made", "now_ms"]

Definition = dict[str, Any]
"""Has `id`, `origin`, `created_ms`, `changed_ms`, and what its kind has."""
Made = dict[str, dict[str, Definition]]
"""Kind -> id -> definition."""
CONFIGURATION, RUNTIME = "configuration", "runtime"
"""Origins of a definition."""
RULES = "rules"
TOGETHER_MAX = 100
"""Changes of rules that are put in force together: the processes flows evaluate nothing while they compile them, 1 ms each."""
TEXTS_MAX = 20_000
"""Rules whose JSON is remembered: twice as many as there may be."""


class Kind(Protocol):
    """What differs between rules, connectors, actions and sources."""

    name: str
    """Key in the files, and section of the configuration."""
    most: int
    """Most of them."""

    def configured(self, settings: Settings) -> dict[str, Definition]:
        """Returns those of the configuration, which preflight has checked. Raises ControlError, with the key."""

    def restored(self, kept: dict[str, Any]) -> Definition:
        """Returns one that was made at run time. Raises KeyError, TypeError, ValueError for a damaged file."""

    def kept(self, definition: Definition) -> dict[str, Any]:
        """Returns what the data directory has of it."""

    def in_force(self, definition: Definition, all: Made) -> dict[str, Any] | None:
        """Returns what the processes flows get; None: it cannot be used."""


class _Change:
    """A change that waits for its turn. apply: makes it, in the definitions before it, or raises ControlError."""

    def __init__(self, kind: str, id: str, apply: Callable[[Made], Definition | None]) -> None:
        self.kind, self.id, self.apply = kind, id, apply
        self.done: asyncio.Future[Definition | None] = asyncio.get_running_loop().create_future()

    @property
    def problem_key(self) -> str:
        """The key of its problem in an answer of the processes flows: a connector and an action may have the same id."""
        return f"{self.kind[:-1]} {self.id}" if self.kind in ("connectors", "sources") else self.id

    def fail(self, error: ControlError) -> None:
        self.done.set_exception(error)
        self.done.exception()  # the caller may be gone


class Definitions:
    """kinds: in the order in which they refer to each other. fed: the topic filters and events of rules. start_processes: has the
    supervisor start the processes flows if there are definitions, or if the argument says so."""

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        kinds: Sequence[Kind],
        feed: Feed,
        fed: Callable[[Iterable[Definition]], tuple[set[str], set[str]]],
        start_processes: Callable[[bool], Awaitable[Any]],
        complain: Callable[[Line], None],
    ) -> None:
        self.flows = FlowsCalls(topology)
        self._feed, self._fed, self._start_processes, self._complain = feed, fed, start_processes, complain
        self._kinds = {kind.name: kind for kind in kinds}
        self._kept, self._in_force = topology.data_dir / DEFINITIONS, topology.runtime_dir / DEFINITIONS
        self._has_journal = topology.settings.durability.level != "none"
        self._settings = settings
        self._made: Made = self._none()
        self._configured: Made = self._none()
        self._generation = 0
        self._problem = ""
        self._turn = asyncio.Lock()
        self._configuring: asyncio.Task[None] | None = None
        self._waiting: list[_Change] = []
        self._changing: asyncio.Task[None] | None = None
        self._texts: dict[str, tuple[Definition, bytes]] = {}
        """Rule -> definition and its JSON: most are those of the change before."""
        self._loaded: tuple[int, Made, Any] | None = None
        """Generation, definitions and sinks in force that the processes flows have loaded; None: unknown."""

    def _none(self) -> Made:
        return {name: {} for name in self._kinds}

    @property
    def route_count(self) -> int:
        """Routes of all rules."""
        return self._feed.route_count

    def resume(self) -> None:
        """Puts all definitions in force, before the broker serves; none if the file cannot be read, which is kept as it is."""
        try:
            self._read_kept()
            self._configured = self._of_configuration()
            if not any(self._configured.values()) and not self._kept.exists():
                return
            if any(self._made.values()) and not self._has_journal:
                raise ValueError("rules need a journal: durability.level must be process or machine, got none")
            filters, events = self._fed(self.all(RULES).values())  # before anything is in force: a damaged rule moves no cursor
            self._write_in_force()
            self._feed.set_filters(filters)
            self._feed.send_events(events)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RouteTableFull, ControlError) as error:
            self._made, self._configured = self._none(), self._none()
            self._problem = str(error) if isinstance(error, ControlError) else f"{self._kept}: {error}"
            self._complain(log_line("rules not loaded", reason=self._problem))

    def _read_kept(self) -> None:
        try:
            content = json.loads(self._kept.read_bytes())
        except FileNotFoundError:
            return
        self._made = {
            name: {one["id"]: {"origin": RUNTIME, **kind.restored(one)} for one in content.get(name, [])}
            for name, kind in self._kinds.items()
        }
        self._generation = int(content["generation"])

    def _of_configuration(self) -> Made:
        return {name: kind.configured(self._settings) for name, kind in self._kinds.items()}

    # --- reading --------------------------------------------------------------------------------------------------------------

    def all(self, kind: str) -> dict[str, Definition]:
        """Returns all of a kind by id; of two with the same id, that of the configuration."""
        return {**self._made[kind], **self._configured[kind]}

    def everything(self, made: Made | None = None) -> Made:
        """Returns all definitions; made: instead of those made at run time."""
        return {name: {**(made or self._made)[name], **self._configured[name]} for name in self._kinds}

    def listed(self, kind: str) -> list[Definition]:
        """Returns all of a kind, sorted by id."""
        found = self.all(kind)
        return [found[id] for id in sorted(found)]

    def find(self, kind: str, id: str) -> Definition:
        """Returns one. Raises ControlError NOT_FOUND."""
        found = self.get(kind, id)
        if found is None:
            raise ControlError("NOT_FOUND", f"no {kind[:-1]} {id!r}")
        return found

    def get(self, kind: str, id: str) -> Definition | None:
        """Returns one, or None."""
        return self._configured[kind].get(id) or self._made[kind].get(id)

    def own(self, kind: str, id: str, made: Made) -> Definition:
        """Returns one of those made at run time. Raises ControlError."""
        if id in self._configured[kind]:
            key = key_of(id) or f"{kind}.{id.replace(':', '.')}"
            raise ControlError("BAD_REQUEST", f"{kind[:-1]} {id} is in the configuration ({key}): change it there, and reload")
        if id not in made[kind]:
            raise ControlError("NOT_FOUND", f"no {kind[:-1]} {id!r}")
        return made[kind][id]

    # --- the configuration ----------------------------------------------------------------------------------------------------

    def configure(self, settings: Settings) -> None:
        """Puts those of a new configuration in force; see settled(). What is wrong is logged, and what was in force stays;
        but a process flows that does not respond in time loads the new ones later."""
        names = (*self._kinds, "rule_engine", "persistence")
        if all(getattr(settings, name) == getattr(self._settings, name) for name in names):
            return
        self._settings = settings
        self._configuring = asyncio.get_running_loop().create_task(self._configure())

    async def settled(self) -> None:
        """Returns once the definitions of the configuration are in force. The change does not end with a caller that gives up."""
        if self._configuring is not None:
            await asyncio.shield(self._configuring)

    async def _configure(self) -> None:
        async with self._turn:
            before = self._configured
            try:
                self._configured = self._of_configuration()
                if any(self._configured.values()) or any(before.values()) or any(self._made.values()):
                    await self._put_in_force(self._made, ())
            except ControlError as error:
                self._configured = before
                await self._take_back(self._made)
                self._complain(log_line("rules not loaded", reason=str(error)))

    # --- changes --------------------------------------------------------------------------------------------------------------

    def add(self, kind: str, definition: Definition, made: Made) -> Definition:
        """Adds a new definition within a change. Raises ControlError."""
        id = definition["id"]
        if id.rpartition(":")[2].startswith(PRESETS):
            must = f"must not begin with {PRESETS}, which the presets persistence.<db> have"
            raise ControlError("BAD_REQUEST", f"id: {must}, got {id}")
        if id in made[kind] or id in self._configured[kind]:
            raise ControlError("BAD_REQUEST", f"id: must be new, got {id}")
        most = self._kinds[kind].most
        if len(made[kind]) + len(self._configured[kind]) >= most:
            raise ControlError("EXCEED_LIMIT", f"{kind}: must be at most {most}")
        made[kind][id] = definition
        return definition

    async def change(self, kind: str, id: str, apply: Callable[[Made], Definition | None]) -> Any:
        """Returns what `apply` has returned, once that is in force. Raises ControlError."""
        change = _Change(kind, id, apply)
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
        """Returns the next changes: of rules, with none among them twice, or one of another kind."""
        taken: dict[str, _Change] = {}
        for change in self._waiting[:TOGETHER_MAX]:
            if taken and (change.id in taken or change.kind != RULES):
                break
            taken[change.id] = change
            if change.kind != RULES:
                break
        del self._waiting[: len(taken)]
        return list(taken.values())

    async def _change(self, changes: list[_Change]) -> None:
        before, after = self._made, {kind: dict(made) for kind, made in self._made.items()}
        made: list[tuple[_Change, Definition | None]] = []
        for change in changes:
            try:
                self._check_changeable(change.kind)
                made.append((change, change.apply(after)))
            except ControlError as error:
                change.fail(error)
        if not made:
            return
        try:
            problems = await self._put_in_force(after, [change for change, _ in made])
        except ControlError as error:
            await self._take_back(before)
            for change, _ in made:
                change.fail(error)
            return
        for change, result in made:
            if change in problems:
                change.fail(ControlError("BAD_REQUEST", problems[change]))
            else:
                change.done.set_result(result)

    def _check_changeable(self, kind: str) -> None:
        if not self._has_journal:
            raise ControlError("BAD_REQUEST", f"{kind} need a journal: durability.level must be process or machine, got none")
        if self._problem:
            raise ControlError("NOT_AVAILABLE", f"{kind} cannot be changed before this is mended: {self._problem}")

    # --- in force -------------------------------------------------------------------------------------------------------------

    async def _put_in_force(self, made: Made, changes: Sequence[_Change]) -> dict[_Change, str]:
        """Returns the problems of changed definitions, which are what they were then. Raises ControlError."""
        before = self._made
        self._store(made)
        try:
            await self._start_processes(False)
            found = await self._load() if changes else await self._load_configured()
            problems = {change: found[change.problem_key] for change in changes if change.problem_key in found}
            if problems:
                self._store(_without(made, before, [*problems]))
                await self._load()
            await self._feed.set(*self._fed(self.all(RULES).values()))
        except RouteTableFull as error:
            raise ControlError("EXCEED_LIMIT", str(error)) from None
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", str(error)) from None
        return problems

    async def _load(self) -> dict[str, str]:
        """Has the processes flows load what is stored; returns the problems. Raises ControlError."""
        all, sinks, stamp, change = self.everything(), self._sinks(), stamp_of(self._in_force), None
        if self._loaded is not None and stamp is not None and self._loaded[2] == sinks:
            base, before = self._loaded[0], self._loaded[1][RULES]
            changed = [rule for id, rule in all[RULES].items() if before.get(id) is not rule]
            removed = [id for id in before if id not in all[RULES]]
            change = {"base": base, "changed": changed, "removed": removed, "stamp": stamp}
            change["engine"] = self._settings.rule_engine.model_dump()
        self._loaded = None
        problems = await self.flows.load(self._generation, change)
        self._loaded = self._generation, all, sinks
        return problems

    async def _load_configured(self) -> dict[str, str]:
        """Likewise for the configuration: a process that does not respond in time loads the file when it is back."""
        try:
            return await self._load()
        except ControlError as error:
            self._complain(log_line("rules not loaded", reason=str(error)))
            return {}

    async def _take_back(self, before: Made) -> None:
        """What was refused, or could not be put in force, is not kept either."""
        self._store(before)
        try:
            await self._load()
            await self._feed.set(*self._fed(self.all(RULES).values()))
        except (ControlError, RouteTableFull, OSError) as error:  # a process loads the file when it is back
            self._complain(log_line("rules not loaded", reason=str(error)))

    async def need_processes(self) -> None:
        """Has the processes flows started, for a probe of what does not exist yet. Raises ControlError."""
        if not self._has_journal:
            must = "durability.level must be process or machine, got none"
            raise ControlError("BAD_REQUEST", f"actions and sources need a journal: {must}")
        await self._start_processes(True)

    # --- files ----------------------------------------------------------------------------------------------------------------

    def _store(self, made: Made) -> None:
        before = self._made, self._generation
        self._made, self._generation = made, self._generation + 1
        try:
            if any(made.values()) or self._kept.exists():
                content = {name: [self._kinds[name].kept(one) for one in made[name].values()] for name in made if name != RULES}
                self._write(self._kept, content, made[RULES], sync=True)
            self._write_in_force()
        except OSError as error:
            self._made, self._generation = before
            raise ControlError("NOT_AVAILABLE", f"rules not written: {error}") from None

    def _sinks(self) -> dict[str, list[dict[str, Any]]]:
        """Returns what the processes flows get besides rules."""
        all = self.everything()
        found = {name: [self._kinds[name].in_force(one, all) for one in all[name].values()] for name in all if name != RULES}
        return {name: [one for one in definitions if one is not None] for name, definitions in found.items()}

    def _write_in_force(self) -> None:
        content = {"engine": self._settings.rule_engine.model_dump(), **self._sinks()}
        self._write(self._in_force, content, self.all(RULES), sync=False)

    def _write(self, path: Path, content: Mapping[str, Any], rules: dict[str, Definition], sync: bool) -> None:
        texts = b", ".join([self._text_of(id, rule) for id, rule in rules.items()])
        more = b"".join(b"%b: %b, " % (json.dumps(name).encode(), json.dumps(one).encode()) for name, one in content.items())
        replace_file(path, b'{"generation": %d, %b"rules": [%b]}' % (self._generation, more, texts), sync=sync)
        if len(self._texts) > TEXTS_MAX:
            self._texts.clear()

    def _text_of(self, id: str, rule: Definition) -> bytes:
        known = self._texts.get(id)
        if known is None or known[0] is not rule:
            known = self._texts[id] = rule, json.dumps(rule).encode()
        return known[1]


def _without(made: Made, before: Made, refused: Sequence[_Change]) -> Made:
    """Returns the definitions without refused changes. One that is not of a rule was made alone."""
    if any(change.kind != RULES for change in refused):
        return before
    ids = [change.id for change in refused]
    right = {id: rule for id, rule in made[RULES].items() if id not in ids}
    return {**made, RULES: {**right, **{id: before[RULES][id] for id in ids if id in before[RULES]}}}


def now_ms() -> int:
    """Returns the time, Unix ms."""
    return time.time_ns() // 1_000_000
