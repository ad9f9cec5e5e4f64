"""Connectors, actions and sources: their checks, what depends on them, and their changes at run time. Files and turns of changes
are those of management/definitions.py.

A definition made at run time is kept as it was given, so that a secret in a file (`file:PATH`) is read again at each start.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shardbroker.config import Settings
from shardbroker.config.show import shown
from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, SOURCES, checked, from_emqx, with_secrets
from shardbroker.config.sinks.ids import checked_id, normal_id, source_id
from shardbroker.config.sinks.tables import SINKS_MAX
from shardbroker.control import ControlError
from shardbroker.flows.persistence.expansion import all_actions, all_connectors
from shardbroker.management.action_alarms import ActionState
from shardbroker.management.definitions import CONFIGURATION, RULES, RUNTIME, Definition, Definitions, Made, now_ms
from shardbroker.management.rules import stamped

__all__ = ["SinkKind", "Sinks", "connector_of"]

NAMED = 5
"""Dependents that an error names."""


class SinkKind:
    """A definition has `type`, `name`, `given` as it arrived, `model`, or None and a `problem` if it can no longer be used, and
    `shown`, its settings as JSON with secrets masked."""

    most = SINKS_MAX

    def __init__(self, name: str) -> None:
        self.name = name

    def configured(self, settings: Settings) -> dict[str, Definition]:
        """Returns those of the configuration."""
        found = {CONNECTORS: all_connectors, ACTIONS: all_actions, SOURCES: _all_sources}[self.name](settings)
        return {id: self._of_model(id, model) for id, model in found.items()}

    def _of_model(self, id: str, model: Any) -> Definition:
        type, _, name = id.partition(":")
        given = model.model_dump(mode="json")
        times = {"origin": CONFIGURATION, "created_ms": None, "changed_ms": None}
        return {"id": id, "type": type, "name": name, "given": given, **_usable(model), **times}

    def restored(self, kept: dict[str, Any]) -> Definition:
        """Returns one that was made at run time."""
        type, name = kept["id"].split(":")
        values = {"type": type, "name": name, **{key: kept[key] for key in ("given", "created_ms", "changed_ms")}}
        try:
            checked_id(kept["id"])
            return {"id": kept["id"], **values, **_usable(checked(self.name, type, kept["given"]))}
        except ValueError as error:  # a file of a secret that is gone, a type of a later release
            return {"id": kept["id"], **values, "model": None, "shown": {}, "problem": str(error)}

    def kept(self, definition: Definition) -> dict[str, Any]:
        """Returns what the data directory has of it."""
        return {name: definition[name] for name in ("id", "given", "created_ms", "changed_ms")}

    def in_force(self, definition: Definition, all: Made) -> dict[str, Any] | None:
        """Returns what the processes flows get; None for an action or a source whose connector cannot be used either."""
        if definition["model"] is None or (self.name != CONNECTORS and connector_problem(definition, all)):
            return None
        named = {name: definition[name] for name in ("id", "type", "name", "origin", "created_ms", "changed_ms")}
        return {**named, "settings": definition["model"].model_dump(mode="json")}


def _all_sources(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = settings.sources.by_id()
    return found


def _usable(model: Any) -> dict[str, Any]:
    return {"model": model, "shown": shown(model), "problem": ""}


def connector_of(one: Definition) -> str:
    """Returns the id of the connector of an action or a source."""
    name = one["model"].connector if one["model"] is not None else one["given"].get("connector", "")
    return f"{one['type']}:{name}"


def connector_problem(one: Definition, all: Made) -> str:
    """Returns why the connector of an action or a source cannot be used; empty if it can."""
    id = connector_of(one)
    connector = all[CONNECTORS].get(id)
    if connector is None:
        return f"connector: must exist, and there is no {id}"
    return f"connector {id}: {connector['problem']}" if connector["problem"] else ""


class Sinks:
    """The connectors, the actions, or the sources of a broker."""

    def __init__(self, kind: str, definitions: Definitions) -> None:
        self.kind, self._definitions = kind, definitions
        self.flows = definitions.flows

    def all(self) -> list[Definition]:
        """Returns all by id."""
        return self._definitions.listed(self.kind)

    def find(self, id: str) -> Definition:
        """Returns one. Raises ControlError NOT_FOUND."""
        return self._definitions.find(self.kind, normal_id(id))

    def problem(self, one: Definition) -> str:
        """Returns why one cannot be used as it is defined; empty if it can."""
        problem: str = one["problem"]
        if problem or self.kind == CONNECTORS:
            return problem
        connector = self._definitions.get(CONNECTORS, connector_of(one))
        return connector_problem(one, {CONNECTORS: {connector["id"]: connector} if connector is not None else {}})

    def figures(self) -> dict[str, dict[str, Any]]:
        """Returns id -> figures and status: at most a second old."""
        return self.flows.sinks(self.kind) if self.all() else {}

    def status(self, one: Definition, figures: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the status of one, and why it is not connected. figures: those of it."""
        if problem := self.problem(one):
            return "disconnected", problem
        if not one["model"].enable:
            return "stopped", "disabled"
        return figures.get("status", "connecting"), figures.get("error", "")

    def states(self) -> dict[str, ActionState]:
        """Returns the states of enabled actions or sources, for alarms."""
        found, figures = {}, self.figures()
        lost = "failed" if self.kind == SOURCES else "dropped"
        for one in self.all():
            if one["model"] is None or one["model"].enable:
                of = figures.get(one["id"], {})
                found[one["id"]] = ActionState(*self.status(one, of), of.get("lag_seconds", 0.0), of.get(lost, 0))
        return found

    def uses(self) -> dict[str, list[tuple[str, str]]]:
        """Returns id -> kind and id of its users: actions and sources of a connector; rules of an action or a source, and actions
        that fall back on it."""
        return _uses(self.kind, self._definitions.everything())

    # --- changes --------------------------------------------------------------------------------------------------------------

    async def create(self, id: str, given: dict[str, Any]) -> Definition:
        """Makes one; returns it when it is in force. Raises ControlError."""
        type, name = _parsed(id)

        def apply(made: Made) -> Definition:
            values = _unmasked(self._from_emqx(type, given), {})
            one = self._checked(type, name, values, self._definitions.everything(made), now_ms())
            return self._definitions.add(self.kind, one, made)

        return await self._changed(f"{type}:{name}", apply)

    async def change(self, id: str, given: dict[str, Any], replace: bool) -> Definition:
        """Replaces the settings of one, or those that are given. Raises ControlError."""
        type, name = _parsed(id)
        id = f"{type}:{name}"

        def apply(made: Made) -> Definition:
            before = self._definitions.own(self.kind, id, made)
            values = _unmasked(self._from_emqx(type, given), before["given"])
            values = values if replace else _merged(before["given"], values)
            one = self._checked(type, name, values, self._definitions.everything(made), before["created_ms"])
            made[self.kind][id] = one
            return one

        return await self._changed(id, apply)

    async def delete(self, id: str, with_dependents: bool) -> None:
        """Removes one. with_dependents: actions and sources of a connector as well, and references in rules to actions. Raises
        ControlError."""
        id = normal_id(id)

        def apply(made: Made) -> None:
            self._definitions.own(self.kind, id, made)
            self._delete(self.kind, id, made, with_dependents)

        await self._definitions.change(self.kind, id, apply)

    def _delete(self, kind: str, id: str, made: Made, with_dependents: bool) -> None:
        users = _uses(kind, self._definitions.everything(made)).get(id, [])
        if users and not with_dependents:
            named = ", ".join(f"{of[:-1]} {user}" for of, user in users[:NAMED])
            more = f" and {len(users) - NAMED} more" if len(users) > NAMED else ""
            raise ControlError("BAD_REQUEST", f"{kind[:-1]} {id} is used by {named}{more}: delete or change them before")
        for of, user in users:
            one = self._definitions.own(of, user, made)
            if kind == CONNECTORS:
                self._delete(of, user, made, True)
            elif kind == SOURCES:
                continue  # a rule that names a source which is not there sees nothing of it
            elif of == RULES:
                actions = [action for action in one["actions"] if action != id]
                made[of][user] = stamped({**one, "actions": actions}, one["created_ms"])
            elif user in made[of]:
                left = [other for other in one["given"].get("fallback_actions", []) if normal_id(str(other)) != id]
                values = {**one["given"], "fallback_actions": left}
                made[of][user] = self._restamped(of, one, values)
        del made[kind][id]

    @staticmethod
    def _restamped(kind: str, one: Definition, values: dict[str, Any]) -> Definition:
        restored = SinkKind(kind).restored({**one, "given": values, "changed_ms": now_ms()})
        return {**restored, "origin": RUNTIME}

    async def _changed(self, id: str, apply: Callable[[Made], Definition | None]) -> Definition:
        made: Definition = await self._definitions.change(self.kind, id, apply)
        return made

    # --- checks ---------------------------------------------------------------------------------------------------------------

    def _from_emqx(self, type: str, given: dict[str, Any]) -> dict[str, Any]:
        try:
            return from_emqx(self.kind, type, given)
        except ValueError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    def _checked(self, type: str, name: str, given: dict[str, Any], all: Made, created_ms: int) -> Definition:
        """Returns a definition that fits the others. Raises ControlError."""
        try:
            model = checked(self.kind, type, given)
        except ValueError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None
        one: Definition = {"id": f"{type}:{name}", "type": type, "name": name, "given": given, **_usable(model)}
        one |= {"origin": RUNTIME, "created_ms": created_ms, "changed_ms": now_ms()}
        if self.kind != CONNECTORS:
            self._check_references(one, all)
        return one

    def _check_references(self, one: Definition, all: Made) -> None:
        if problem := connector_problem(one, all):
            raise ControlError("BAD_REQUEST", problem)
        for fallback in one["model"].fallback_actions if self.kind == ACTIONS else ():
            try:
                other = ":".join(checked_id(fallback))
            except ValueError as error:
                raise ControlError("BAD_REQUEST", f"fallback_actions: {error}") from None
            if other == one["id"] or other not in all[ACTIONS]:
                raise ControlError("BAD_REQUEST", f"fallback_actions: must be other actions that exist, got {other}")

    # --- the processes flows --------------------------------------------------------------------------------------------------

    async def probe(self, id: str, given: dict[str, Any] | None) -> str:
        """Returns why a server cannot be used with these settings, or with those of the one with this id; empty if it can. Masked
        secrets are those of the one with this id. Raises ControlError."""
        type, name = _parsed(id)
        all = self._definitions.everything()
        before = all[self.kind].get(f"{type}:{name}", {}).get("given")
        if given is None:
            values = self.find(id)["given"]
        else:
            values = _unmasked(self._from_emqx(type, given), before or {})
        one = self._checked(type, name, values, all, now_ms())
        connector = one if self.kind == CONNECTORS else all[CONNECTORS][connector_of(one)]
        await self._definitions.need_processes()
        part = {self.kind[:-1]: one["model"].model_dump(mode="json")} if self.kind != CONNECTORS else {}
        return await self.flows.probe(type, connector["model"].model_dump(mode="json"), **part)

    async def create_tables(self, connector: Definition) -> str:
        """Creates the tables of the preset on a connector; returns why that has failed, or an empty text. Raises ControlError."""
        if problem := self.problem(connector):
            return problem
        await self._definitions.need_processes()
        return await self.flows.create_tables(connector["type"], connector["model"].model_dump(mode="json"))

    async def order(self, id: str, verb: str) -> None:
        """Starts, stops or restarts an action or a source, or all of a connector, until they change, or the broker stops. Raises
        ControlError."""
        one = self.find(id)
        if problem := self.problem(one):
            raise ControlError("BAD_REQUEST", problem)
        if not one["model"].enable:
            raise ControlError("BAD_REQUEST", f"{self.kind[:-1]} {one['id']} is disabled: enable it before")
        used_by = [(self.kind, one["id"])] if self.kind != CONNECTORS else self.uses().get(one["id"], [])
        for kind, id in used_by:
            if self._definitions.find(kind, id)["model"].enable:
                await self.flows.order(f"{'sink' if kind == ACTIONS else 'source'}_{verb}", id)


