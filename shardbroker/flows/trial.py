"""A rule in force over given columns: its result, and what its actions make of it."""

from typing import Any

from shardbroker.flows.actions import Action, ActionError, name_of
from shardbroker.flows.lanes import Stopped
from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.rule_traces import untraced
from shardbroker.rules.encoding import decoded, encoded
from shardbroker.rules.events import PUBLISH, event_of, example
from shardbroker.rules.payload import Payload
from shardbroker.rules.tester import reaches
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["try_loaded"]

ROWS_MAX = 100
"""Rows whose actions are shown or carried out: an answer is one message."""


def try_loaded(rule: LoadedRule, context: dict[str, Any], carry_out: bool) -> dict[str, Any]:
    """Returns `result` and `actions`, or `error` (nomatch or eval) with `detail`. Figures do not change.

    context: columns as in rules/encoding.py; others have example values. carry_out: whether actions are carried out.
    Raises Stopped.
    """
    try:
        given = decoded(context)
        if not isinstance(given, dict):
            raise ValueError("context: must be an object of columns")
        if not reaches(rule.compiled, given):
            return {"error": "nomatch", "detail": "FROM does not match the topic"}
        event = event_of(rule.compiled.filters[0]) or PUBLISH
        columns = {**example(event), **given, "metadata": rule.metadata}
        result = untraced(rule.compiled).evaluate(columns, Payload(columns["payload"]) if "payload" in columns else None)
    except (EvaluationError, ValueError, RecursionError) as error:
        return {"error": "eval", "detail": str(error)}
    if not result and result != {}:
        return {"error": "nomatch", "detail": "WHERE is false"}
    rows = result if isinstance(result, list) else [result]
    actions = [_tried(untraced(action), row, columns, carry_out) for row in rows[:ROWS_MAX] for action in rule.actions]
    return {"result": encoded(result), "actions": actions}


def _tried(action: Action, row: Value, columns: dict[str, Value], carry_out: bool) -> dict[str, Any]:
    """Returns what an action would do, or has done."""
    shown: dict[str, Any] = {"action": name_of(action)}
    try:
        show = getattr(action, "show", None)  # of the broker's own actions
        if show is not None:
            shown["rendered"] = encoded(show(row, columns))
        if carry_out:
            shown["success"] = action.run(row, columns, 0)
    except Stopped:
        raise
    except Exception as error:  # of an action of another package too: a trial fails, its process does not
        shown["error"] = str(error) if isinstance(error, ActionError) else f"{type(error).__name__}: {error}"
    return shown
