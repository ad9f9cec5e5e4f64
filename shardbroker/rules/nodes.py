"""Nodes of generated Python: names come from the compiler, everything of a rule is a constant."""

import ast
from collections.abc import Sequence
from typing import Any

__all__ = ["assign", "call", "choice", "const", "either", "element", "function", "is_", "local", "method", "name", "unless"]


def name(text: str) -> ast.expr:
    return ast.Name(text, ast.Load())


def const(value: Any) -> ast.expr:
    return ast.Constant(value)


def call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(name(function), list(arguments), [])


def method(owner: ast.expr, attribute: str, *arguments: ast.expr) -> ast.expr:
    """Returns a call of a method; `attribute` is a word of the compiler."""
    return ast.Call(ast.Attribute(owner, attribute, ast.Load()), list(arguments), [])


def element(owner: ast.expr, key: str) -> ast.expr:
    """Returns the element of a map, or UNDEFINED; `owner` is evaluated twice, so that it is the name of a local."""
    return choice(ast.Compare(const(key), [ast.In()], [owner]), ast.Subscript(owner, const(key), ast.Load()), name("UNDEFINED"))


def local(text: str, value: ast.expr) -> ast.expr:
    """Returns `(text := value)`."""
    return ast.NamedExpr(ast.Name(text, ast.Store()), value)


def is_(value: ast.expr, what: ast.expr) -> ast.expr:
    return ast.Compare(value, [ast.Is()], [what])


def either(operator: ast.boolop, values: Sequence[ast.expr]) -> ast.expr:
    return ast.BoolOp(operator, list(values))


def choice(test: ast.expr, value: ast.expr, otherwise: ast.expr) -> ast.expr:
    return ast.IfExp(test, value, otherwise)


def assign(text: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(text, ast.Store())], value)


def unless(test: ast.expr, *then: ast.stmt) -> ast.stmt:
    return ast.If(ast.UnaryOp(ast.Not(), test), list(then), [])


def function(parameters: Sequence[str], body: list[ast.stmt]) -> ast.Module:
    """Returns a module with one function `rule`."""
    made = ast.FunctionDef(
        name="rule",
        args=ast.arguments([], [ast.arg(one) for one in parameters], None, [], [], None, []),
        body=body,
        decorator_list=[],
    )
    return ast.fix_missing_locations(ast.Module([made], []))