def _uses(kind: str, all: Made) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    if kind == CONNECTORS:
        for of in (ACTIONS, SOURCES):
            for id, one in sorted(all[of].items()):
                found.setdefault(connector_of(one), []).append((of, id))
        return found
    if kind == SOURCES:
        for id, rule in sorted(all[RULES].items()):
            for used in dict.fromkeys(source_id(name) for name in rule["from"]):
                if used:
                    found.setdefault(used, []).append((RULES, id))
        return found
    for id, rule in sorted(all[RULES].items()):
        for used in dict.fromkeys(one for one in rule["actions"] if isinstance(one, str)):
            found.setdefault(used, []).append((RULES, id))
    for id, action in sorted(all[ACTIONS].items()):
        for used in dict.fromkeys(action["given"].get("fallback_actions") or []):
            found.setdefault(normal_id(str(used)), []).append((ACTIONS, id))
    return found


def _parsed(id: str) -> tuple[str, str]:
    try:
        return checked_id(id)
    except ValueError as error:
        raise ControlError("BAD_REQUEST", f"id: {error}") from None


def _unmasked(given: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    try:
        values: dict[str, Any] = with_secrets(given, before)
    except ValueError as error:
        raise ControlError("BAD_REQUEST", str(error)) from None
    return values


def _merged(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns a definition with some of its keys changed."""
    tables = [name for name, one in changes.items() if isinstance(one, dict) and isinstance(before.get(name), dict)]
    return {**before, **changes, **{name: _merged(before[name], changes[name]) for name in tables}}
