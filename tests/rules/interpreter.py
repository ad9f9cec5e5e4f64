"""A tree-walking interpreter of SELECT, written from docs/rules.md, against which compiled code is checked."""

import operator
from typing import Any

from shardbroker.rules import operators
from shardbroker.rules.payload import decode
from shardbroker.rules.syntax import (
    Arithmetic,
    Case,
    Comparison,
    Constant,
    Expression,
    Field,
    In,
    Index,
    ListOf,
    Logic,
    Not,
    Path,
    Range,
    Rule,
    Slice,
    Star,
    Unary,
)
from shardbroker.rules.values import UNDEFINED, EvaluationError

Value = Any
TESTS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Interpreter:
    """Evaluates a SELECT; `scopes` are maps in which a path is looked up, one after the other."""

    def __init__(self, columns: dict[str, Value]) -> None:
        self.columns = columns

    def select(self, rule: Rule) -> dict[str, Value] | None:
        fields: dict[str, Value] = {}
        for one in rule.fields:
            if isinstance(one, Star):
                fields |= self.columns
            else:
                fields[self.name_of(one)] = self.value(one.value, [fields, self.columns])
        if rule.where is not None and not self.condition(rule.where, [{**self.columns, **fields}]):
            return None
        return fields

    def name_of(self, one: Field) -> str:
        assert one.name is not None and len(one.name.steps) == 1
        return one.name.root

    def condition(self, tree: Expression, scopes: list[dict[str, Value]]) -> bool:
        if isinstance(tree, Logic):
            if tree.operator == "and":
                return all(self.condition(one, scopes) for one in tree.operands)
            return any(self.condition(one, scopes) for one in tree.operands)
        if isinstance(tree, Not):
            if isinstance(tree.operand, In | Logic | Not):
                return not self.condition(tree.operand, scopes)
            return self.value(tree.operand, scopes) is False
        if isinstance(tree, In):
            left = self.value(tree.left, scopes)
            items = [self.value(one, scopes) for one in tree.items]
            return any([self.same(left, one) for one in items])
        return self.value(tree, scopes) is True

    def value(self, tree: Expression, scopes: list[dict[str, Value]]) -> Value:
        match tree:
            case Constant(value):
                return value
            case Path():
                return self.path(tree, scopes)
            case Slice(path, first, last):
                return self.slice(self.path(path, scopes), first, last)
            case Range(first, last):
                return list(range(first, last + 1))
            case ListOf(items):
                return [self.value(one, scopes) for one in items]
            case Unary(sign, operand):
                value = self.value(operand, scopes)
                return value if sign == "+" else self.arithmetic("*", value, -1)
            case Arithmetic(sign, left, right):
                return self.arithmetic(sign, self.value(left, scopes), self.value(right, scopes))
            case Comparison("=~", left, right):
                return operators.matches(self.value(left, scopes), self.value(right, scopes))
            case Comparison(sign, left, right):
                return operators.compare(TESTS[sign], self.value(left, scopes), self.value(right, scopes))
            case Case(subject, branches, otherwise):
                for condition, value in branches:
                    if subject is None:
                        chosen = self.condition(condition, scopes)
                    else:
                        chosen = self.same(self.value(condition, scopes), self.value(subject, scopes))
                    if chosen:
                        return self.value(value, scopes)
                return UNDEFINED if otherwise is None else self.value(otherwise, scopes)
        return self.condition(tree, scopes)

    def arithmetic(self, sign: str, left: Value, right: Value) -> Value:
        return operators.ARITHMETIC[sign](left, right)

    def same(self, left: Value, right: Value) -> bool:
        if type(left) is not type(right):
            return False
        if isinstance(left, list):
            return len(left) == len(right) and all(map(self.same, left, right))
        if isinstance(left, dict):
            return left.keys() == right.keys() and all(self.same(one, right[key]) for key, one in left.items())
        return bool(left == right)

    # --- paths ------------------------------------------------------------------------------------------------------------------

    def path(self, path: Path, scopes: list[dict[str, Value]]) -> Value:
        for scope in scopes:
            value = self.path_in(path, scope)
            if value is not UNDEFINED:
                return value
        return UNDEFINED

    def path_in(self, path: Path, scope: dict[str, Value]) -> Value:
        steps, value, start = path.steps, scope, scope
        if path.root == "payload" and len(steps) > 1 and "payload" in scope:
            payload = scope["payload"]
            if isinstance(payload, str):
                try:
                    payload = decode(payload)
                except ValueError:
                    raise EvaluationError("payload") from None
            steps, value, start = steps[1:], payload, payload
        for step in steps:
            value = self.step(value, step, start)
        return value

    def step(self, value: Value, step: str | Index, start: Value) -> Value:
        if isinstance(value, str):
            try:
                value = decode(value)
            except ValueError:
                return UNDEFINED
        if isinstance(step, str):
            return value.get(step, UNDEFINED) if isinstance(value, dict) else UNDEFINED
        number = step.number
        if step.path is not None:
            number = start
            for one in step.path.steps:
                number = self.step(number, one, start)
        if not isinstance(value, list) or type(number) is not int or number == 0 or abs(number) > len(value):
            return UNDEFINED
        return value[number - 1] if number > 0 else value[number]

    def slice(self, value: Value, first: int, last: int) -> Value:
        if not isinstance(value, list) or 0 in (first, last):
            raise EvaluationError("slice")
        begin = first if first > 0 else len(value) + first + 1
        end = last if last > 0 else len(value) + last + 1
        if begin < 1:
            raise EvaluationError("slice")
        if end - begin < -1 and begin <= len(value) + 1:
            raise EvaluationError("slice")
        return [one for number, one in enumerate(value, 1) if begin <= number <= end]
