"""The actions of the broker itself, by name."""

from collections.abc import Callable, Iterable

from shardbroker.flows.actions import SINK, Factory, make_action
from shardbroker.flows.console import Console
from shardbroker.flows.lanes import Lanes
from shardbroker.flows.republish import Republish
from shardbroker.flows.sinks.intake import Intakes
from shardbroker.flows.sinks.to_sink import ToSink
from shardbroker.logs.phrases import Line
from shardbroker.rules.errors import SqlError
from shardbroker.rules.values import EvaluationError

__all__ = ["check_actions", "own_actions"]


def own_actions(
    lanes: Lanes | None, payload_max: int, write: Callable[[Line], None], intakes: Intakes | None = None
) -> dict[str, Factory]:
    """Returns the factories. lanes: to the workers; None: the actions are not run. write: to the log. intakes: of `type:name`."""
    return {
        SINK: lambda rule, args: ToSink(args["id"], intakes),
        "republish": lambda rule, args: Republish(rule, args, lanes, payload_max),
        "console": lambda rule, args: Console(rule, write),
    }


def check_actions(rule: str, actions: Iterable[object]) -> None:
    """Raises ValueError for actions that cannot be made."""
    factories = own_actions(None, 0, lambda line: None)
    try:
        for action in actions:
            make_action(rule, action, factories)
    except (SqlError, EvaluationError) as error:
        raise ValueError(f"actions: {error}") from None
