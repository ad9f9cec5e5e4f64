"""Rules over REST that are refused, or have no id; test_routes.py makes one from nothing."""

from typing import Any

import pytest

from tests.api.rest import RULE, Rest


def test_an_id_is_made(rest: Rest) -> None:
    made = rest.good("POST", "/rules", {"sql": 'SELECT * FROM "rest/in"'})
    assert made["id"].startswith("rule_")
    rest.good("DELETE", f"/rules/{made['id']}")


@pytest.mark.parametrize("change", [{"sql": "no"}, {"id": "a b"}, {"actions": [{"function": "none"}]}, {"unknown": 1}])
def test_a_wrong_rule_is_refused(rest: Rest, change: dict[str, Any]) -> None:
    assert rest.refused("POST", "/rules", {**RULE, **change}) == (400, "BAD_REQUEST")
    assert rest.good("GET", "/rules")["data"] == []


def test_a_viewer_makes_no_rule(viewer: Rest) -> None:
    assert viewer.refused("POST", "/rules", RULE)[0] == 403
