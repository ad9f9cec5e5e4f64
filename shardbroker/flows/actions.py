"""Actions of rules: the contract, and their making from a definition.

Another package provides actions under entry points of group `shardbroker.actions`: name -> factory(args) -> Action.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from shardbroker.rules.functions import FUNCTIONS, Function
from shardbroker.rules.values import Value

__all__ = ["SINK", "Action", "ActionError", "Factory", "OutOfService", "load_functions", "make_action", "name_of"]

SINK = "sink"
"""Key of the factory of actions `type:name`, which gets their id."""
ACTIONS_GROUP, FUNCTIONS_GROUP = "shardbroker.actions", "shardbroker.rule_functions"

Factory = Callable[[str, dict[str, Any]], "Action"]
"""(id of the rule, arguments) -> an action. Raises ValueError for wrong arguments."""


class ActionError(Exception):
    """An action has failed for one row, and would fail again."""


class OutOfService(ActionError):
    """What the action needs does not exist or is stopped."""


class Action(Protocol):
    """What a rule does with each row that it selects."""

    def run(self, row: dict[str, Value], columns: dict[str, Value], journal: int) -> bool:
        """Carries the action out. `columns` are those of the event, `journal` is the worker whose journal has it.

        Returns False if the row was left out by a limit of the action. Raises ActionError.
        """


def name_of(action: Action) -> str:
    """Returns the name of an action: `type:name` of one on another system."""
    return str(getattr(action, "id", type(action).__name__.lower().strip("_")))


class _Missing:
    """In place of an action that does not exist: each row fails, other actions of the rule do not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, row: dict[str, Value], columns: dict[str, Value], journal: int) -> bool:
        raise OutOfService(f"action {self._name}: no such action")


def make_action(rule: str, definition: object, own: Mapping[str, Factory]) -> Action:
    """Returns the action of a definition: `{"function": name, "args": {...}}` or `type:name`. Raises ValueError."""
    if isinstance(definition, str):
        factory = own.get(SINK)
        return _Missing(definition) if factory is None else factory(rule, {"id": definition})
    if not isinstance(definition, dict) or not isinstance(name := definition.get("function"), str):
        raise ValueError(f"actions: must be objects with a function, or type:name, got {definition!r:.200}")
    args = definition.get("args") or {}
    if not isinstance(args, dict):
        raise ValueError(f"actions.args: must be an object, got {args!r:.200}")
    factory = own.get(name) if name != SINK else None
    if factory is not None:
        return factory(rule, args)
    for point in entry_points(group=ACTIONS_GROUP, name=name):
        try:
            made: Action = point.load()(args)
        except Exception as error:  # of another package: the rule is not loaded, the others are
            raise ValueError(f"actions.function {name}: {type(error).__name__}: {error}") from error
        return made
    names = ", ".join(sorted(own.keys() - {SINK}))
    raise ValueError(f"actions.function: must be {names} or an installed action, got {name!r:.200}")


def load_functions() -> list[str]:
    """Adds the functions of other packages to those of SQL; returns what could not be loaded.

    An entry point is a function whose result may differ between calls, or a `rules.functions.Function`.
    """
    problems = []
    for point in entry_points(group=FUNCTIONS_GROUP):
        if point.name.lower() in FUNCTIONS:
            problems.append(f"{point.name}: must be a new name, got one of the broker's functions")
            continue
        try:
            found = point.load()
            FUNCTIONS[point.name.lower()] = found if isinstance(found, Function) else _wrapped(found)
        except Exception as error:
            problems.append(f"{point.name}: {type(error).__name__}: {error}")
    return problems


def _wrapped(call: Callable[..., Value]) -> Function:
    return Function(call, tuple(range(call.__code__.co_argcount, call.__code__.co_argcount + 1)), is_pure=False)
