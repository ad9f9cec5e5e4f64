"""Tokens -> tree, by recursive descent with one function per rule of the grammar.

    rule       := SELECT fields from | FOREACH fields [DO fields] [INCASE condition] from
    from       := FROM topic {, topic} [WHERE condition] [;]
    fields     := field {, field}             field := * | (case | comparison) [[AS] path]
    condition  := and {OR and}                and   := not {AND not}         not := NOT not | ( condition ) | predicate
    predicate  := scalar [op scalar | [NOT] IN ( comparison {, comparison} )]
    scalar     := product {(+ | -) product}   product := signed {(* | / | div | mod) signed}
    signed     := [+ | -] signed | literal | path | path range | call | list | ( scalar )

EMQX accepts comparisons, CASE and brackets around either only at some places: a CASE is a field or an argument of a function, a
comparison in brackets is a condition or an argument.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from shardbroker.rules.errors import SqlError
from shardbroker.rules.lexer import Token, error_at, tokens
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
    Rule,
    Slice,
    Star,
    Step,
    Unary,
)

Operand: TypeAlias = Callable[[], Expression]

__all__ = ["DEPTH_MAX", "FIELDS_MAX", "FILTERS_MAX", "parse"]

DEPTH_MAX: Final = 100
"""Most levels of brackets, operators in a row and CASE branches together: tree and generated code are walked recursively."""
FIELDS_MAX: Final = 1_000
"""Most fields of a clause, elements of a list and arguments of a function."""
FILTERS_MAX: Final = 100
"""Most topics behind FROM; each is a route of the broker."""
SCALAR_FOLLOWERS: Final = {"sign": ("+", "-", "*", "/", "div", "mod"), "keyword": ("in", "not")}
"""What follows a bracket that encloses an operand."""


def parse(sql: str) -> Rule:
    """Returns the tree of a rule. Raises SqlError."""
    return _Parser(sql).rule()


class _Parser:
    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens = tokens(sql)
        self.at = 0
        self.depth = 0

    # --- tokens -----------------------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def next_is(self, kind: str, *texts: str, ahead: int = 0) -> bool:
        token = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return token.kind == kind and (not texts or token.text in texts)

    def accept(self, kind: str, *texts: str) -> Token | None:
        if not self.next_is(kind, *texts):
            return None
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, kind: str, text: str) -> None:
        if self.accept(kind, text) is None:
            raise self.error(text.upper() if kind == "keyword" else f"'{text}'")

    def error(self, expected: str) -> SqlError:
        return error_at(self.sql, self.token.position, expected, self.token.shown)

    def deeper(self, levels: int = 1) -> None:
        self.depth += levels
        if self.depth > DEPTH_MAX:
            raise self.error(f"an expression of at most {DEPTH_MAX} levels")

    def bounded(self, count: int) -> None:
        if count >= FIELDS_MAX:
            raise self.error(f"a list of at most {FIELDS_MAX} elements")

    # --- clauses ----------------------------------------------------------------------------------------------------------------

    def rule(self) -> Rule:
        if self.accept("keyword", "select"):
            fields = self.fields()
            return self.source(Rule(fields, (), None))
        if not self.accept("keyword", "foreach"):
            raise self.error("SELECT or FOREACH")
        fields = self.fields()
        do = self.fields() if self.accept("keyword", "do") else ()
        incase = self.condition() if self.accept("keyword", "incase") else None
        return self.source(Rule(fields, (), None, True, do, incase))

    def source(self, rule: Rule) -> Rule:
        self.expect("keyword", "from")
        filters = [self.topic()]
        while self.accept("sign", ","):
            if len(filters) == FILTERS_MAX:
                raise self.error(f"a list of at most {FILTERS_MAX} topics")
            filters.append(self.topic())
        where = self.condition() if self.accept("keyword", "where") else None
        self.accept("sign", ";")
        if self.token.kind != "end":
            raise self.error("an operator or the end of the text" if where else "WHERE, ',' or the end of the text")
        return Rule(rule.fields, tuple(filters), where, rule.is_foreach, rule.do, rule.incase)

    def topic(self) -> str:
        token = self.accept("name") or self.accept("text")
        if token is None:
            raise self.error('a topic in ""')
        return token.text

    def fields(self) -> tuple[Field | Star, ...]:
        found = [self.field()]
        while self.accept("sign", ","):
            self.bounded(len(found))
            found.append(self.field())
        return tuple(found)

    def field(self) -> Field | Star:
        if self.accept("sign", "*"):
            return Star()
        value = self.case() if self.starts_case() else self.comparison()
        if self.accept("keyword", "as") or self.token.kind == "name":
            return Field(value, self.name())
        return Field(value)

    def name(self) -> Path:
        path = self.path()
        if not isinstance(path, Path):
            raise self.error("a name")
        return path

    # --- conditions -------------------------------------------------------------------------------------------------------------

    def condition(self) -> Expression:
        return self.logic("or", lambda: self.logic("and", self.negation))

    def logic(self, operator: str, operand: Operand) -> Expression:
        found = [operand()]
        while self.accept("keyword", operator):
            self.bounded(len(found))
            found.append(operand())
        return found[0] if len(found) == 1 else Logic(operator, tuple(found))

    def negation(self) -> Expression:
        if self.accept("keyword", "not"):
            self.deeper()
            operand = self.negation()
            self.depth -= 1
            return Not(operand)
        if self.next_is("sign", "(") and not self.opens_scalar():
            self.at += 1
            self.deeper()
            inner = self.condition()
            self.depth -= 1
            self.expect("sign", ")")
            return inner
        return self.predicate()

    def opens_scalar(self) -> bool:
        """Returns whether the bracket encloses an operand, such as `(a + 1) > 2`, rather than a condition."""
        level = 0
        for at in range(self.at, len(self.tokens)):
            token = self.tokens[at]
            if token.kind == "sign" and token.text in ("(", ")"):
                level += 1 if token.text == "(" else -1
                if level == 0:
                    behind = self.tokens[at + 1]
                    return behind.kind == "comparison" or behind.text in SCALAR_FOLLOWERS.get(behind.kind, ())
        return False

    def predicate(self) -> Expression:
        left = self.scalar()
        if operator := self.accept("comparison"):
            return Comparison(_plain(operator.text), left, self.scalar())
        negated = self.next_is("keyword", "not") and self.next_is("keyword", "in", ahead=1)
        if negated:
            self.at += 1
        if not self.accept("keyword", "in"):
            return left
        self.expect("sign", "(")
        items = [self.comparison()]
        while self.accept("sign", ","):
            self.bounded(len(items))
            items.append(self.comparison())
        self.expect("sign", ")")
        found = In(left, tuple(items))
        return Not(found) if negated else found

    # --- values -----------------------------------------------------------------------------------------------------------------

    def comparison(self) -> Expression:
        left = self.scalar()
        operator = self.accept("comparison")
        return left if operator is None else Comparison(_plain(operator.text), left, self.scalar())

    def scalar(self) -> Expression:
        return self.arithmetic(("+", "-"), lambda: self.arithmetic(("*", "/", "div", "mod"), self.signed))

    def arithmetic(self, operators: tuple[str, ...], operand: Operand) -> Expression:
        left, levels = operand(), 0
        while operator := self.accept("sign", *operators):
            self.deeper()
            levels += 1
            left = Arithmetic(operator.text, left, operand())
        self.depth -= levels
        return left

    def signed(self) -> Expression:
        if sign := self.accept("sign", "+", "-"):
            self.deeper()
            operand = self.signed()
            self.depth -= 1
            return Unary(sign.text, operand)
        if self.accept("sign", "("):
            self.deeper()
            inner = self.scalar()
            self.depth -= 1
            self.expect("sign", ")")
            return inner
        return self.primary()

    def primary(self) -> Expression:
        if token := self.accept("text"):
            return Constant(token.text)
        if token := self.accept("int"):
            return Constant(int(token.text))
        if token := self.accept("float"):
            value = float(token.text)
            if value in (float("inf"), float("-inf")):
                self.at -= 1
                raise self.error("a number below 1.8e308")
            return Constant(value)
        if token := self.accept("range"):
            return Range(*_ends(token.text))
        if self.next_is("sign", "["):
            return self.list_of()
        if self.token.kind != "name":
            raise self.error("a value, a name or a function")
        path = self.path()
        if self.accept("sign", "("):
            return self.call(path)
        if isinstance(path, Path) and (token := self.accept("range")):
            return Slice(path, *_ends(token.text))
        return path

    def list_of(self) -> Expression:
        self.expect("sign", "[")
        self.deeper()
        items: list[Expression] = []
        while not self.next_is("sign", "]"):
            self.bounded(len(items))
            items.append(self.argument())
            if not self.accept("sign", ","):
                break
        self.depth -= 1
        self.expect("sign", "]")
        return ListOf(tuple(items))

    def call(self, function: Path | Constant) -> Expression:
        self.deeper()
        arguments: list[Expression] = []
        if not self.next_is("sign", ")"):
            arguments.append(self.argument())
            while self.accept("sign", ","):
                self.bounded(len(arguments))
                arguments.append(self.argument())
        self.depth -= 1
        self.expect("sign", ")")
        if not isinstance(function, Path) or not all(isinstance(step, str) for step in function.steps):
            raise self.error("a function with a plain name")
        return Call(".".join(step for step in function.steps if isinstance(step, str)), tuple(arguments))

    def argument(self) -> Expression:
        """Reads an argument of a function, or an element of a list: comparisons in brackets and CASE are allowed here."""
        if self.starts_case():
            return self.case()
        left = self.sum_of_arguments()
        operator = self.accept("comparison")
        return left if operator is None else Comparison(_plain(operator.text), left, self.sum_of_arguments())

    def sum_of_arguments(self) -> Expression:
        return self.arithmetic(("+", "-"), lambda: self.arithmetic(("*", "/", "div", "mod"), self.signed_argument))

    def signed_argument(self) -> Expression:
        if sign := self.accept("sign", "+", "-"):
            self.deeper()
            operand = self.signed_argument()
            self.depth -= 1
            return Unary(sign.text, operand)
        if self.accept("sign", "("):
            self.deeper()
            inner = self.argument()
            self.depth -= 1
            self.expect("sign", ")")
            return inner
        return self.case() if self.starts_case() else self.primary()

    def starts_case(self) -> bool:
        ahead = 0
        while self.next_is("sign", "(", ahead=ahead) and ahead <= DEPTH_MAX:
            ahead += 1
        return self.next_is("keyword", "case", ahead=ahead) and ahead <= DEPTH_MAX

    def case(self) -> Expression:
        if self.accept("sign", "("):
            self.deeper()
            inner = self.case()
            self.depth -= 1
            self.expect("sign", ")")
            return inner
        self.expect("keyword", "case")
        self.deeper()
        subject = None if self.next_is("keyword", "when") else self.comparison()
        branches: list[tuple[Expression, Expression]] = []
        while not branches or self.next_is("keyword", "when"):
            self.expect("keyword", "when")
            self.deeper()
            condition = self.condition()
            self.expect("keyword", "then")
            branches.append((condition, self.comparison()))
        otherwise = self.comparison() if self.accept("keyword", "else") else None
        self.depth -= 1 + len(branches)
        if not self.accept("keyword", "end"):
            raise self.error("WHEN or END" if otherwise is not None else "WHEN, ELSE or END")
        return Case(subject, tuple(branches), otherwise)

    # --- paths ------------------------------------------------------------------------------------------------------------------

    def path(self) -> Path | Constant:
        """Reads `a.b[1]."c d"[i]`; `true` and `false` alone are constants."""
        first = self.accept("name")
        if first is None:
            raise self.error("a name")
        steps: list[Step] = [first.text]
        while True:
            if self.next_is("sign", "["):
                steps.append(self.index())
            elif self.accept("sign", "."):
                token = self.accept("name") or self.accept("int") or self.accept("text")
                if token is None:
                    raise self.error("a name, a number or a text in ''")
                steps.append(token.text)
            else:
                break
        if len(steps) == 1 and first.text in ("true", "false") and self.sql[first.position] != '"':
            return Constant(first.text == "true")
        return Path(tuple(steps))

    def index(self) -> Index:
        self.expect("sign", "[")
        self.deeper()
        sign = self.accept("sign", "+", "-")
        if token := self.accept("int"):
            number = int(token.text) * (-1 if sign and sign.text == "-" else 1)
            index = Index(number or None, None, bool(sign and sign.text == "-") and not number)
        else:
            if sign is not None or self.token.kind != "name":
                raise self.error("a number or a name")
            path = self.path()
            index = Index(None, path if isinstance(path, Path) else Path((str(path.value).lower(),)))
        self.depth -= 1
        self.expect("sign", "]")
        return index


def _plain(operator: str) -> str:
    return "!=" if operator == "<>" else operator


def _ends(text: str) -> tuple[int, int]:
    first, _, last = text[1:-1].partition("..")
    return int(first), int(last)
