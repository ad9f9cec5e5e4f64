"""Rules that people try run in a child with bounds; what exceeds them ends the child alone."""

import asyncio
from typing import Any

import psutil
import pytest

from shardbroker.rules import sandbox, tester
from shardbroker.rules.sandbox import REQUEST_MAX, try_rule


def tried(sql: str, **context: Any) -> tester.Tested:
    return asyncio.run(try_rule(sql, context))


def test_a_rule_has_its_result() -> None:
    assert tried('SELECT payload.t + 1 AS t FROM "a/#"', topic="a/b", payload='{"t": 1}').result == {"t": 2}
    assert tried('SELECT * FROM "a/#"', topic="b").error == "nomatch"
    assert tried('SELECT * FROM "a/#" WHERE false', topic="a").error == "nomatch"
    assert tried("SELECT").error == "parse"
    assert tried('SELECT 1 + x AS y FROM "a"', topic="a").error == "eval"
    assert tried('SELECT clientid FROM "$events/client/connected"').result == {"clientid": "c_emqx"}
    assert tried("SELECT jq('.a', payload) AS a FROM \"t\"", topic="t", payload='{"a": 3}').result == {"a": [3]}


def test_columns_are_an_object() -> None:
    tested = asyncio.run(try_rule('SELECT * FROM "a"', {"$bytes": "eHg="}))
    assert tested == tester.Tested("eval", "context: must be an object of columns")


def test_bytes_and_missing_fields_are_kept() -> None:
    assert tried('SELECT payload, no FROM "a"', topic="a", payload={"$bytes": "/w=="}).result == {
        "payload": {"$bytes": "/w=="}, "no": {"$undefined": True},
    }  # fmt: skip


MANY = ", ".join(f"pad('{number}', 1000000) AS a{number}" for number in range(100))


@pytest.mark.parametrize(
    "sql",
    [
        "FOREACH [1..10000] AS a DO sha256(pad(concat(a, 'x'), 1000000)) AS b FROM \"t\"",  # time
        f'SELECT {MANY} FROM "t"',  # memory
    ],
)
def test_too_much_ends_the_child(sql: str) -> None:
    assert tried(sql, topic="t") == tester.Tested("eval", "must end within 1 s and 64 MB")


def test_a_large_request_is_refused() -> None:
    tested = tried('SELECT * FROM "t"', topic="t", payload="x" * REQUEST_MAX)
    assert tested.error == "eval" and str(REQUEST_MAX) in tested.detail


def test_a_child_without_an_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "START_SECONDS", 0.0)
    before = set(psutil.Process().children())
    assert tried('SELECT * FROM "t"', topic="t").detail.startswith("must end within")
    assert set(psutil.Process().children()) <= before
