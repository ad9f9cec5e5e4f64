"""The rules in force: read from the definitions, compiled once, and found by topic.

    <runtime_dir>/flows.json    {"generation": n, "engine": {...}, "rules": [{"id", "sql", "enable", "actions", ...}]}

Engine: `ignore_sys_message`, `jq_function_default_timeout` in seconds, as in the configuration.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shardbroker.config.sinks.ids import check_names_of_sources, source_id
from shardbroker.flows.actions import Action, make_action
from shardbroker.flows.filters import FilterTree
from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.shipped import check_shipped, is_shipped
from shardbroker.flows.sinks.to_sink import ToSink
from shardbroker.rules.compiler import compile_rule
from shardbroker.rules.errors import SqlError
from shardbroker.rules.events import event_of
from shardbroker.rules.functions.jq import set_timeout
from shardbroker.rules.values import EvaluationError

__all__ = ["RuleTable", "read_content"]

TOPICS_MAX = 65_536
"""Topics whose rules are remembered; with 200 bytes each some 13 MB."""
EVENTS = "$events/"
SYS = b"$SYS/"


class RuleTable:
    """factories: the actions of the broker itself, by name."""

    def __init__(self, factories: dict[str, Callable[[str, dict[str, Any]], Action]]) -> None:
        self.generation = 0
        self.ignores_sys = True
        """Whether rules do not see messages below `$SYS/`."""
        self.rules: dict[str, LoadedRule] = {}
        self.problems: dict[str, str] = {}
        self._factories = factories
        self._filters: FilterTree[LoadedRule] = FilterTree()
        self._of_events: dict[bytes, tuple[LoadedRule, ...]] = {}
        self.known: dict[bytes, tuple[LoadedRule, ...]] = {}
        """The rules of topics, as far as they were looked up; always the same object."""

    def load(self, path: Path) -> list[LoadedRule]:
        """Reads the definitions; returns the new rules. Raises OSError, ValueError."""
        return self.take(read_content(path))

    def take(self, content: dict[str, Any]) -> list[LoadedRule]:
        """Takes over the definitions; returns the new rules. Raises ValueError.

        A rule whose definition is what it was stays, with its figures; a changed one has new figures.
        """
        definitions = content.get("rules", [])
        rules = {one["id"]: one for one in definitions if isinstance(one, dict) and isinstance(one.get("id"), str)}
        gone = [id for id in (*self.rules, *self.problems) if id not in rules]
        self.set_engine(content.get("engine") or {})
        return self.change(int(content.get("generation", 0)), rules.values(), gone)

    def set_engine(self, engine: dict[str, Any]) -> None:
        """Takes over what holds for all rules. Raises ValueError."""
        self.ignores_sys = engine.get("ignore_sys_message", True) is not False
        set_timeout(max(1, int(1000 * float(engine.get("jq_function_default_timeout", 1.0)))))
        self.known.clear()

    def change(self, generation: int, changed: Iterable[dict[str, Any]], removed: Iterable[str]) -> list[LoadedRule]:
        """Adds and replaces rules, and removes others; returns those that are new."""
        new = []
        for id in removed:
            self._take_out(id)
            self.problems.pop(id, None)
        for one in changed:
            id, known = one["id"], self.rules.get(one["id"])
            if known is not None and known.definition == one and known.disabled is None:
                continue
            self._take_out(id)
            self.problems.pop(id, None)
            if one.get("enable", True) is not False and (rule := self._made(one, known)) is not None:
                self._put_in(rule)
                if known is None:
                    new.append(rule)
        self.generation = generation
        self.known.clear()
        return new

    def _made(self, one: dict[str, Any], known: LoadedRule | None) -> LoadedRule | None:
        id = one["id"]
        try:
            compiled = compile_rule(str(one.get("sql", "")))
            check_names_of_sources(compiled.filters)
            actions = [make_action(id, action, self._factories) for action in one.get("actions") or []]
            check_shipped(compiled.tree, (action.id for action in actions if isinstance(action, ToSink)))
        except (SqlError, EvaluationError, ValueError) as error:
            self.problems[id] = str(error)
            return None
        sinks = tuple(action.id for action in actions if isinstance(action, ToSink))
        starts = known.starts if known is not None else {}
        shipped = bool(actions) and len(sinks) == len(actions) and all(map(is_shipped, sinks))
        return LoadedRule(id, one, compiled, actions, starts=starts, sinks=sinks, is_shipped=shipped)

    def _put_in(self, rule: LoadedRule) -> None:
        self.rules[rule.id] = rule
        filters, events = _sources(rule)
        if rule.is_shipped:
            return
        for filter in filters:
            self._filters.add(filter, rule)
        for event in events:
            self._of_events[event] = (*self._of_events.get(event, ()), rule)

    def _take_out(self, id: str) -> None:
        rule = self.rules.pop(id, None)
        if rule is None:
            return
        filters, events = _sources(rule)
        if rule.is_shipped:
            return
        for filter in filters:
            self._filters.remove(filter, rule)
        for event in events:
            self._of_events[event] = tuple(one for one in self._of_events[event] if one is not rule)

    def rules_of(self, topic: bytes) -> tuple[LoadedRule, ...]:
        """Returns the rules of a topic, each once."""
        found = self.known.get(topic)
        if found is None:
            hidden = self.ignores_sys and topic.startswith(SYS)
            found = () if hidden else tuple(dict.fromkeys(self._filters.match(topic)))
            if len(self.known) >= TOPICS_MAX:
                self.known.clear()
            self.known[topic] = found
        return found

    def shipped(self, action: str) -> tuple[bytes, ...]:
        """Returns the topic filters whose messages an action gets whole, without an evaluation."""
        rules = [rule for rule in self.rules.values() if action in rule.sinks]
        return tuple(dict.fromkeys(filter for rule in rules for filter in _sources(rule)[0]))

    @property
    def evaluates_messages(self) -> bool:
        """Whether a rule has to see each message of its topics."""
        return any(not rule.is_shipped and _sources(rule)[0] for rule in self.rules.values())

    def rules_of_event(self, event: bytes) -> tuple[LoadedRule, ...]:
        """Returns the rules of an event, such as `client.connected`, each once."""
        return self._of_events.get(event, ())

    def hides(self, columns: dict[str, Any]) -> bool:
        """Returns whether rules do not see an event; only those of messages have a payload."""
        if str(columns.get("event")).startswith("$sources/"):
            return False  # their topics are those of other systems
        return self.ignores_sys and "payload" in columns and str(columns.get("topic")).startswith("$SYS/")

    def forget_topics(self) -> None:
        """After a rule was disabled."""
        self.known.clear()


def read_content(path: Path) -> dict[str, Any]:
    """Returns the content of flows.json. Raises OSError, ValueError."""
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict) or not isinstance(content.get("rules", []), list):
        raise ValueError(f"{path}: must be an object with rules")
    return content


def _sources(rule: LoadedRule) -> tuple[list[bytes], list[bytes]]:
    """Returns the topic filters and the events behind FROM, each once."""
    filters, events = [], []
    for name in dict.fromkeys(rule.compiled.filters):
        if id := source_id(name):
            events.append(f"$sources/{id}")
        elif not name.startswith(EVENTS):
            filters.append(name.encode())
        elif (event := event_of(name)) is not None:
            events.append(event.name)
    return filters, [event.encode() for event in dict.fromkeys(events)]
