"""Rules over REST, with paths and fields of EMQX 5."""

from typing import Any

import pytest

from tests.api.rest import ApiBroker, Rest
from tests.harness import Client, Publish

RULE: dict[str, Any] = {
    "id": "hot",
    "name": "hot",
    "sql": 'SELECT payload FROM "rest/in" WHERE payload.t > 10',
    "actions": [{"function": "republish", "args": {"topic": "rest/out", "qos": 1}}],
}


def test_a_rule_from_nothing_to_nothing(served: ApiBroker, rest: Rest, viewer: Rest) -> None:
    made = rest.good("POST", "/rules", RULE)
    assert made["id"] == "hot" and made["from"] == ["rest/in"] and made["enable"] is True and made["created_at"].startswith("20")
    with Client(served.address, 5, "rest-rules") as client:
        client.subscribe("rest/out", 1)
        client.publish("rest/in", b'{"t": 11}', 1)
        client.expect(Publish, topic="rest/out", payload=b'{"t": 11}')
    assert [row["id"] for row in viewer.good("GET", "/rules?from=rest/in&enable=true")["data"]] == ["hot"]
    assert viewer.good("GET", "/rules?like_id=cold")["data"] == []
    assert viewer.good("GET", "/rules/hot")["actions"] == RULE["actions"]
    metrics = viewer.good("GET", "/rules/hot/metrics")
    assert metrics["id"] == "hot" and set(metrics["metrics"]) >= {"matched", "passed", "failed", "actions.success"}
    rest.good("PUT", "/rules/hot/metrics/reset")
    changed = rest.good("PUT", "/rules/hot", {"sql": 'SELECT * FROM "rest/other"', "enable": False})
    assert (changed["from"], changed["enable"], changed["actions"], changed["status"]) == (["rest/other"], False, [], "disabled")
    rest.good("DELETE", "/rules/hot")
    assert rest.refused("GET", "/rules/hot")[0] == 404


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
