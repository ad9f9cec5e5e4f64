"""The compiler beyond the cases: names stay texts, WHERE first, one payload for many rules, functions that raise."""

import ast

import pytest

from shardbroker.rules import UNDEFINED, EvaluationError, Payload, compile_rule
from shardbroker.rules.compiler import _Compiler
from shardbroker.rules.functions import FUNCTIONS, Function
from shardbroker.rules.parser import parse
from shardbroker.rules.tester import run_rule

HOSTILE = [
    "__import__('os').system('touch /tmp/x')",
    "columns",
    "payload",
    "document",
    "slot_1",
    "compare",
    "fields\n    import os",
    "__builtins__",
    "a; import os",
    "{0}",
    "%s",
    "\\x00",
    "\x00",
    "None",
    "local_1",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_texts(name: str) -> None:
    value = run_rule(f'SELECT "{name}" as "{name}" FROM "t/#" WHERE "{name}" = 7', {"topic": "t/a", name: 7})
    assert value.result == {name: 7} or name == "payload"
    sql = f'SELECT x."{name}" as x."{name}", payload."{name}" as y FROM "t/#"'
    nested = run_rule(sql, {"topic": "t/a", "x": {name: 7}, "payload": "{}"})
    assert nested.result == {"x": {name: 7}, "y": UNDEFINED}


@pytest.mark.parametrize("name", HOSTILE)
def test_code_has_names_of_the_compiler_only(name: str) -> None:
    quoted = name.replace("'", "")
    do = f"""DO "{name}" as b."{name}", '{quoted}' INCASE "{name}" > '{quoted}'"""
    tree = parse(f'FOREACH "{name}"."{name}" as "{name}" {do} FROM "{name}"')
    names = {node.id for statement in _Compiler(tree).body() for node in ast.walk(statement) if isinstance(node, ast.Name)}
    own = {"columns", "payload", "fields", "items", "merged", "rows", "item", "row", "done", "TYPE", "LIST", "STR", "UNDEFINED"}
    own |= {"compare", "find", "find_in_either", "put"}
    assert all(one in own or one.startswith(("slot_", "local_")) for one in names)


def test_code_sees_no_builtins() -> None:
    rule = compile_rule("SELECT open as a FROM t")
    assert rule._function.__globals__["__builtins__"] == {}


def test_fields_are_evaluated_before_where_if_they_may_raise() -> None:
    columns = {"payload": "no json", "a": "x"}
    assert compile_rule("SELECT a FROM t WHERE a = 1.5 or a = 'y'").filters == ("t",)
    assert compile_rule("SELECT a FROM t WHERE a = 'y'").evaluate(columns) is None
    for sql in ("SELECT a - 1 as b FROM t WHERE a = 'y'", "SELECT payload.x as b FROM t WHERE a = 'y'"):
        with pytest.raises(EvaluationError):
            compile_rule(sql).evaluate(columns)


def test_where_sees_aliases() -> None:
    assert compile_rule("SELECT a as b FROM t WHERE b = 1").evaluate({"a": 1, "b": 2}) == {"b": 1}
    assert compile_rule("SELECT b as a, a FROM t WHERE b = 2").evaluate({"a": 1, "b": 2}) == {"a": 2}


def test_rules_share_a_decoded_payload() -> None:
    payload = Payload('{"a": {"b": 1}}')
    columns = {"payload": payload.raw}
    first = compile_rule("SELECT payload.a as a FROM t").evaluate(columns, payload)
    second = compile_rule("SELECT payload.a as a, 2 as a.b FROM t").evaluate(columns, payload)
    assert (first, second) == ({"a": {"b": 1}}, {"a": {"b": 2}})
    assert payload.value() == {"a": {"b": 1}}, "a rule changed what others see"


@pytest.mark.parametrize("raw", ['{"a": 1' + "0" * 5000 + "}", "[" * 100_000, '{"a": NaN}', '"\\ud800"', "\x00", ""])
def test_payloads_that_are_no_json(raw: str) -> None:
    rule = compile_rule("SELECT payload.a as a FROM t")
    for _ in range(2):
        with pytest.raises(EvaluationError):
            rule.evaluate({"payload": raw})


@pytest.mark.parametrize("indent", range(12))
def test_an_integer_above_64_bits_anywhere(indent: int) -> None:
    assert Payload(" " * indent + str(2**64)).value() == 2**64


def test_big_integers_and_duplicates() -> None:
    rule = compile_rule("SELECT payload.a as a FROM t")
    assert rule.evaluate({"payload": '{"a": 123456789012345678901234567890}'}) == {"a": 123456789012345678901234567890}
    assert rule.evaluate({"payload": '{"a": 1, "a": 2}'}) == {"a": 2}


def test_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def count(value: object) -> object:
        calls.append(value)
        return value

    def broken(value: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setitem(FUNCTIONS, "count", Function(count, (1,)))
    monkeypatch.setitem(FUNCTIONS, "broken", Function(broken, (1,)))
    rule = compile_rule("SELECT count('x') as a FROM t")
    folded = len(calls)
    assert rule.evaluate({}) == rule.evaluate({}) == {"a": "x"} and len(calls) == folded, "a constant call was repeated"
    with pytest.raises(EvaluationError, match="ZeroDivisionError"):
        compile_rule("SELECT broken(a) FROM t").evaluate({})
    wrong = compile_rule("SELECT count(1, 2), nosuch() FROM t")
    assert any("count: must be called with 1" in one for one in wrong.problems) and any("nosuch" in one for one in wrong.problems)


def test_deepest_rule_compiles() -> None:
    text = "(" * 90 + "a" + ")" * 90
    assert compile_rule(f"SELECT {text} as r FROM t").evaluate({"a": 1}) == {"r": 1}
    sums = "a" + " + a" * 90
    assert compile_rule(f"SELECT {sums} as r FROM t").evaluate({"a": 1}) == {"r": 91}
    cases = "case " + " ".join(f"when a = {number} then {number}" for number in range(90)) + " end"
    assert compile_rule(f"SELECT {cases} as r FROM t").evaluate({"a": 89}) == {"r": 89}
    chain = " or ".join(f"a = {number}" for number in range(1_000))
    assert compile_rule(f"SELECT a FROM t WHERE {chain}").evaluate({"a": 999}) == {"a": 999}


def test_topics() -> None:
    rule = compile_rule('SELECT 1 as r FROM "a/+", "$events/client_connected"')
    assert rule.takes("a/b") and not rule.takes("a/b/c") and not rule.takes("$SYS/a")
