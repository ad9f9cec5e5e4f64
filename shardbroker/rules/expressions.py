"""Expressions of SQL -> nodes of Python.

Where names are looked up is a `Scope`. A condition becomes a node that gives `True` or `False`, a value one that gives a value of
`values`. Calls of pure functions and operators on constants are evaluated here.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from shardbroker.rules import nodes, operators, paths
from shardbroker.rules.functions import FUNCTIONS, Function
from shardbroker.rules.syntax import (
    Arithmetic,
    Call,
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
    Slice,
    Star,
    Unary,
)
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["Expressions", "Scope", "is_safe", "reads_columns", "roots"]

FOLDED: Final = (str, bytes, int, float, bool, type(None))
"""Types of results of constant calls that rules may share: those that nothing can change."""
AST_OPERATORS: Final[dict[str, type[ast.cmpop]]] = {
    "=": ast.Eq,
    "!=": ast.NotEq,
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
}


def fail(text: str) -> NoReturn:
    """Raises EvaluationError: what a rule with an unknown function does for every message, as in EMQX."""
    raise EvaluationError(text)


def check_boolean(value: Value) -> bool:
    """Returns the result of a function that is a condition. Raises EvaluationError if it is no boolean."""
    if value is True or value is False:
        return bool(value)
    raise EvaluationError(f"condition: must be a boolean, got {type(value).__name__}")


HELPERS: Final[dict[str, Any]] = {
    "UNDEFINED": UNDEFINED,
    "INT": int,
    "FLOAT": float,
    "STR": str,
    "LIST": list,
    "DICT": dict,
    "TYPE": type,
    "compare": operators.compare,
    "identical": operators.identical,
    "contains": operators.contains,
    "matches": operators.matches,
    "minus": operators.minus,
    "get": paths.get,
    "get_key": paths.get_key,
    "find": paths.find,
    "find_in_either": paths.find_in_either,
    "slice_of": paths.slice_of,
    "integers": paths.integers,
    "put": paths.put,
    "fail": fail,
    "check_boolean": check_boolean,
    "__builtins__": {},
}
"""All that generated code sees besides its constants."""


@dataclass
class Scope:
    """Where names are looked up: the local `columns` of generated code, and before it `fields` if its names include the root."""

    columns: str
    is_event: bool = False
    """Whether `columns` holds the columns of the event, so that `payload` is that of the message."""
    fields: str | None = None
    shadowing: set[str] = field(default_factory=set)
    gives_columns: bool = False
    """Whether functions see the columns; in EMQX those of a field see none."""
    has_map: bool = False
    """Whether the local `document` holds the decoded payload."""


@dataclass
class Expressions:
    """Compiles the expressions of one rule; `slots` are the globals of its code."""

    slots: dict[str, Any] = field(default_factory=lambda: dict(HELPERS))
    problems: list[str] = field(default_factory=list)
    locals: int = 0
    first: Expression | None = None
    """The path that WHERE evaluates in any case, if WHERE is evaluated before the fields."""
    known: dict[Path, str] = field(default_factory=dict)
    """Local variables that hold the values of paths by now."""

    def slot(self, value: Any) -> ast.expr:
        """Returns the name of a global with this value."""
        text = f"slot_{len(self.slots)}"
        self.slots[text] = value
        return nodes.name(text)

    def temporary(self) -> str:
        self.locals += 1
        return f"local_{self.locals}"

    # --- conditions -------------------------------------------------------------------------------------------------------------

    def condition(self, tree: Expression, scope: Scope, strict: bool = True) -> ast.expr:
        """Returns a node that gives True or False. A function with another result raises if `strict`, else counts as False."""
        match tree:
            case Logic(sign, operands):
                *first, last = operands
                found = [self.condition(one, scope) for one in first] + [self.condition(last, scope, strict)]
                return nodes.either(ast.And() if sign == "and" else ast.Or(), found)
            case Not(In() | Logic() | Not() as inner):
                return ast.UnaryOp(ast.Not(), self.condition(inner, scope, strict))
            case Not(inner):
                return nodes.is_(self.value(inner, scope), nodes.const(False))
            case In(left, items):
                listed = ast.Tuple([self.value(one, scope) for one in items], ast.Load())
                return nodes.call("contains", self.value(left, scope), listed)
            case Comparison():
                return self.comparison(tree, scope)
            case Constant(value):
                return nodes.const(value is True)
            case Call() if strict:
                return nodes.call("check_boolean", self.value(tree, scope))
        return nodes.is_(self.value(tree, scope), nodes.const(True))

    def comparison(self, tree: Comparison, scope: Scope) -> ast.expr:
        left, right = self.folded(tree.left), self.folded(tree.right)
        if tree.operator == "=~":
            return nodes.call("matches", self.value(left, scope), self.value(right, scope))
        test = operators.COMPARISONS[tree.operator]
        if isinstance(left, Constant) and isinstance(right, Constant):
            return self.evaluated(lambda: operators.compare(test, left.value, right.value))
        temporary = self.temporary()
        if isinstance(right, Constant) and type(right.value) in (int, float, str):
            kinds = ("STR",) if type(right.value) is str else ("INT", "FLOAT")
            first = nodes.call("TYPE", nodes.local(temporary, self.value(left, scope)))
            if tree.left is self.first and isinstance(left, Path):
                self.known[left] = temporary
            tests = [nodes.is_(first, nodes.name(kinds[0]))]
            tests += [nodes.is_(nodes.call("TYPE", nodes.name(temporary)), nodes.name(kind)) for kind in kinds[1:]]
            quick = ast.Compare(nodes.name(temporary), [AST_OPERATORS[tree.operator]()], [nodes.const(right.value)])
            general = nodes.call("compare", self.slot(test), nodes.name(temporary), nodes.const(right.value))
            return nodes.choice(nodes.either(ast.Or(), tests) if len(tests) > 1 else tests[0], quick, general)
        return nodes.call("compare", self.slot(test), self.value(left, scope), self.value(right, scope))

    # --- values -----------------------------------------------------------------------------------------------------------------

    def value(self, tree: Expression, scope: Scope) -> ast.expr:
        """Returns a node that gives the value of an expression."""
        tree = self.folded(tree)
        match tree:
            case Constant(value):
                return nodes.const(value)
            case Path():
                return self.path(tree, scope)
            case Slice(path, first, last):
                return nodes.call("slice_of", self.path(path, scope), nodes.const(first), nodes.const(last))
            case Range(first, last):
                return nodes.call("integers", nodes.const(first), nodes.const(last))
            case ListOf(items):
                return ast.List([self.value(one, scope) for one in items], ast.Load())
            case Unary("+", operand):
                return self.value(operand, scope)
            case Unary(_, operand):
                return nodes.call("minus", self.value(operand, scope))
            case Arithmetic(sign, left, right):
                found = self.slot(operators.ARITHMETIC[sign])
                return ast.Call(found, [self.value(left, scope), self.value(right, scope)], [])
            case Call():
                return self.call(tree, scope)
            case Case():
                return self.case(tree, scope)
        return self.condition(tree, scope)

    def path(self, path: Path, scope: Scope) -> ast.expr:
        steps = path.steps
        if scope.fields is not None and path.root in scope.shadowing:
            columns = (nodes.name(scope.fields), nodes.name(scope.columns), nodes.name("payload"))
            return nodes.call("find_in_either", *columns, self.slot(steps))
        if scope.is_event and path in self.known:
            return nodes.name(self.known[path])
        if len(steps) == 1:
            return nodes.element(nodes.name(scope.columns), path.root)
        if not scope.is_event or path.root != "payload":
            return nodes.call("find", nodes.name(scope.columns), nodes.name("payload"), self.slot(steps))
        second, rest = steps[1], steps[2:]
        start = nodes.method(nodes.name("payload"), "value")
        if isinstance(second, Index):
            return nodes.call("get", start, self.slot(steps[1:]))
        if scope.has_map:
            found = nodes.element(nodes.name("document"), second)
        else:
            found = nodes.method(nodes.method(nodes.name("payload"), "map"), "get", nodes.const(second), nodes.name("UNDEFINED"))
        if not rest:
            return found
        if len(rest) == 1 and isinstance(rest[0], str):
            temporary = self.temporary()
            is_map = nodes.is_(nodes.call("TYPE", nodes.local(temporary, found)), nodes.name("DICT"))
            general = nodes.call("get_key", nodes.name(temporary), nodes.const(rest[0]))
            return nodes.choice(is_map, nodes.element(nodes.name(temporary), rest[0]), general)
        return nodes.call("get", found, self.slot(rest), start)

    def call(self, tree: Call, scope: Scope) -> ast.expr:
        function = self.function_of(tree)
        if isinstance(function, str):
            self.problems.append(function)
            return nodes.call("fail", nodes.const(function))
        arguments = [self.value(one, scope) for one in tree.arguments]
        if function.needs_columns:
            arguments.insert(0, nodes.name(scope.columns) if scope.gives_columns else ast.Dict([], []))
        return ast.Call(self.slot(function.call), arguments, [])

    def function_of(self, tree: Call) -> Function | str:
        """Returns the function of a call, or what is wrong with the call."""
        function = FUNCTIONS.get(tree.name)
        if function is None:
            return f"function: must be one of the documented ones, got {tree.name!r}"
        if len(tree.arguments) not in function.arities:
            counts = " or ".join(map(str, sorted(function.arities)))
            return f"{tree.name}: must be called with {counts} arguments, got {len(tree.arguments)}"
        return function

    def case(self, tree: Case, scope: Scope) -> ast.expr:
        found = nodes.name("UNDEFINED") if tree.otherwise is None else self.value(tree.otherwise, scope)
        for condition, value in reversed(tree.branches):
            if tree.subject is None:
                test = self.condition(condition, scope, strict=False)
            else:
                test = nodes.call("identical", self.value(condition, scope), self.value(tree.subject, scope))
            found = nodes.choice(test, self.value(value, scope), found)
        return found

    # --- constants --------------------------------------------------------------------------------------------------------------

    def folded(self, tree: Expression) -> Expression:
        """Returns a constant for an operation on constants that succeeds, otherwise the tree."""
        match tree:
            case Unary(sign, operand):
                inner = self.folded(operand)
                if isinstance(inner, Constant):
                    return self.constant(tree, lambda: operators.minus(inner.value) if sign == "-" else inner.value)
            case Arithmetic(sign, left, right):
                first, second = self.folded(left), self.folded(right)
                if isinstance(first, Constant) and isinstance(second, Constant):
                    return self.constant(tree, lambda: operators.ARITHMETIC[sign](first.value, second.value))
            case Call(_, arguments):
                function = self.function_of(tree)
                inputs = [self.folded(one) for one in arguments]
                if isinstance(function, Function) and function.is_pure and not function.needs_columns:
                    values = [one.value for one in inputs if isinstance(one, Constant)]
                    if len(values) == len(inputs):
                        return self.constant(tree, lambda: function.call(*values))
        return tree

    def constant(self, tree: Expression, evaluate: Callable[[], Value]) -> Expression:
        try:
            value = evaluate()
        except Exception:  # raised again for each message, as in EMQX
            return tree
        return Constant(value) if isinstance(value, FOLDED) else tree

    def evaluated(self, evaluate: Callable[[], Value]) -> ast.expr:
        try:
            return nodes.const(evaluate())
        except EvaluationError as error:
            return nodes.call("fail", nodes.const(str(error)))


def is_safe(tree: Expression) -> bool:
    """Returns whether an expression cannot raise, but for a payload that is no JSON."""
    match tree:
        case Constant() | Path():
            return True
        case ListOf(items):
            return all(map(is_safe, items))
        case Unary("+", operand):
            return is_safe(operand)
    return False


def parts(tree: object) -> Iterator[Expression]:
    """Yields an expression and all inside it."""
    if isinstance(tree, tuple):
        for one in tree:
            yield from parts(one)
    elif isinstance(tree, Field):
        yield from parts(tree.value)
    elif isinstance(tree, Index):
        if tree.path is not None:
            yield from parts(tree.path)
    elif hasattr(tree, "__dataclass_fields__") and not isinstance(tree, Star):
        yield tree  # type: ignore[misc]
        for name in tree.__dataclass_fields__:
            yield from parts(getattr(tree, name))


def roots(tree: object) -> set[str]:
    """Returns the first names of all paths in a tree."""
    return {one.root for one in parts(tree) if isinstance(one, Path)}


def reads_columns(tree: object) -> bool:
    """Returns whether a function in a tree sees the columns."""
    called = (FUNCTIONS.get(one.name) for one in parts(tree) if isinstance(one, Call))
    return any(function is not None and function.needs_columns for function in called)


