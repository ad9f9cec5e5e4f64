"""Calls of functions as they are written in SQL: literals, arrays and calls, without operators and columns."""

import json
import re
from typing import Any

from shardbroker.rules.functions import FUNCTIONS
from shardbroker.rules.values import UNDEFINED, EvaluationError

__all__ = ["COLUMNS", "call", "evaluate", "shown"]

COLUMNS = {
    "id": "m1",
    "topic": "t/a",
    "payload": '{"a": 1}',
    "qos": 1,
    "flags": {"retain": True},
    "clientid": "c1",
    "username": "u1",
    "peerhost": "127.0.0.1",
}

_TOKEN = re.compile(r"\s*('[^']*'|-?\d+\.\d+|-?\d+|[a-z_0-9]+|[(),\[\]])")


def call(name: str, *arguments: Any) -> Any:
    """Calls a function as a rule would."""
    function = FUNCTIONS[name]
    if len(arguments) not in function.arities:
        raise EvaluationError(f"{name}: must have {function.arities} arguments, got {len(arguments)}")
    return function.call(COLUMNS, *arguments) if function.needs_columns else function.call(*arguments)


def evaluate(expression: str) -> Any:
    tokens = []
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        assert found, expression[at:]
        tokens.append(found[1])
        at = found.end()
    tokens.reverse()
    value = _value(tokens)
    assert not tokens, expression
    return value


def _value(tokens: list[str]) -> Any:
    token = tokens.pop()
    if token[0] == "'":
        return token[1:-1]
    if token == "[":
        return _values(tokens, "]")
    if token[0] == "-" or token[0].isdigit():
        return float(token) if "." in token else int(token)
    if token in ("true", "false"):
        return token == "true"
    assert tokens.pop() == "("
    return call(token, *_values(tokens, ")"))


def _values(tokens: list[str], end: str) -> list[Any]:
    values = []
    while tokens[-1] != end:
        values.append(_value(tokens))
        if tokens[-1] == ",":
            tokens.pop()
    tokens.pop()
    return values


def shown(value: Any) -> str:
    """Returns a result as the documentation has it."""
    return "undefined" if value is UNDEFINED else json.dumps(value, ensure_ascii=False)
