"""Examples of docs/rules-functions.md give the results beside them, and every function has one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.rules.functions import FUNCTIONS, jq
from tests.rules.functions.expressions import evaluate, shown

PAGE = Path(__file__).parents[3] / "docs" / "rules-functions.md"

EXAMPLES = re.findall(r"^\| `(.+?)` \| `(.*?)` \| ", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(autouse=True, scope="module")
def _child_of_jq() -> Iterator[None]:
    yield
    jq.stop()


@pytest.mark.parametrize(("expression", "result"), EXAMPLES)
def test_the_example_gives_its_result(expression: str, result: str) -> None:
    if expression.startswith("kv_store_get"):
        evaluate("kv_store_put('k', 1)")
    if expression.startswith(("proc_dict_get", "proc_dict_del")):
        evaluate("proc_dict_put('k', 1)")
    if expression.startswith("proc_dict_put"):
        evaluate("proc_dict_del('k')")
    assert shown(evaluate(expression)) == result


def test_every_function_has_an_example() -> None:
    called = {name for expression, _ in EXAMPLES for name in re.findall(r"([a-z_0-9]+)\(", expression)}
    assert called == set(FUNCTIONS)
