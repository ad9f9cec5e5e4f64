"""Tree of a rule -> one Python function.

    SELECT payload.temp as t, clientid FROM "t/#" WHERE payload.temp > 30

becomes

    def rule(columns, payload):
        document = payload.map()
        if not (local_1 > 30 if type(local_1 := document.get("temp", UNDEFINED)) is INT or ... else compare(...)):
            return None
        return {"t": document.get("temp", UNDEFINED), "clientid": columns.get("clientid", UNDEFINED)}

EMQX selects before it filters: WHERE sees the selected fields, and an error in a field counts even if WHERE is false. WHERE is
evaluated first where neither can be observed. No text of a rule becomes an identifier.
"""

import ast
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shardbroker.mqtt.topics import matches
from shardbroker.rules import nodes
from shardbroker.rules.expressions import Expressions, Scope, is_safe, reads_columns, roots
from shardbroker.rules.parser import parse
from shardbroker.rules.payload import Payload
from shardbroker.rules.syntax import (
    Arithmetic,
    Call,
    Case,
    Comparison,
    Constant,
    Expression,
    Field,
    ListOf,
    Path,
    Range,
    Rule,
    Slice,
    Star,
    Unary,
)
from shardbroker.rules.values import UNDEFINED, EvaluationError, Value

__all__ = ["CompiledRule", "Row", "compile_rule"]

Row: TypeAlias = dict[str, Value]
ITEM = "item"
"""Name of the element of a FOREACH without AS."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule that can be evaluated."""

    sql: str
    tree: Rule
    problems: tuple[str, ...]
    """Why some part of it raises for each message: unknown functions, numbers of arguments."""
    _function: Callable[[Row, Payload], Row | list[Row] | None]

    @property
    def filters(self) -> tuple[str, ...]:
        """Topic filters and names of events behind FROM."""
        return self.tree.filters

    def takes(self, topic: str) -> bool:
        """Returns whether a filter behind FROM matches this topic of a message."""
        name = topic.encode()
        return any(matches(one.encode(), name) for one in self.filters)

    def evaluate(self, columns: Row, payload: Payload | None = None) -> Row | list[Row] | None:
        """Returns the selected fields, for FOREACH a list of them, or None if WHERE is false. Raises EvaluationError.

        `payload` is shared by the rules that see one message, so that it is decoded once.
        """
        if payload is None:
            payload = Payload(columns.get("payload", UNDEFINED))
        try:
            return self._function(columns, payload)
        except EvaluationError:
            raise
        except Exception as error:  # of a function of SQL: a rule fails, its process does not
            raise EvaluationError(f"{type(error).__name__}: {error}") from error


def compile_rule(sql: str) -> CompiledRule:
    """Parses and compiles a rule. Raises SqlError."""
    tree = parse(sql)
    made = _Compiler(tree)
    module = nodes.function(("columns", "payload"), made.body())
    slots = made.expressions.slots
    exec(compile(module, "<rule>", "exec", dont_inherit=True), slots)
    # Taken out: a function that is among its own globals is freed by the collector of cycles only, which passes over loaded rules.
    return CompiledRule(sql, tree, tuple(made.expressions.problems), slots.pop("rule"))


