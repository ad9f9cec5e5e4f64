"""Rules that are made while the broker runs: checked, kept over restarts, put in force.

    <data_dir>/flows.json       the rules; replaced and synced by each change
    <runtime_dir>/flows.json    the rules in force, which the processes flows read

A change is in force once it is answered: rules are loaded first, then workers journal what FROM names. So a rule sees each message
that is published after the answer.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from shardbroker.config.flows import DEFINITIONS
from shardbroker.control import ControlError
from shardbroker.logs.phrases import Line, log_line
from shardbroker.management.feed import Feed
from shardbroker.management.flows_calls import FlowsCalls
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter
from shardbroker.stores.files import replace_file
from shm.routes import RouteTableFull
from shm.topology import Topology

__all__ = ["Definition", "Rules"]

Definition = dict[str, Any]
"""`id`, `name`, `sql`, `from`, `enable`, `description`, `actions`, `created_ms`, `changed_ms`."""
RULES_MAX = 10_000
"""Rules of a broker: each change writes all of them, some 5 MB then."""
ACTIONS_MAX = 100
"""Actions of a rule."""
EVENTS, SOURCES = "$events/", ("$bridges/", "$sources/")
"""Beginnings of names behind FROM that are no topic filters."""


class Rules:
    """start_processes: has the supervisor start the processes flows if there are rules."""

    def __init__(
        self, topology: Topology, feed: Feed, start_processes: Callable[[], Awaitable[Any]], complain: Callable[[Line], None]
    ) -> None:
        self.flows = FlowsCalls(topology)
        self._feed, self._start_processes, self._complain = feed, start_processes, complain
        self._kept, self._in_force = topology.data_dir / DEFINITIONS, topology.runtime_dir / DEFINITIONS
        self._has_journal = topology.settings.durability.level != "none"
        self._rules: dict[str, Definition] = {}
        self._generation = 0
        self._problem = ""
        self._turn = asyncio.Lock()

    def resume(self) -> None:
        """Puts the kept rules in force, before the broker serves. A file that cannot be read is kept as it is."""
        try:
            content = json.loads(self._kept.read_bytes())
            self._rules = {one["id"]: one for one in content["rules"]}
            self._generation = int(content["generation"])
            if self._rules and not self._has_journal:
                raise ValueError("rules need a journal: durability.level must be process or machine, got none")
            filters, events = _fed(self._rules.values())  # before anything is in force: a damaged rule moves no cursor
            self._write(self._in_force, sync=False)
            self._feed.set_filters(filters)
            self._feed.send_events(events)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError, RouteTableFull) as error:
            self._rules = {}
            self._problem = f"{self._kept}: {error}"
            self._complain(log_line("rules not loaded", reason=self._problem))

    def all(self) -> list[Definition]:
        """Returns all rules by id."""
        return [self._rules[id] for id in sorted(self._rules)]

    def find(self, id: str) -> Definition:
        """Returns a rule. Raises ControlError NOT_FOUND."""
        if id not in self._rules:
            raise ControlError("NOT_FOUND", f"no rule {id!r}")
        return self._rules[id]

    async def create(self, definition: Definition) -> Definition:
        """Makes a rule; returns it when it is in force. Raises ControlError."""
        async with self._turn:
            if definition["id"] in self._rules:
                raise ControlError("BAD_REQUEST", f"id: must be new, got {definition['id']}")
            if len(self._rules) >= RULES_MAX:
                raise ControlError("EXCEED_LIMIT", f"rules: must be at most {RULES_MAX}")
            return await self._put(definition, _now_ms())

    async def update(self, id: str, changes: dict[str, Any]) -> Definition:
        """Changes fields of a rule, which continues at its position; returns it when that is in force. Raises ControlError."""
        async with self._turn:
            before = self.find(id)
            return await self._put({**before, **changes}, before["created_ms"])

    async def delete(self, id: str) -> None:
        """Removes a rule. Raises ControlError."""
        async with self._turn:
            self.find(id)
            await self._change({other: rule for other, rule in self._rules.items() if other != id}, id)

    async def _put(self, definition: Definition, created_ms: int) -> Definition:
        rule = {**definition, "from": _checked(definition), "created_ms": created_ms, "changed_ms": _now_ms()}
        await self._change({**self._rules, rule["id"]: rule}, rule["id"])
        return rule

    async def _change(self, after: dict[str, Definition], id: str) -> None:
        if not self._has_journal:
            raise ControlError("BAD_REQUEST", "rules need a journal: durability.level must be process or machine, got none")
        if self._problem:
            raise ControlError("NOT_AVAILABLE", f"rules cannot be changed before this is mended: {self._problem}")
        before = self._rules
        self._store(after)
        try:
            await self._start_processes()
            if problem := (await self.flows.load(self._generation)).get(id):
                raise ControlError("BAD_REQUEST", problem)
            await self._feed.set(*_fed(after.values()))
        except (ControlError, RouteTableFull, OSError) as error:
            await self._take_back(before)
            if isinstance(error, ControlError):
                raise
            raise ControlError("EXCEED_LIMIT" if isinstance(error, RouteTableFull) else "NOT_AVAILABLE", str(error)) from None

    async def _take_back(self, before: dict[str, Definition]) -> None:
        """What was refused, or could not be put in force, is not kept either."""
        self._store(before)
        try:
            await self.flows.load(self._generation)
            await self._feed.set(*_fed(before.values()))
        except (ControlError, RouteTableFull, OSError) as error:  # a process loads the file when it is back
            self._complain(log_line("rules not loaded", reason=str(error)))

    def _store(self, rules: dict[str, Definition]) -> None:
        before = self._rules, self._generation
        self._rules, self._generation = rules, self._generation + 1
        try:
            self._write(self._kept, sync=True)
            self._write(self._in_force, sync=False)
        except OSError as error:
            self._rules, self._generation = before
            raise ControlError("NOT_AVAILABLE", f"rules not written: {error}") from None

    def _write(self, path: Any, sync: bool) -> None:
        content = {"generation": self._generation, "rules": list(self._rules.values())}
        replace_file(path, json.dumps(content).encode(), sync=sync)


def _checked(definition: Definition) -> list[str]:
    """Returns the names behind FROM. Raises ControlError BAD_REQUEST."""
    from shardbroker.rules.compiler import compile_rule  # most brokers have no rules
    from shardbroker.rules.errors import SqlError
    from shardbroker.rules.events import event_of

    if len(definition["actions"]) > ACTIONS_MAX:
        raise ControlError("BAD_REQUEST", f"actions: must be at most {ACTIONS_MAX}, got {len(definition['actions'])}")
    try:
        filters = compile_rule(definition["sql"]).filters
    except SqlError as error:
        raise ControlError("BAD_REQUEST", f"sql: {error}") from None
    for filter in filters:
        if filter.startswith(SOURCES):
            raise ControlError("BAD_REQUEST", f"sql: FROM must be topic filters or events, got {filter}")
        if filter.startswith(EVENTS):
            if event_of(filter) is None:
                raise ControlError("BAD_REQUEST", f"sql: FROM: no event {filter}")
            continue
        try:
            check_topic_filter(filter.encode())
        except (MqttError, ValueError) as error:
            raise ControlError("BAD_REQUEST", f"sql: FROM: {error}") from None
    return list(dict.fromkeys(filters))


def _fed(rules: Iterable[Definition]) -> tuple[set[str], set[str]]:
    """Returns the topic filters and the events of enabled rules."""
    from shardbroker.rules.events import event_of

    names = {name for rule in rules if rule["enable"] for name in rule["from"]}
    named = {name for name in names if name.startswith(EVENTS)}
    return names - named, {event.name for event in map(event_of, named) if event is not None}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
