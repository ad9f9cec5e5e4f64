"""Compiled rules and the interpreter agree on generated rules and messages."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.rules import EvaluationError, compile_rule
from shardbroker.rules.encoding import encoded
from shardbroker.rules.parser import parse
from tests.rules.interpreter import Interpreter

NAMES = st.sampled_from(["a", "b", "payload", "item", '"x y"'])
LITERALS = st.sampled_from(["0", "1", "-1", "1.0", "2.5", "'a'", "'1'", "'2.5'", "''", "'true'", "true", "false", "'#'", "'a/+'"])
INDEXES = st.sampled_from(["[1]", "[-1]", "[0]", "[2]", "[a]", "[i.j]"])
STEPS = st.one_of(NAMES.map(lambda name: f".{name}"), INDEXES)
PATHS = st.builds(lambda root, steps: root + "".join(steps), NAMES, st.lists(STEPS, max_size=3))
SLICES = st.builds(lambda path, one: f"{path}[{one}]", PATHS, st.sampled_from(["1..2", "-2..-1", "2..1", "3..1", "0..1", "9..2"]))
LEAVES = st.one_of(LITERALS, PATHS, PATHS, SLICES, st.just("[1..2]"))


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from(["+", "-", "*", "/", "div", "mod"])
    return st.one_of(
        st.builds(lambda left, sign, right: f"({left} {sign} {right})", inner, signs, inner),
        st.builds(lambda sign, one: f"({sign} {one})", st.sampled_from("+-"), inner),
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
    )


SCALARS = st.recursive(LEAVES, _grown, max_leaves=5)
COMPARISONS = st.builds(
    lambda left, sign, right: f"{left} {sign} {right}",
    SCALARS,
    st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">=", "=~"]),
    SCALARS,
)
MEMBERSHIPS = st.builds(
    lambda left, sign, items: f"{left} {sign} ({', '.join(items)})",
    SCALARS,
    st.sampled_from(["in", "not in"]),
    st.lists(SCALARS, min_size=1, max_size=3),
)
CONDITIONS = st.recursive(
    st.one_of(COMPARISONS, COMPARISONS, MEMBERSHIPS, PATHS),
    lambda inner: st.one_of(
        st.builds(lambda left, sign, right: f"({left}) {sign} ({right})", inner, st.sampled_from(["and", "or"]), inner),
        inner.map(lambda one: f"not ({one})"),
    ),
    max_leaves=4,
)
CASES = st.one_of(
    st.builds(lambda test, one, other: f"case when {test} then {one} else {other} end", CONDITIONS, SCALARS, SCALARS),
    st.builds(lambda what, test, one: f"case {what} when {test} then {one} end", SCALARS, SCALARS, SCALARS),
)
FIELDS = st.builds(
    lambda value, name: f"{value} as {name}", st.one_of(SCALARS, COMPARISONS, CASES), st.sampled_from(["a", "c", "d", "payload"])
)
RULES = st.builds(
    lambda fields, where: f"SELECT {', '.join(fields)} FROM t" + (f" WHERE {where}" if where else ""),
    st.lists(st.one_of(FIELDS, FIELDS, FIELDS, st.just("*")), min_size=1, max_size=3),
    st.one_of(st.none(), CONDITIONS),
)
SIMPLE = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, 2.5, "a", "1", "", "a/b", '{"a": [1]}', 2**70])
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "i", "j", "x y"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PAYLOADS = st.one_of(VALUES.map(json.dumps), VALUES.map(json.dumps), st.just("no json"), st.just(""))
COLUMNS = st.fixed_dictionaries({"payload": PAYLOADS}, optional={"a": VALUES, "b": VALUES, "item": VALUES, "i": VALUES})


def outcome(evaluate: Any) -> str:
    try:
        return json.dumps(encoded(evaluate()), sort_keys=True)
    except EvaluationError:
        return "raises"


@settings(max_examples=400, deadline=None)
@given(sql=RULES, columns=COLUMNS)
def test_compiled_and_interpreted_agree(sql: str, columns: dict[str, Any]) -> None:
    compiled, tree = compile_rule(sql), parse(sql)
    before = json.dumps(columns)
    assert outcome(lambda: compiled.evaluate(columns)) == outcome(lambda: Interpreter(columns).select(tree))
    assert json.dumps(columns) == before
