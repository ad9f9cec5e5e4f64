"""The answers of EMQX 5.8.9 to a sample of rules, and how results are compared with them."""

import json
import re
from pathlib import Path
from typing import Any

from shardbroker.rules.encoding import decoded, encoded
from shardbroker.rules.tester import run_rule

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("cases.json").read_text())["cases"]
TIME_IN_NAME = re.compile(r"^(_v_.*)_\d+$")


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Returns our answer in the form of `expect`."""
    tested = run_rule(case["sql"], decoded(case["context"]))
    return {"error": tested.error} if tested.error else {"ok": encoded(tested.result)}


def normal(value: Any) -> Any:
    """Returns a value whose JSON is the same for equal values: names by time without it, atoms as text."""
    if isinstance(value, dict):
        if value.keys() == {"$atom"}:
            return value["$atom"]
        return {TIME_IN_NAME.sub(r"\1", key): normal(one) for key, one in value.items()}
    return [normal(one) for one in value] if isinstance(value, list) else value


def fits(case: dict[str, Any], given: dict[str, Any]) -> bool:
    expected = normal(case["expect"])
    given = normal(given)
    if case.get("match") == "subset" and isinstance(given.get("ok"), list):
        given = {"ok": [{key: row.get(key) for key in want} for want, row in zip(expected["ok"], given["ok"], strict=True)]}
    return json.dumps(given, sort_keys=True) == json.dumps(expected, sort_keys=True)
