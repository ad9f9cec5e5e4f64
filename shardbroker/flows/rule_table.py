"""The rules in force: read from the definitions, compiled once, and found by topic.

    <runtime_dir>/flows.json    {"generation": n, "rules": [{"id", "sql", "enable", "actions", ...}]}
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardbroker.flows.actions import Action, make_action
from shardbroker.flows.filters import FilterTree
from shardbroker.flows.rule import LoadedRule
from shardbroker.rules.compiler import compile_rule
from shardbroker.rules.errors import SqlError
from shardbroker.rules.events import event_of
from shardbroker.rules.values import EvaluationError

__all__ = ["RuleTable"]

TOPICS_MAX = 65_536
"""Topics whose rules are remembered; with 200 bytes each some 13 MB."""
EVENTS = "$events/"


class RuleTable:
    """factories: the actions of the broker itself, by name."""

    def __init__(self, factories: dict[str, Callable[[str, dict[str, Any]], Action]]) -> None:
        self.generation = 0
        self.rules: dict[str, LoadedRule] = {}
        self.problems: dict[str, str] = {}
        self._factories = factories
        self._filters: FilterTree[LoadedRule] = FilterTree()
        self._of_events: dict[bytes, tuple[LoadedRule, ...]] = {}
        self._known: dict[bytes, tuple[LoadedRule, ...]] = {}

    def load(self, path: Path) -> list[LoadedRule]:
        """Reads the definitions; returns the new rules. Raises OSError, ValueError.

        A rule whose definition is what it was stays, with its figures; a changed one has new figures.
        """
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or not isinstance(definitions := content.get("rules", []), list):
            raise ValueError(f"{path}: must be an object with rules")
        before, self.rules, self.problems = self.rules, {}, {}
        for one in definitions:
            if isinstance(one, dict) and isinstance(one.get("id"), str) and one.get("enable", True) is not False:
                self._add(one, before.get(one["id"]))
        self.generation = int(content.get("generation", 0))
        self._filters = FilterTree()
        self._of_events = {}
        for rule in self.rules.values():
            for filter in dict.fromkeys(rule.compiled.filters):
                if not filter.startswith(EVENTS):
                    self._filters.add(filter.encode(), rule)
                elif (event := event_of(filter)) is not None:
                    rules = self._of_events.get(event.name.encode(), ())
                    self._of_events[event.name.encode()] = tuple(dict.fromkeys((*rules, rule)))
        self._known = {}
        return [rule for rule in self.rules.values() if rule.id not in before]

    def _add(self, one: dict[str, Any], known: LoadedRule | None) -> None:
        id = one["id"]
        if known is not None and known.definition == one and known.disabled is None:
            self.rules[id] = known
            return
        try:
            compiled = compile_rule(str(one.get("sql", "")))
            actions = [make_action(id, action, self._factories) for action in one.get("actions") or []]
        except (SqlError, EvaluationError, ValueError) as error:
            self.problems[id] = str(error)
            return
        self.rules[id] = LoadedRule(id, one, compiled, actions, starts=known.starts if known is not None else {})

    def rules_of(self, topic: bytes) -> tuple[LoadedRule, ...]:
        """Returns the rules of a topic, each once."""
        found = self._known.get(topic)
        if found is None:
            found = tuple(dict.fromkeys(self._filters.match(topic)))
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            self._known[topic] = found
        return found

    def rules_of_event(self, event: bytes) -> tuple[LoadedRule, ...]:
        """Returns the rules of an event, such as `client.connected`, each once."""
        return self._of_events.get(event, ())

    def forget_topics(self) -> None:
        """After a rule was disabled."""
        self._known = {}
