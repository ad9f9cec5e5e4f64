"""Evaluation of a rule over given columns, without a broker; columns left out have the example values of the event."""

from dataclasses import dataclass

from shardbroker.rules.compiler import CompiledRule, compile_rule
from shardbroker.rules.errors import SqlError
from shardbroker.rules.events import PUBLISH, event_of, example
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["Tested", "run_rule"]

RULE_ID = "sql_tester"
"""Name of the rule in the column `metadata`."""


@dataclass(frozen=True, slots=True)
class Tested:
    """What a rule does. `error`: parse, nomatch or eval, with the reason in `detail`; empty where `result` is what it selects."""

    error: str = ""
    detail: str = ""
    result: Value = None


def run_rule(sql: str, context: dict[str, Value]) -> Tested:
    """Evaluates a rule over these columns."""
    try:
        rule = compile_rule(sql)
    except SqlError as error:
        return Tested("parse", str(error))
    if not reaches(rule, context):
        return Tested("nomatch", "FROM does not match the topic")
    event = event_of(rule.filters[0]) or PUBLISH
    columns = {**example(event), "metadata": {"rule_id": RULE_ID}, **context}
    try:
        result = rule.evaluate(columns)
    except EvaluationError as error:
        return Tested("eval", str(error))
    return Tested("nomatch", "WHERE is false") if result is None else Tested(result=result)


def reaches(rule: CompiledRule, context: dict[str, Value]) -> bool:
    """Returns whether FROM matches: a rule of messages only needs a topic that a filter matches."""
    if any(one.startswith(("$events/", "$bridges/", "$sources/")) for one in rule.filters):
        return True
    topic = context.get("topic", "")
    return isinstance(topic, str) and rule.takes(topic)