class _Compiler:
    def __init__(self, tree: Rule) -> None:
        self.tree = tree
        self.expressions = Expressions()
        self.unnamed = time.time_ns()

    def body(self) -> list[ast.stmt]:
        if self.tree.is_foreach:
            return self.foreach()
        return self.filtered_first() or self.selected_first()

    # --- SELECT -----------------------------------------------------------------------------------------------------------------

    def filtered_first(self) -> list[ast.stmt] | None:
        """Returns the body that evaluates WHERE first, or None if that could be observed."""
        fields, where = self.tree.fields, self.tree.where
        if fields == (Star(),):
            return [*self.where_of_columns(), ast.Return(nodes.method(nodes.name("columns"), "copy"))]
        names: set[str] = set()
        for one in fields:
            if isinstance(one, Star) or not self.is_plain(one) or roots(one) & names:
                return None
            names.add(self.name_of(one).root)
        if roots(where) & names or reads_columns(where) or not all(is_safe(one.value) for one in fields if isinstance(one, Field)):
            return None
        body, scope = self.start([one.value for one in fields if isinstance(one, Field)])
        self.expressions.first = _first_part(where)
        body += self.where(scope)
        found = [(self.name_of(one), self.expressions.value(one.value, scope)) for one in fields if isinstance(one, Field)]
        result = ast.Dict([nodes.const(name.root) for name, _ in found], [value for _, value in found])
        return [*body, ast.Return(result)]

    def where_of_columns(self) -> list[ast.stmt]:
        body, scope = self.start([])
        return [*body, *self.where(scope)]

    def start(self, safe: Sequence[Expression]) -> tuple[list[ast.stmt], Scope]:
        """Returns the first statements and the scope of the event; the payload is decoded here where it is needed in any case."""
        scope = Scope("columns", is_event=True, gives_columns=True)
        scope.has_map = any(_decodes(one) for one in (*safe, _first_part(self.tree.where)))
        decoded = nodes.method(nodes.name("payload"), "map")
        return ([nodes.assign("document", decoded)] if scope.has_map else []), scope

    def where(self, scope: Scope) -> list[ast.stmt]:
        if self.tree.where is None:
            return []
        return [nodes.unless(self.expressions.condition(self.tree.where, scope), ast.Return(nodes.const(None)))]

    def is_plain(self, one: Field) -> bool:
        """Returns whether a field sets one name of the result."""
        if one.name is None and isinstance(one.value, Unary):
            return False
        return len(self.name_of(one).steps) == 1

    def selected_first(self) -> list[ast.stmt]:
        body: list[ast.stmt] = [nodes.assign("fields", ast.Dict([], []))]
        scope = Scope("columns", is_event=True, fields="fields")
        body += self.fields(self.tree.fields, scope)
        where = self.tree.where
        if roots(where) & scope.shadowing or reads_columns(where):
            body.append(nodes.assign("merged", _merged("columns", "fields")))
            body += self.where(Scope("merged", gives_columns=True))
        else:
            body += self.where(Scope("columns", is_event=True))
        return [*body, ast.Return(nodes.name("fields"))]

    def fields(self, fields: Sequence[Field | Star], scope: Scope) -> list[ast.stmt]:
        """Returns statements that set fields one after the other; each sees those before it."""
        body: list[ast.stmt] = []
        assert scope.fields is not None
        for one in fields:
            if isinstance(one, Star):
                body.append(ast.Expr(nodes.method(nodes.name(scope.fields), "update", nodes.name(scope.columns))))
            else:
                body.append(self.set_field(one, self.expressions.value(one.value, scope), scope))
        return body

    def set_field(self, one: Field, value: ast.expr, scope: Scope) -> ast.stmt:
        assert scope.fields is not None
        if one.name is None and isinstance(one.value, Unary):
            text = "SELECT: must be AS and a name behind an expression with a sign"
            self.expressions.problems.append(text)
            return ast.Expr(nodes.call("fail", nodes.const(text)))
        path = self.name_of(one)
        scope.shadowing.add(path.root)
        fields = nodes.name(scope.fields)
        if len(path.steps) == 1:
            return ast.Assign([ast.Subscript(fields, nodes.const(path.root), ast.Store())], value)
        return ast.Expr(nodes.call("put", fields, self.expressions.slot(path), value))

    def name_of(self, one: Field) -> Path:
        """Returns the name of a field in the result; one that EMQX names by kind and time is named so here."""
        if one.name is not None:
            return one.name
        value = one.value
        match value:
            case Path():
                return value
            case Slice(path):
                return path
            case Constant(str() as text):
                return Path((text,))
        self.unnamed += 1
        return Path((f"_v_{_kind_of(value)}_{self.unnamed}",))

    # --- FOREACH ----------------------------------------------------------------------------------------------------------------

    def foreach(self) -> list[ast.stmt]:
        tree = self.tree
        if any(isinstance(one, Star) for one in tree.fields):
            text = "FOREACH: must be an array, got *"
            self.expressions.problems.append(text)
            return [ast.Expr(nodes.call("fail", nodes.const(text)))]
        *first, last = (one for one in tree.fields if isinstance(one, Field))
        scope = Scope("columns", is_event=True, fields="fields")
        body = [nodes.assign("fields", ast.Dict([], [])), *self.fields(first, scope)]
        body.append(nodes.assign("items", self.expressions.value(last.value, scope)))
        body.append(self.set_field(last, nodes.name("items"), scope))
        body.append(nodes.assign("merged", _merged("columns", "fields")))
        body += self.where(Scope("merged", gives_columns=True))
        body.append(nodes.assign("rows", ast.List([], ast.Load())))
        is_list = nodes.is_(nodes.call("TYPE", nodes.name("items")), nodes.name("LIST"))
        loop = ast.For(ast.Name("item", ast.Store()), nodes.name("items"), self.each(last), [])
        return [*body, ast.If(is_list, [loop], []), ast.Return(nodes.name("rows"))]

    def each(self, last: Field) -> list[ast.stmt]:
        """Returns the statements for one element."""
        row = _merged("merged")
        name = Path((ITEM,)) if last.name is None else last.name
        if len(name.steps) == 1:
            row.keys.append(nodes.const(name.root))
            row.values.append(nodes.name("item"))
        body: list[ast.stmt] = [nodes.assign("row", row)]
        if self.tree.incase is not None:
            test = self.expressions.condition(self.tree.incase, Scope("row", gives_columns=True))
            body.append(nodes.unless(test, ast.Continue()))
        if self.tree.do:
            body.append(nodes.assign("done", ast.Dict([], [])))
            body += self.fields(self.tree.do, Scope("row", fields="done"))
        done = nodes.name("done" if self.tree.do else "row")
        return [*body, ast.Expr(nodes.method(nodes.name("rows"), "append", done))]


def _merged(*names: str) -> ast.Dict:
    return ast.Dict([None for _ in names], [nodes.name(one) for one in names])


def _decodes(tree: Expression | None) -> bool:
    """Returns whether an expression reads inside the payload."""
    if isinstance(tree, ListOf):
        return any(map(_decodes, tree.items))
    if isinstance(tree, Unary):
        return _decodes(tree.operand)
    return isinstance(tree, Path) and tree.root == "payload" and len(tree.steps) > 1


def _first_part(tree: Expression | None) -> Expression | None:
    """Returns the path that is evaluated first, so in any case."""
    while tree is not None and not isinstance(tree, Path):
        following = getattr(tree, "left", None) or getattr(tree, "operand", None)
        tree = following if following is not None else next(iter(getattr(tree, "operands", ())), None)
    return tree


def _kind_of(value: Expression) -> str:
    match value:
        case Constant(constant):
            return f"const_{str(constant).lower()}"
        case ListOf(items):
            return f"list_{len(items)}"
        case Range(first, last):
            return f"range_{{{first},{last}}}"
        case Arithmetic(sign) | Comparison(sign):
            return f"op_{sign}" if sign.isalpha() else f"op_'{sign}'"
        case Case():
            return "case_<<>>"
        case Call(name):
            return f'fun_{{var,<<"{name}">>}}'
    return "unknown_unknown"
