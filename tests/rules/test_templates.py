"""Templates of actions."""

import pytest

from shardbroker.rules import UNDEFINED, EvaluationError, template
from shardbroker.rules.templates import TEMPLATE_MAX

FIELDS = {"a": {"b": [1, 2.5, None]}, "text": "x", "flag": True, "bytes": b"\xff", "none": UNDEFINED, "json": '{"k": 7}'}
RENDERED = [
    ("plain", "plain"),
    ("${text}", "x"),
    ("<${a.b[1]}|${a.b[-2]}|${a.b[3]}>", "<1|2.5|null>"),
    ("${.text} ${flag}", "x true"),
    ("${missing} ${a.x.y} ${none}", "undefined undefined undefined"),
    ("${a.b}", "[1,2.5,null]"),
    ("${json.k}", "7"),
    ("$text ${text", "$text ${text"),
    ("${${text}}", "${x}"),
    ("${bytes}", "\ufffd"),
]


@pytest.mark.parametrize(("text", "rendered"), RENDERED)
def test_render(text: str, rendered: str) -> None:
    assert template(text).render(FIELDS) == rendered


def test_all_fields() -> None:
    assert template("${.}").render({"a": 1, "b": UNDEFINED}) in ('{"a":1,"b":"undefined"}', '{"b":"undefined","a":1}')


def test_length_is_bounded() -> None:
    with pytest.raises(EvaluationError, match="at most"):
        template("x" * (TEMPLATE_MAX + 1))
