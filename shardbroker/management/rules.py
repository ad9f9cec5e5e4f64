"""Rules: their checks, and their changes at run time. Files and turns of changes are those of management/definitions.py."""

from collections.abc import Iterable
from typing import Any

from shardbroker.config import Settings
from shardbroker.config.flows import RULES_MAX
from shardbroker.config.persistence import key_of
from shardbroker.config.sinks.ids import check_names_of_sources, normal_id
from shardbroker.control import ControlError
from shardbroker.flows.persistence.expansion import all_rules
from shardbroker.management.definitions import CONFIGURATION, RULES, RUNTIME, Definition, Definitions, Made, now_ms

__all__ = ["RuleKind", "Rules", "fed", "stamped"]


class RuleKind:
    """A definition has `name`, `sql`, `from`, `enable`, `description`, `actions`, `metadata`."""

    name = RULES
    most = RULES_MAX

    def __init__(self, started_ms: int = 0) -> None:
        """started_ms: of the broker, Unix ms."""
        self._started_ms = started_ms

    def configured(self, settings: Settings) -> dict[str, Definition]:
        """Returns those of the configuration, which preflight has checked. Raises ControlError, with the key."""
        found = {}
        for id, rule in all_rules(settings, self._started_ms).items():
            values = {**rule.model_dump(), "actions": normal_actions(rule.actions)}
            definition: Definition = {"id": id, **values, "origin": CONFIGURATION, "created_ms": None, "changed_ms": None}
            try:
                found[id] = {**definition, "from": _checked(definition)}
            except ControlError as error:
                raise ControlError(error.code, f"{key_of(id) or f'rules.{id}'}.{error}") from None
        return found

    def restored(self, kept: dict[str, Any]) -> Definition:
        """Returns one that was made at run time."""
        return kept

    def kept(self, definition: Definition) -> dict[str, Any]:
        """Returns what the data directory has of it."""
        return definition

    def in_force(self, definition: Definition, all: Made) -> dict[str, Any] | None:
        """Returns what the processes flows get."""
        return definition


class Rules:
    """The rules of a broker."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions, self.flows = definitions, definitions.flows

    @property
    def route_count(self) -> int:
        """Routes of all rules."""
        return self._definitions.route_count

    async def settled(self) -> None:
        """Returns once the rules of the configuration are in force."""
        await self._definitions.settled()

    def all(self) -> list[Definition]:
        """Returns all rules by id."""
        return self._definitions.listed(RULES)

    def find(self, id: str) -> Definition:
        """Returns a rule. Raises ControlError NOT_FOUND."""
        return self._definitions.find(RULES, id)

    async def create(self, definition: Definition) -> Definition:
        """Makes a rule; returns it when it is in force. Raises ControlError."""
        rule = stamped(definition, now_ms())
        made: Definition = await self._definitions.change(RULES, rule["id"], lambda made: self._definitions.add(RULES, rule, made))
        return made

    async def update(self, id: str, changes: dict[str, Any]) -> Definition:
        """Changes fields of a rule, which continues at its position; returns it when that is in force. Raises ControlError."""

        def apply(made: Made) -> Definition:
            before = self._definitions.own(RULES, id, made)
            made[RULES][id] = rule = stamped({**before, **changes}, before["created_ms"])
            return rule

        made: Definition = await self._definitions.change(RULES, id, apply)
        return made

    async def delete(self, id: str) -> None:
        """Removes a rule. Raises ControlError."""

        def apply(made: Made) -> None:
            self._definitions.own(RULES, id, made)
            del made[RULES][id]

        await self._definitions.change(RULES, id, apply)


def stamped(definition: Definition, created_ms: int) -> Definition:
    """Returns a checked rule, with the time of its change. Raises ControlError BAD_REQUEST."""
    definition = {**definition, "actions": normal_actions(definition["actions"])}
    return {**definition, "from": _checked(definition), "origin": RUNTIME, "created_ms": created_ms, "changed_ms": now_ms()}


def normal_actions(actions: list[Any]) -> list[Any]:
    """Returns the actions of a rule with the names that types have here."""
    return [normal_id(one) if isinstance(one, str) else one for one in actions]


def _checked(definition: Definition) -> list[str]:
    """Returns the names behind FROM. Raises ControlError BAD_REQUEST."""
    from shardbroker.rules.definition import check_metadata, checked_sources  # most brokers have no rules

    try:
        check_metadata(definition.get("metadata", {}))
        names = checked_sources(definition["sql"], definition["actions"])
        check_names_of_sources(names)
        return names
    except ValueError as error:
        raise ControlError("BAD_REQUEST", str(error)) from None


def fed(rules: Iterable[Definition]) -> tuple[set[str], set[str]]:
    """Returns the topic filters and the events of enabled rules. Those of sources are fed by the processes flows."""
    from shardbroker.rules.definition import EVENTS, SOURCES
    from shardbroker.rules.events import event_of

    names = {name for rule in rules if rule["enable"] for name in rule["from"]}
    named = {name for name in names if name.startswith(EVENTS)}
    filters = {name for name in names if not name.startswith((EVENTS, *SOURCES))}
    return filters, {event.name for event in map(event_of, named) if event is not None}
