"""Texts that are no rules: where the error is and what was expected; limits of size and depth."""

import pytest

from shardbroker.rules.errors import SqlError
from shardbroker.rules.lexer import SQL_MAX
from shardbroker.rules.parser import DEPTH_MAX, FIELDS_MAX, FILTERS_MAX, parse
from shardbroker.rules.syntax import Arithmetic, Comparison, Constant, Field, Index, Logic, Not, Path

ERRORS = [
    ("", 1, 1, "SELECT or FOREACH", "the end of the text"),
    ("update x", 1, 1, "SELECT or FOREACH", "'update'"),
    ("SELECT", 1, 7, "a value, a name or a function", "the end of the text"),
    ("SELECT a b c FROM t", 1, 12, "FROM", "'c'"),
    ("SELECT a FROM", 1, 14, 'a topic in ""', "the end of the text"),
    ("SELECT a\nFROM t\n  WHERE", 3, 8, "a value, a name or a function", "the end of the text"),
    ("SELECT a FROM t WHERE (a = 1", 1, 29, "')'", "the end of the text"),
    ("SELECT a FROM t WHERE a == 1", 1, 26, "a value, a name or a function", "'='"),
    ("SELECT 'a FROM t", 1, 8, "a text that ends with '", "the end of the text"),
    ("SELECT é FROM t", 1, 8, "a name, a number, a text in '', a topic in \"\" or an operator", "'é'"),
    ("SELECT case when a then 1 FROM t", 1, 27, "WHEN, ELSE or END", "'from'"),
    ("SELECT case when a then 1 else 2 FROM t", 1, 34, "WHEN or END", "'from'"),
    ("SELECT a as FROM t", 1, 13, "a name", "'from'"),
    ("SELECT a[x FROM t", 1, 12, "']'", "'from'"),
    ("SELECT a FROM t u", 1, 17, "WHERE, ',' or the end of the text", "'u'"),
]
REFUSED = [
    "SELECT (1 = 1) as r FROM t",
    "SELECT 1 = 1 = 1 FROM t",
    "SELECT 1e3 as r FROM t",
    "SELECT .5 as r FROM t",
    "SELECT 1 as _x FROM t",
    "SELECT a.end FROM t",
    "SELECT a.1.100 FROM t",
    "SELECT [1].b FROM t",
    "SELECT a[1].[2] FROM t",
    "SELECT a as e[1..3] FROM t",
    "SELECT case when true then case when a then 1 end end FROM t",
    "SELECT 1 and 2 as r FROM t",
    "SELECT a FROM t -- no end of the line",
    "FOREACH a INCASE a DO b FROM t",
]


@pytest.mark.parametrize(("sql", "line", "column", "expected", "found"), ERRORS)
def test_an_error_names_the_place(sql: str, line: int, column: int, expected: str, found: str) -> None:
    with pytest.raises(SqlError) as raised:
        parse(sql)
    error = raised.value
    assert (error.line, error.column, error.expected, error.found) == (line, column, expected, found)


@pytest.mark.parametrize("sql", REFUSED)
def test_what_emqx_refuses(sql: str) -> None:
    with pytest.raises(SqlError):
        parse(sql)


DEEP = {
    "brackets": "(" * 10_000 + "1" + ")" * 10_000,
    "open brackets": "(" * 10_000,
    "signs": "-" * 10_000 + "1",
    "lists": "[" * 10_000,
    "calls": "f(" * 10_000,
    "indexes": "a[" * 10_000,
    "sums": "1" + "+1" * 10_000,
    "cases": "case" + " when a then 1" * 3_000 + " end",
    "brackets of cases": "(" * 10_000 + "case when a then 1 end",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("sql", ["SELECT {} as r FROM t", "SELECT f({}) FROM t", "SELECT 1 FROM t WHERE {}"])
def test_depth_is_bounded(text: str, sql: str) -> None:
    with pytest.raises(SqlError):
        parse(sql.format(text))


@pytest.mark.parametrize("text", ["NOT " * 10_000 + "a", "NOT (" * 10_000])
def test_depth_of_conditions_is_bounded(text: str) -> None:
    with pytest.raises(SqlError, match=f"at most {DEPTH_MAX} levels"):
        parse(f"SELECT 1 FROM t WHERE {text}")


@pytest.mark.parametrize(
    ("sql", "limit"),
    [
        ("SELECT " + "a," * FIELDS_MAX + "a FROM t", f"at most {FIELDS_MAX} elements"),
        ("SELECT a FROM " + "t," * FILTERS_MAX + "t", f"at most {FILTERS_MAX} topics"),
        ("SELECT a FROM t" + " " * SQL_MAX, f"at most {SQL_MAX} characters"),
        ("SELECT " + "1" * 5_000 + " FROM t", "a number of at most"),
        ("SELECT " + "9" * 299 + "." + "9 FROM t", "a number of at most"),
    ],
)
def test_sizes_are_bounded(sql: str, limit: str) -> None:
    with pytest.raises(SqlError, match=limit):
        parse(sql)


def test_precedence() -> None:
    rule = parse("SELECT 1 + 2 * 3 as r FROM t WHERE a = 1 OR NOT b = 2 AND c")
    assert rule.fields == (
        Field(Arithmetic("+", Constant(1), Arithmetic("*", Constant(2), Constant(3))), Path(("r",))),
    )
    a, b, c = (Path((name,)) for name in "abc")
    negated = Not(Comparison("=", b, Constant(2)))
    assert rule.where == Logic("or", (Comparison("=", a, Constant(1)), Logic("and", (negated, c))))


def test_paths_and_quotes() -> None:
    rule = parse("""SELECT a."b c".'d'.1[-2][i.j], 'it''s' x FROM "t/#", 'u', v; """)
    steps = ("a", "b c", "d", "1", Index(-2), Index(None, Path(("i", "j"))))
    assert rule.fields == (Field(Path(steps)), Field(Constant("it''s"), Path(("x",))))
    assert rule.filters == ("t/#", "u", "v")
